//! The payload of an event, for each type that the outbox column may have.

use serde_json::Value;

/// The first byte of `jsonb` in binary form: the version of the format.
pub(crate) const JSONB_VERSION: u8 = 1;

/// The bytes of a payload. They are sent as the type that the outbox column has: `jsonb`, `json`,
/// `text` or `bytea`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&Value> for Payload {
    fn from(document: &Value) -> Self {
        Self(document.to_string().into_bytes())
    }
}

impl From<&str> for Payload {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

//! The payload of an event, for each type that the outbox column may have.

use std::error::Error;

use bytes::{BufMut as _, BytesMut};
use serde_json::Value;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// The first byte of `jsonb` in binary form: the version of the format.
const JSONB_VERSION: u8 = 1;

/// The bytes of a payload. They are sent as the type that the outbox column has: `jsonb`, `json`,
/// `text` or `bytea`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

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

impl ToSql for Payload {
    fn to_sql(
        &self,
        column: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if *column == Type::JSONB {
            out.put_u8(JSONB_VERSION);
        }
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(column: &Type) -> bool {
        [Type::JSONB, Type::JSON, Type::TEXT, Type::BYTEA].contains(column)
    }

    to_sql_checked!();
}

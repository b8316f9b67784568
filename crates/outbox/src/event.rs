//! The event that a producer writes.

use serde_json::{Map, Value};

use crate::payload::Payload;

/// An event of one aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    pub(crate) aggregate_type: &'a str,
    pub(crate) aggregate_id: &'a str,
    pub(crate) event_type: &'a str,
    pub(crate) payload: Payload,
    pub(crate) expected_version: Option<i64>,
    pub(crate) schema_version: i32,
    headers: Vec<(String, String)>,
}

impl<'a> Event<'a> {
    /// Creates an event. The aggregate id is the ordering key of the message.
    pub fn new(
        aggregate_type: &'a str,
        aggregate_id: &'a str,
        event_type: &'a str,
        payload: impl Into<Payload>,
    ) -> Self {
        Self {
            aggregate_type,
            aggregate_id,
            event_type,
            payload: payload.into(),
            expected_version: None,
            schema_version: 1,
            headers: Vec::new(),
        }
    }

    /// Refuses the event if the aggregate is at another version. The value 0 means that the
    /// aggregate has no event yet.
    #[must_use]
    pub fn expecting_version(mut self, version: i64) -> Self {
        self.expected_version = Some(version);
        self
    }

    /// Adds an attribute to the message, such as `traceparent`.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the version of the payload's schema, which is 1 by default.
    #[must_use]
    pub const fn with_schema_version(mut self, version: i32) -> Self {
        self.schema_version = version;
        self
    }

    /// Returns the headers as a JSON object, or `None` without headers.
    pub(crate) fn header_document(&self) -> Option<Payload> {
        if self.headers.is_empty() {
            return None;
        }
        let pairs =
            self.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        Some(Payload::from(&Value::Object(pairs.collect::<Map<_, _>>())))
    }
}

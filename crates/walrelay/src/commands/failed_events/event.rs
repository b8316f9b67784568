//! A failed event with its message, as both commands show it.

use std::collections::BTreeMap;

use pgoutput_parser::Position;
use serde::Serialize;
use serde_json::{Value, json};

/// A failed event: a row of dispatch state, or an event of an inbox. A value that one side does not
/// have is null there.
#[derive(Debug, Clone, Serialize)]
pub(in crate::commands) struct FailedEvent {
    pub(in crate::commands) event_id: String,
    pub(in crate::commands) status: String,
    pub(in crate::commands) attempts: u32,
    pub(in crate::commands) commit_lsn: Option<String>,
    pub(in crate::commands) tx_index: Option<u32>,
    pub(in crate::commands) topic: Option<String>,
    pub(in crate::commands) ordering_key: String,
    pub(in crate::commands) event_type: Option<String>,
    pub(in crate::commands) version: Option<i64>,
    pub(in crate::commands) holds_its_key: Option<bool>,
    pub(in crate::commands) next_attempt_at: Option<String>,
    pub(in crate::commands) error_code: Option<String>,
    pub(in crate::commands) last_error: Option<String>,
    pub(in crate::commands) message_id: Option<String>,
    pub(in crate::commands) message_bytes: u64,
    pub(in crate::commands) occurred_at: Option<String>,
    pub(in crate::commands) recorded_at: String,
    pub(in crate::commands) updated_at: Option<String>,
    pub(in crate::commands) done_at: Option<String>,
    /// Whether only an edit can complete the event.
    #[serde(skip)]
    pub(in crate::commands) needs_edit: bool,
}

impl FailedEvent {
    /// Returns the position in the WAL.
    pub(in crate::commands) fn position(&self) -> Option<Position> {
        let commit_lsn = self.commit_lsn.as_ref()?.parse().ok()?;
        Some(Position { commit_lsn, tx_index: self.tx_index? })
    }

    /// Returns the begin of the next page.
    pub(in crate::commands) fn begin(&self) -> PageBegin {
        PageBegin { position: self.position(), event_id: Some(self.event_id.clone()) }
    }
}

/// An event with its message.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct EventDetail {
    /// The event.
    #[serde(flatten)]
    pub(in crate::commands) event: FailedEvent,
    /// The message. None if it is not stored, or cannot be decoded.
    pub(in crate::commands) message: Option<EventMessage>,
}

/// A stored message.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct EventMessage {
    pub(in crate::commands) attributes: BTreeMap<String, String>,
    pub(in crate::commands) ordering_key: String,
    /// The payload: JSON, a string, or an object with the size of binary data. Null if it was too
    /// large to be recorded.
    pub(in crate::commands) data: Value,
    /// The parts that were too large to be recorded.
    pub(in crate::commands) lacks: Vec<MissingPart>,
}

/// A part of a message that was too large to be recorded.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct MissingPart {
    pub(in crate::commands) part: &'static str,
    pub(in crate::commands) bytes: usize,
}

/// Shows JSON as JSON, other text as a string, and binary data as its size.
pub(in crate::commands) fn payload_json(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        Err(_) => json!({ "binary_bytes": data.len() }),
    }
}

/// Where a page starts: behind this event.
#[derive(Debug, Clone)]
pub(in crate::commands) struct PageBegin {
    /// Its position in the WAL. Only events that walrelay has published have one.
    pub(in crate::commands) position: Option<Position>,
    /// Its id. None starts the page after all events of the position.
    pub(in crate::commands) event_id: Option<String>,
}

//! A failed event with its message, as both commands show it.

use std::collections::BTreeMap;

use pgoutput_parser::Position;
use serde::Serialize;
use serde_json::value::RawValue;

/// A failed event: a row of dispatch state, or an event of an inbox. A value that one side does not
/// have is null there.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedEvent {
    pub event_id: String,
    /// State: `retrying`, `dead`, `published` or `discarded`; in an inbox `done`, `late`, `retrying`,
    /// `dead` or `discarded`.
    pub status: String,
    pub attempts: u32,
    /// Position in the WAL of the end of its transaction.
    pub commit_lsn: Option<String>,
    /// Index of its row within the transaction, from 0.
    pub tx_index: Option<u32>,
    /// Full name of the topic.
    pub topic: Option<String>,
    pub ordering_key: String,
    pub event_type: Option<String>,
    pub version: Option<i64>,
    /// Whether later events of its key wait for it.
    pub holds_its_key: Option<bool>,
    /// RFC 3339 time of the next attempt.
    pub next_attempt_at: Option<String>,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The last errors, the latest in the first line.
    pub last_error: Option<String>,
    /// Id of the message at Pub/Sub.
    pub message_id: Option<String>,
    pub message_bytes: u64,
    /// RFC 3339 time at which the event occurred.
    pub occurred_at: Option<String>,
    /// RFC 3339 time at which the event was recorded here.
    pub recorded_at: String,
    /// RFC 3339 time of the last change.
    pub updated_at: Option<String>,
    /// RFC 3339 time at which the event was completed.
    pub done_at: Option<String>,
    /// Whether only an edit can complete the event.
    #[serde(skip)]
    pub needs_edit: bool,
}

impl FailedEvent {
    pub(crate) fn position(&self) -> Option<Position> {
        let commit_lsn = self.commit_lsn.as_ref()?.parse().ok()?;
        Some(Position { commit_lsn, tx_index: self.tx_index? })
    }

    /// Returns the begin of the next page.
    pub(crate) fn begin(&self) -> PageBegin {
        PageBegin { position: self.position(), event_id: Some(self.event_id.clone()) }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct EventDetail {
    #[serde(flatten)]
    pub event: FailedEvent,
    /// The message. None if it is not stored, or cannot be decoded.
    pub message: Option<EventMessage>,
}

#[derive(Debug, Serialize)]
pub(crate) struct EventMessage {
    pub attributes: BTreeMap<String, String>,
    pub ordering_key: String,
    /// The payload: JSON, a string, or an object with the size of binary data. Null if it was too
    /// large to be recorded.
    pub data: Box<RawValue>,
    pub lacks: Vec<MissingPart>,
}

/// A part of a message that was too large to be recorded.
#[derive(Debug, Serialize)]
pub(crate) struct MissingPart {
    /// `topic`, `ordering_key`, `attributes` or `data`.
    pub part: &'static str,
    pub bytes: usize,
}

/// Where a page starts: behind this event.
#[derive(Debug, Clone)]
pub(crate) struct PageBegin {
    /// Its position in the WAL. Only events that walrelay has published have one.
    pub position: Option<Position>,
    /// Its id. None starts the page after all events of the position.
    pub event_id: Option<String>,
}

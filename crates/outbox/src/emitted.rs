//! What a producer learns about the event of an idempotency key.

/// The result of [`emit_once`](crate::emit_once()).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// Id of the event, as text.
    pub event_id: String,
    /// Version of the event within its aggregate.
    pub version: i64,
    /// Whether this call wrote the event. If not, the caller must roll its own change back.
    pub is_new: bool,
}

//! The names of a message's attributes.
//!
//! A name is a promise to every consumer: changing one breaks them all.

/// The outbox row's id, by which a consumer recognises a duplicate.
pub const EVENT_ID: &str = "event_id";
/// What happened.
pub const EVENT_TYPE: &str = "event_type";
/// Type of the aggregate.
pub const AGGREGATE_TYPE: &str = "aggregate_type";
/// Id of the aggregate.
pub const AGGREGATE_ID: &str = "aggregate_id";
/// Increases within one aggregate.
pub const VERSION: &str = "version";
/// Version of the payload's shape.
pub const SCHEMA_VERSION: &str = "schema_version";
/// When it happened: RFC 3339, UTC, microseconds.
pub const OCCURRED_AT: &str = "occurred_at";
/// The outbox table, `schema.table`: tells apart rows of two tables that use equal ids.
pub const SOURCE: &str = "source";

/// First half of the position, in every style: an [`Lsn`](crate::Lsn) as text.
pub const COMMIT_LSN: &str = "commit_lsn";
/// Second half of the position, in every style: a decimal number from 0.
pub const TX_INDEX: &str = "tx_index";
/// Whose log a position is of, where the relay was asked to write it: system identifier and timeline of the
/// producer's server. Consumers compare positions only where it is equal.
pub const SYSTEM_IDENTIFIER: &str = "system_identifier";
/// Which explicit replay sent this copy; missing on messages of the stream.
pub const REPLAY_ID: &str = "replay_id";

/// Every name that the relay writes itself, in either style of attributes. Only the relay gives them a value: a
/// consumer trusts them.
pub const OURS: [&str; 19] = [
    EVENT_ID,
    EVENT_TYPE,
    AGGREGATE_TYPE,
    AGGREGATE_ID,
    VERSION,
    SCHEMA_VERSION,
    OCCURRED_AT,
    SOURCE,
    COMMIT_LSN,
    TX_INDEX,
    SYSTEM_IDENTIFIER,
    REPLAY_ID,
    cloudevents::SPEC_VERSION,
    cloudevents::ID,
    cloudevents::TYPE,
    cloudevents::SOURCE,
    cloudevents::SUBJECT,
    cloudevents::TIME,
    cloudevents::CONTENT_TYPE,
];

/// Whether only the relay may give this attribute a value, whatever style it writes.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    OURS.contains(&name)
}

/// The W3C trace context, when the headers column brings one.
pub const TRACEPARENT: &str = "traceparent";
/// The same again, where Google's client libraries look for it; the service ignores both.
pub const GOOGCLIENT_TRACEPARENT: &str = "googclient_traceparent";

/// Names that begin so are reserved by Pub/Sub.
pub const RESERVED_PREFIX: &str = "goog";
/// But those that begin so, which Google's client libraries send.
pub const GOOGCLIENT_PREFIX: &str = "googclient_";

/// The CloudEvents 1.0 binding of Pub/Sub, binary mode. What it has no name for keeps ours: position,
/// [`AGGREGATE_TYPE`], [`VERSION`], [`SCHEMA_VERSION`], [`REPLAY_ID`].
pub mod cloudevents {
    /// The binding's version; always `1.0`.
    pub const SPEC_VERSION: &str = "ce-specversion";
    /// As [`EVENT_ID`](super::EVENT_ID).
    pub const ID: &str = "ce-id";
    /// As [`EVENT_TYPE`](super::EVENT_TYPE).
    pub const TYPE: &str = "ce-type";
    /// Who sent it: the outbox table, or what the operator named.
    pub const SOURCE: &str = "ce-source";
    /// As [`AGGREGATE_ID`](super::AGGREGATE_ID).
    pub const SUBJECT: &str = "ce-subject";
    /// As [`OCCURRED_AT`](super::OCCURRED_AT).
    pub const TIME: &str = "ce-time";
    /// Media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
}

//! The names of a message's attributes.
//!
//! A name is a promise to every consumer: changing a name breaks all of them.

/// The outbox row's id. Consumers recognise duplicates by it.
pub const EVENT_ID: &str = "event_id";
/// The kind of event, as in `OrderPlaced`.
pub const EVENT_TYPE: &str = "event_type";
/// The kind of aggregate, which the default template makes the topic.
pub const AGGREGATE_TYPE: &str = "aggregate_type";
/// The aggregate, which the default template makes the ordering key.
pub const AGGREGATE_ID: &str = "aggregate_id";
/// The version, which increases within one aggregate.
pub const VERSION: &str = "version";
/// The version of the payload's form.
pub const SCHEMA_VERSION: &str = "schema_version";
/// The time of the event: RFC 3339, UTC, microseconds.
pub const OCCURRED_AT: &str = "occurred_at";
/// The outbox table, `schema.table`. Distinguishes rows of two tables with equal ids.
pub const SOURCE: &str = "source";

/// First half of the position, in every style: an [`Lsn`](crate::Lsn) as text.
pub const COMMIT_LSN: &str = "commit_lsn";
/// Second half of the position, in every style: a decimal number from 0.
pub const TX_INDEX: &str = "tx_index";
/// The system identifier and timeline of the producer's server, if the relay is configured to write
/// them. Consumers compare two positions only if this value is equal.
pub const SYSTEM_IDENTIFIER: &str = "system_identifier";
/// The id of the explicit replay that sent this copy. Absent on messages of the stream.
pub const REPLAY_ID: &str = "replay_id";

/// Attributes of the stream that a row of the outbox table does not have.
pub const POSITION_NAMES: [&str; 3] = [COMMIT_LSN, TX_INDEX, SYSTEM_IDENTIFIER];

/// Every name that the relay writes itself, in either attribute style. Consumers trust these
/// attributes, so only the relay may set them.
pub const RESERVED_NAMES: [&str; 19] = [
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

/// Whether only the relay may set this attribute, in any attribute style.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    RESERVED_NAMES.contains(&name)
}

/// The W3C trace context, if the headers column contains one.
pub const TRACEPARENT: &str = "traceparent";
/// A copy of the trace context for Google's client libraries. The service ignores both attributes.
pub const GOOGCLIENT_TRACEPARENT: &str = "googclient_traceparent";

/// The prefix of the names that Pub/Sub reserves.
pub const RESERVED_PREFIX: &str = "goog";
/// The prefix of the reserved names that Google's client libraries may send.
pub const GOOGCLIENT_PREFIX: &str = "googclient_";

/// The CloudEvents 1.0 binding of Pub/Sub, binary mode.
///
/// Fields without a CloudEvents name keep the default name: position, [`AGGREGATE_TYPE`],
/// [`VERSION`], [`SCHEMA_VERSION`], [`REPLAY_ID`].
pub mod cloudevents {
    /// The version of the binding, always `1.0`.
    pub const SPEC_VERSION: &str = "ce-specversion";
    /// Same value as [`EVENT_ID`](super::EVENT_ID).
    pub const ID: &str = "ce-id";
    /// Same value as [`EVENT_TYPE`](super::EVENT_TYPE).
    pub const TYPE: &str = "ce-type";
    /// The source of the event: the outbox table, or the text that the operator configured.
    pub const SOURCE: &str = "ce-source";
    /// Same value as [`AGGREGATE_ID`](super::AGGREGATE_ID).
    pub const SUBJECT: &str = "ce-subject";
    /// Same value as [`OCCURRED_AT`](super::OCCURRED_AT).
    pub const TIME: &str = "ce-time";
    /// The media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
}

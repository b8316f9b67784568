//! An event, read from a message of the relay or of another publisher.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use walrelay_envelope::Lsn;
use walrelay_envelope::attribute::{self, cloudevents};
use walrelay_pubsub::{MessageRef, parse_rfc3339, time_at};

use crate::attributes::{Attributes, Pairs};

/// The memory of a held message in addition to its contents: names, queues, its entries in three
/// maps.
const OVERHEAD_BYTES: usize = 1024;

/// An event. Values that the message lacks, or that have an unknown form, are `None`. The
/// attributes are complete and unchanged.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// The event's id, or the message's id if the attributes have none.
    pub event_id: String,
    /// The type of the event.
    pub event_type: Option<String>,
    /// The type of the aggregate.
    pub aggregate_type: Option<String>,
    /// The id of the aggregate.
    pub aggregate_id: Option<String>,
    /// The ordering key. Empty: the event has no order.
    pub ordering_key: String,
    /// The version, which increases within an aggregate.
    pub version: Option<i64>,
    /// The version of the payload's schema.
    pub schema_version: Option<i32>,
    /// The time at which the event occurred.
    pub occurred_at: Option<SystemTime>,
    /// The commit LSN, the first half of the position.
    pub commit_lsn: Option<Lsn>,
    /// The index in the transaction, the second half of the position. Present only with
    /// `commit_lsn`.
    pub tx_index: Option<i32>,
    /// The system identifier of the producer's server, if the message carries one.
    pub system_identifier: Option<String>,
    /// Pub/Sub's id of the message.
    pub message_id: String,
    /// The time at which Pub/Sub stored the message.
    pub publish_time: Option<SystemTime>,
    /// All attributes of the message.
    pub attributes: Attributes,
    /// The payload.
    pub data: Bytes,
}

impl Event {
    /// Reads a message.
    #[must_use]
    pub fn of_message(message: MessageRef<'_>) -> Self {
        let MessageRef { data, attributes, message_id, publish_time, ordering_key } = message;
        let attributes = Pairs::of(attributes);
        let commit_lsn: Option<Lsn> = number(&attributes, attribute::COMMIT_LSN);
        let tx_index: Option<i32> = number(&attributes, attribute::TX_INDEX);
        let position = commit_lsn.zip(tx_index.filter(|index| *index >= 0));
        let description = EventFields::of(&attributes);
        Self {
            event_id: text(&attributes, &[attribute::EVENT_ID, cloudevents::ID])
                .unwrap_or_else(|| storable(message_id)),
            event_type: description.event_type,
            aggregate_type: description.aggregate_type,
            aggregate_id: description.aggregate_id,
            ordering_key: storable(ordering_key),
            version: description.version,
            schema_version: description.schema_version,
            occurred_at: description.occurred_at,
            commit_lsn: position.map(|(lsn, _)| lsn),
            tx_index: position.map(|(_, index)| index),
            system_identifier: text(&attributes, &[attribute::SYSTEM_IDENTIFIER]),
            message_id: storable(message_id),
            publish_time: publish_time.and_then(|(seconds, nanos)| time_at(seconds, nanos)),
            attributes: Attributes::of_pairs(&attributes),
            data: Bytes::copy_from_slice(data),
        }
    }

    /// Returns the W3C trace context of the publisher, in the attribute of the relay or of Google's
    /// clients.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        let names = [attribute::TRACEPARENT, attribute::GOOGCLIENT_TRACEPARENT];
        names.into_iter().find_map(|name| self.attributes.plain(name))
    }

    /// Returns the bytes that count against the budget.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let attributes = self.attributes.as_json().len();
        OVERHEAD_BYTES + self.data.len() + self.ordering_key.len() + attributes
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The payload, the key and the attributes are left out, because this text may be logged.
        f.debug_struct("Event")
            .field("event_id", &self.event_id)
            .field("event_type", &self.event_type)
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}

/// The fields that attributes describe, without the event's identity.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EventFields {
    /// The event type.
    pub event_type: Option<String>,
    /// The aggregate type.
    pub aggregate_type: Option<String>,
    /// The aggregate id.
    pub aggregate_id: Option<String>,
    /// The version of the aggregate.
    pub version: Option<i64>,
    /// The version of the schema.
    pub schema_version: Option<i32>,
    /// The time at which the event occurred.
    pub occurred_at: Option<SystemTime>,
}

impl EventFields {
    /// Reads all attributes of an event.
    #[must_use]
    pub fn of_map(attributes: &BTreeMap<String, String>) -> Self {
        Self::of(&attributes.into())
    }

    /// Reads the relay's or the CloudEvents style of attributes.
    pub(crate) fn of(attributes: &Pairs<'_>) -> Self {
        let occurred_at = attributes
            .get(attribute::OCCURRED_AT)
            .or_else(|| attributes.get(cloudevents::TIME))
            .and_then(parse_rfc3339);
        Self {
            event_type: text(attributes, &[attribute::EVENT_TYPE, cloudevents::TYPE]),
            aggregate_type: text(attributes, &[attribute::AGGREGATE_TYPE]),
            aggregate_id: text(attributes, &[attribute::AGGREGATE_ID, cloudevents::SUBJECT]),
            version: number(attributes, attribute::VERSION),
            schema_version: number(attributes, attribute::SCHEMA_VERSION),
            occurred_at,
        }
    }
}

fn text(attributes: &Pairs<'_>, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| attributes.get(name));
    found.filter(|value| !value.is_empty()).map(storable)
}

fn number<N: std::str::FromStr>(attributes: &Pairs<'_>, name: &str) -> Option<N> {
    attributes.get(name)?.parse().ok()
}

/// Replaces NUL, the only character that Postgres' `text` cannot store. A NUL must not make a batch
/// unreadable. The rest of the text keeps the value distinct.
fn storable(text: &str) -> String {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}"),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(attributes: &[(&str, &str)]) -> Event {
        Event::of_message(MessageRef {
            data: b"{}",
            attributes: attributes.to_vec(),
            message_id: "m-1",
            publish_time: None,
            ordering_key: "key\0",
        })
    }

    #[test]
    fn both_styles_of_attributes_are_read() {
        let event = of(&[
            ("event_id", "e-1"),
            ("event_type", "paid"),
            ("aggregate_id", "A-17"),
            ("version", "7"),
            ("commit_lsn", "16/B374D848"),
            ("tx_index", "3"),
            ("occurred_at", "2023-11-14T22:13:20Z"),
        ]);
        assert_eq!(event.event_id, "e-1");
        assert_eq!((event.version, event.tx_index), (Some(7), Some(3)));
        assert_eq!(event.commit_lsn.map(|lsn| lsn.to_string()).as_deref(), Some("16/B374D848"));
        assert_eq!(event.occurred_at, time_at(1_700_000_000, 0));
        let cloud = [("ce-id", "c-1"), ("ce-type", "paid"), ("ce-subject", "A-17")];
        let from_cloud = of(&cloud);
        assert_eq!(from_cloud.event_id, "c-1");
        assert_eq!(from_cloud.event_type.as_deref(), Some("paid"));
        assert_eq!(from_cloud.aggregate_id.as_deref(), Some("A-17"));
    }

    #[test]
    fn a_trace_context_is_read_under_either_name() {
        let traceparent =
            |attributes: &[(&str, &str)]| of(attributes).traceparent().map(ToOwned::to_owned);
        assert_eq!(traceparent(&[("event_id", "e-1")]), None);
        assert_eq!(traceparent(&[("googclient_traceparent", "00-1")]).as_deref(), Some("00-1"));
        let both = [("googclient_traceparent", "00-1"), ("traceparent", "00-2")];
        assert_eq!(traceparent(&both).as_deref(), Some("00-2"));
    }

    #[test]
    fn a_message_of_somebody_else_has_its_message_id_and_no_position() {
        let event = of(&[("commit_lsn", "16/B374D848"), ("version", "x")]);
        assert_eq!(event.event_id, "m-1");
        assert_eq!((event.commit_lsn, event.tx_index, event.version), (None, None, None));
        assert!(!event.ordering_key.contains('\0'), "Postgres cannot hold it");
    }

    #[test]
    fn debug_shows_neither_payload_nor_key() {
        let shown = format!("{:?}", of(&[("secret", "hunter2")]));
        assert!(!shown.contains("hunter2") && !shown.contains("key"), "{shown}");
    }
}

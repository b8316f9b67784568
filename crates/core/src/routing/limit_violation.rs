//! Checks an encoded message, such as one that an operator edited, against the limits of Pub/Sub.
//!
//! The router checks a row while it builds the message. This module checks any message by the same
//! limits.

use walrelay_envelope::attribute::{GOOGCLIENT_PREFIX, RESERVED_PREFIX};

use crate::fault::Fault;
use crate::limits::is_topic_name;
use crate::message::Message;
use crate::routing::attributes::{fault_of_attribute, fault_of_count};
use crate::routing::router::{fault_of_key, fault_of_size};

/// The first part of a message that Pub/Sub would refuse, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitViolation {
    /// The part to change.
    pub part: Part,
    /// The reason.
    pub fault: Fault,
}

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The topic.
    Topic,
    /// The ordering key.
    OrderingKey,
    /// The attributes.
    Attributes,
    /// The payload. Also used if all parts together are too large.
    Payload,
}

impl LimitViolation {
    /// Finds the first part of `message` that Pub/Sub would refuse.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        let of = |part| move |fault| Self { part, fault };
        let topic = message.topic();
        let nowhere = || Fault::Topic { name: topic.to_string() };
        (!is_topic_name(topic))
            .then(nowhere)
            .map(of(Part::Topic))
            .or_else(|| fault_of_key(message.ordering_key()).map(of(Part::OrderingKey)))
            .or_else(|| fault_of_attributes(message).map(of(Part::Attributes)))
            .or_else(|| fault_of_size(message).map(of(Part::Payload)))
            .or_else(|| fault_of_nothing(message).map(of(Part::Payload)))
    }
}

fn fault_of_attributes(message: &Message) -> Option<Fault> {
    let each = || {
        message.attributes().find_map(|(name, value)| {
            if name.is_empty() {
                return Some(Fault::Headers("an attribute has no name".to_owned()));
            }
            if name.starts_with(RESERVED_PREFIX) && !name.starts_with(GOOGCLIENT_PREFIX) {
                let text =
                    format!("\"{name}\": names starting with \"{RESERVED_PREFIX}\" are reserved");
                return Some(Fault::Headers(text));
            }
            fault_of_attribute(name, value.len())
        })
    };
    fault_of_count(message.attributes().count()).or_else(each)
}

fn fault_of_nothing(message: &Message) -> Option<Fault> {
    let is_nothing = message.data().is_empty() && message.attributes().next().is_none();
    is_nothing.then_some(Fault::Nothing)
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Lsn, Position};

    use super::*;
    use crate::limits::{ATTRIBUTES_MAX, ORDERING_KEY_BYTES_MAX, REQUEST_BYTES_MAX};
    use crate::routing::wire;
    use walrelay_protobuf::put_field;

    const TOPIC: &str = "projects/p/topics/orders.events";

    fn misfit(
        topic: &str,
        data: usize,
        attributes: &[(&str, &str)],
        key: &str,
    ) -> Option<LimitViolation> {
        let mut body = Vec::new();
        if data > 0 {
            put_field(&mut body, wire::MESSAGE_DATA, &vec![b'x'; data]);
        }
        for (name, value) in attributes {
            let mut entry = Vec::new();
            put_field(&mut entry, wire::ENTRY_KEY, name.as_bytes());
            put_field(&mut entry, wire::ENTRY_VALUE, value.as_bytes());
            put_field(&mut body, wire::MESSAGE_ATTRIBUTES, &entry);
        }
        put_field(&mut body, wire::MESSAGE_ORDERING_KEY, key.as_bytes());
        let position = Position { commit_lsn: Lsn::new(9), tx_index: 0 };
        LimitViolation::of(&Message::from_encoded(topic.into(), position, "e-1", &body).unwrap())
    }

    #[test]
    fn what_pubsub_would_refuse_of_a_message_is_told_with_the_part_to_change() {
        let longest = "k".repeat(ORDERING_KEY_BYTES_MAX);
        assert_eq!(misfit(TOPIC, 1, &[("a", &longest)], &longest), None);
        assert_eq!(misfit(TOPIC, 1, &[("googclient_traceparent", "00-1")], ""), None);
        let long = format!("{longest}k");
        let names: Vec<String> = (0..=ATTRIBUTES_MAX).map(|number| format!("n{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        let cases = [
            (misfit("projects/p/topics/a b", 1, &[], ""), Part::Topic, "is no topic name"),
            (misfit(TOPIC, 1, &[], &long), Part::OrderingKey, "the ordering key in bytes is 1025"),
            (
                misfit(TOPIC, 1, &[("a", &long)], ""),
                Part::Attributes,
                "attribute \"a\" in bytes is 1025",
            ),
            (misfit(TOPIC, 1, &[(&long, "")], ""), Part::Attributes, "name in bytes is 1025"),
            (misfit(TOPIC, 1, &[("", "v")], ""), Part::Attributes, "has no name"),
            (misfit(TOPIC, 1, &[("goog_x", "v")], ""), Part::Attributes, "are reserved"),
            (misfit(TOPIC, 1, &many, ""), Part::Attributes, "number of attributes is 101"),
            (misfit(TOPIC, REQUEST_BYTES_MAX, &[], ""), Part::Payload, "the message in bytes"),
            (misfit(TOPIC, 0, &[], "k"), Part::Payload, "neither data nor attributes"),
        ];
        for (found, part, told) in cases {
            let found = found.unwrap_or_else(|| panic!("{told}"));
            assert_eq!(found.part, part, "{told}");
            assert!(found.fault.to_string().contains(told), "{}", found.fault);
        }
    }
}

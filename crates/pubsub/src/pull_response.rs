//! The responses of a streaming pull, read without copying each part.
//!
//! A message has a dozen attributes, and a generated type would allocate two strings for each.
//! Here, a message stays encoded until it is read, and is then read in place.
//!
//! Source: google/pubsub/v1/pubsub.proto, `StreamingPullResponse`, `ReceivedMessage`,
//! `PubsubMessage`.

use bytes::Bytes;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::streaming_pull_response::{
    AcknowledgeConfirmation, ModifyAckDeadlineConfirmation,
};
use prost::Message as _;
use walrelay_protobuf::{Fields, Value};

/// Fields of a message.
const DATA: u64 = 1;
const ATTRIBUTES: u64 = 2;
const MESSAGE_ID: u64 = 3;
const PUBLISH_TIME: u64 = 4;
const ORDERING_KEY: u64 = 5;
/// Fields of an attribute entry.
const NAME: u64 = 1;
const VALUE: u64 = 2;
/// Fields of a timestamp.
const SECONDS: u64 = 1;
const NANOS: u64 = 2;

/// As many attributes as the relay writes, and a few headers.
const ATTRIBUTES_EXPECTED: usize = 16;

/// A `StreamingPullResponse`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct Delivered {
    /// The messages, each encoded, so that a malformed one spoils no other.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    messages: Vec<Bytes>,
    /// The answer to acknowledgements, for a subscription with exactly-once delivery.
    #[prost(message, optional, tag = "5")]
    pub acknowledge_confirmation: Option<AcknowledgeConfirmation>,
    /// The answer to deadline changes, for a subscription with exactly-once delivery.
    #[prost(message, optional, tag = "3")]
    pub modify_ack_deadline_confirmation: Option<ModifyAckDeadlineConfirmation>,
}

impl Delivered {
    /// Returns the messages, in order for each ordering key.
    pub fn messages(&self) -> impl Iterator<Item = Result<ReceivedMessage, MalformedMessage>> {
        let read = |bytes: &Bytes| ReceivedMessage::decode(bytes.clone());
        self.messages.iter().map(move |bytes| read(bytes).map_err(|_| MalformedMessage))
    }
}

impl std::fmt::Debug for Delivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the messages, because this text may be logged.
        f.debug_struct("Delivered").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// A message and the id of its delivery.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct ReceivedMessage {
    /// The id by which the message is acknowledged.
    #[prost(string, tag = "1")]
    pub ack_id: String,
    /// A slice of the whole response, which stays in memory as long as this slice.
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
}

/// The bytes are not a delivery of a `PubsubMessage`, or the message has no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message was delivered that cannot be read")]
pub struct MalformedMessage;

impl ReceivedMessage {
    /// Reads the message.
    pub fn message(&self) -> Result<MessageRef<'_>, MalformedMessage> {
        MessageRef::of(&self.message)
    }
}

impl std::fmt::Debug for ReceivedMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the payload and the attributes, because this text may be logged.
        f.debug_struct("ReceivedMessage").field("ack_id", &self.ack_id).finish_non_exhaustive()
    }
}

/// A `PubsubMessage` that borrows its encoded bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct MessageRef<'a> {
    /// The payload.
    pub data: &'a [u8],
    /// Names and values in the order received. If a name occurs more than once, the last value
    /// counts.
    pub attributes: Vec<(&'a str, &'a str)>,
    /// The id that the service assigned.
    pub message_id: &'a str,
    /// The time at which the service stored the message: seconds since 1970 and nanoseconds.
    pub publish_time: Option<(i64, i32)>,
    /// The ordering key, empty for messages without order.
    pub ordering_key: &'a str,
}

impl<'a> MessageRef<'a> {
    /// Reads an encoded `PubsubMessage`.
    pub fn of(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        Self::read(bytes).ok_or(MalformedMessage)
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let attributes = Vec::with_capacity(ATTRIBUTES_EXPECTED);
        let mut message = Self { attributes, ..Self::default() };
        for field in Fields::of(bytes) {
            match field.ok()? {
                (DATA, Value::Bytes(data)) => message.data = data,
                (ATTRIBUTES, Value::Bytes(entry)) => message.attributes.push(attribute(entry)?),
                (MESSAGE_ID, Value::Bytes(id)) => message.message_id = text(id)?,
                (PUBLISH_TIME, Value::Bytes(time)) => message.publish_time = Some(timestamp(time)?),
                (ORDERING_KEY, Value::Bytes(key)) => message.ordering_key = text(key)?,
                (_, Value::Bytes(_) | Value::Number(_) | Value::Fixed(_)) => {}
            }
        }
        // The service assigns an id to every message.
        (!message.message_id.is_empty()).then_some(message)
    }
}

impl std::fmt::Debug for MessageRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageRef").field("message_id", &self.message_id).finish_non_exhaustive()
    }
}

fn attribute(entry: &[u8]) -> Option<(&str, &str)> {
    let (mut name, mut value) = ("", "");
    for field in Fields::of(entry) {
        match field.ok()? {
            (NAME, Value::Bytes(bytes)) => name = text(bytes)?,
            (VALUE, Value::Bytes(bytes)) => value = text(bytes)?,
            (_, Value::Bytes(_) | Value::Number(_) | Value::Fixed(_)) => {}
        }
    }
    Some((name, value))
}

fn timestamp(bytes: &[u8]) -> Option<(i64, i32)> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields::of(bytes) {
        match field.ok()? {
            (SECONDS, Value::Number(number)) => seconds = number.cast_signed(),
            (NANOS, Value::Number(number)) => nanos = i32::try_from(number.cast_signed()).ok()?,
            (_, Value::Bytes(_) | Value::Number(_) | Value::Fixed(_)) => {}
        }
    }
    Some((seconds, nanos))
}

fn text(content: &[u8]) -> Option<&str> {
    std::str::from_utf8(content).ok()
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;

    use super::*;

    fn message() -> proto::PubsubMessage {
        let attributes = [("name", "value"), ("empty", ""), ("é", "\u{1f600}\"")];
        proto::PubsubMessage {
            data: Bytes::from_static(b"\0{}\xff"),
            attributes: attributes.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            message_id: "m-1".into(),
            publish_time: Some(prost_types::Timestamp { seconds: -5, nanos: 999_999_999 }),
            ordering_key: "key".into(),
        }
    }

    #[test]
    fn a_response_is_read_as_the_generated_types_write_it() {
        let received = |ack_id: &str, message| proto::ReceivedMessage {
            ack_id: ack_id.into(),
            message,
            delivery_attempt: 5,
        };
        let confirmation = proto::streaming_pull_response::AcknowledgeConfirmation {
            invalid_ack_ids: vec!["gone".into()],
            ..Default::default()
        };
        let response = proto::StreamingPullResponse {
            received_messages: vec![received("a-1", Some(message())), received("a-2", None)],
            acknowledge_confirmation: Some(confirmation.clone()),
            subscription_properties: Some(Default::default()),
            ..Default::default()
        };
        let read = Delivered::decode(&*response.encode_to_vec()).unwrap();
        assert_eq!(read.acknowledge_confirmation, Some(confirmation));
        assert_eq!(read.modify_ack_deadline_confirmation, None);
        let messages: Vec<_> = read.messages().collect();
        let [Ok(first), Ok(second)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((&*first.ack_id, &*second.ack_id), ("a-1", "a-2"));
        let message = first.message().unwrap();
        assert_eq!((message.data, message.message_id), (&b"\0{}\xff"[..], "m-1"));
        assert_eq!((message.publish_time, message.ordering_key), (Some((-5, 999_999_999)), "key"));
        let expected = [("empty", ""), ("name", "value"), ("é", "\u{1f600}\"")];
        assert_eq!(message.attributes, expected);
        assert_eq!(second.message(), Err(MalformedMessage), "there is none");
        let shown = format!("{messages:?} {message:?}");
        assert!(!shown.contains("value") && !shown.contains("key"), "{shown}");
    }

    #[test]
    fn a_malformed_message_spoils_no_other_of_its_response() {
        let sound = proto::ReceivedMessage {
            ack_id: "a-1".into(),
            message: Some(message()),
            delivery_attempt: 0,
        };
        let sound = Bytes::from(sound.encode_to_vec());
        let broken: [&'static [u8]; 3] = [&[0x0A, 1, 0xFF], &[0x0A, 9, b'a'], &[0x0B]];
        let messages = broken.into_iter().map(Bytes::from_static).chain([sound]);
        let response = Delivered { messages: messages.collect(), ..Delivered::default() };
        let read = Delivered::decode(&*response.encode_to_vec()).unwrap();
        let ack_ids: Vec<_> = read.messages().map(|it| it.map(|it| it.ack_id)).collect();
        let bad = || Err(MalformedMessage);
        assert_eq!(ack_ids, [bad(), bad(), bad(), Ok("a-1".to_owned())]);
    }

    #[test]
    fn no_cut_of_a_message_panics_or_is_read_beyond_its_end() {
        let whole = message().encode_to_vec();
        assert!(MessageRef::of(&whole).is_ok());
        let mut readable = 0;
        for end in 0..whole.len() {
            if let Ok(message) = MessageRef::of(&whole[..end]) {
                readable += 1;
                assert!(message.attributes.len() <= 3);
            }
        }
        // Readable cuts end between two fields, after the id.
        assert_eq!(readable, 2);
    }

    #[test]
    fn what_is_no_text_or_no_time_is_unreadable() {
        for bytes in [
            &[0x1A, 1, 0xFF][..],
            &[0x12, 3, 0x0A, 1, 0xFF],
            &[0x22, 6, 0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
            &[0x0B],
            &[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
        ] {
            assert_eq!(MessageRef::of(bytes), Err(MalformedMessage), "{bytes:?}");
        }
    }
}

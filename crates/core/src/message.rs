//! A row on its way to Pub/Sub, encoded once, when it is routed.
//!
//! Retries and parking reuse the same bytes. One allocation holds everything:
//!
//! ```text
//! event id │ 0x12, varint length │ PubsubMessage (google/pubsub/v1/pubsub.proto)
//!          └────────── one entry of PublishRequest.messages (field 2) ──────────┘
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pgoutput_parser::Position;
use walrelay_envelope::attribute;
use walrelay_protobuf::{Malformed, header_len, put_header};

use crate::routing::wire;

/// The full name of a topic, `projects/P/topics/T`. Cheap to clone.
pub type Topic = Arc<str>;

/// One message, ready to be published.
pub struct Message {
    topic: Topic,
    position: Position,
    buffer: Box<[u8]>,
    event_id_len: u32,
    header_len: u32,
    ordering_key: Range<u32>,
}

impl Message {
    /// Creates a message from an encoded `PubsubMessage`, as dispatch state stores it.
    pub fn from_encoded(
        topic: Topic,
        position: Position,
        event_id: &str,
        body: &[u8],
    ) -> Result<Self, NotAMessage> {
        let ordering_key = wire::check(body).map_err(|Malformed| NotAMessage)?;
        Ok(Self::build(topic, position, event_id, body.len(), |buffer| {
            let start = buffer.len();
            buffer.extend_from_slice(body);
            start + ordering_key.start..start + ordering_key.end
        }))
    }

    /// Fills the buffer. `write_body` appends exactly `body_len` bytes and returns the range of the
    /// ordering key in the buffer.
    pub(crate) fn build(
        topic: Topic,
        position: Position,
        event_id: &str,
        body_len: usize,
        write_body: impl FnOnce(&mut Vec<u8>) -> Range<usize>,
    ) -> Self {
        let header_len = header_len(body_len);
        let mut buffer = Vec::with_capacity(event_id.len() + header_len + body_len);
        buffer.extend_from_slice(event_id.as_bytes());
        put_header(&mut buffer, wire::REQUEST_MESSAGES, body_len);
        let ordering_key = write_body(&mut buffer);
        assert_eq!(buffer.len(), event_id.len() + header_len + body_len, "body length was wrong");
        Self {
            topic,
            position,
            event_id_len: wire::offset(event_id.len()),
            header_len: wire::offset(header_len),
            ordering_key: wire::offset(ordering_key.start)..wire::offset(ordering_key.end),
            buffer: buffer.into_boxed_slice(),
        }
    }

    /// The topic that the message goes to.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The WAL position of the outbox row.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The outbox row's id, as text.
    #[must_use]
    pub fn event_id(&self) -> &str {
        self.text(0..self.event_id_len)
    }

    /// The ordering key. Empty means unordered.
    #[must_use]
    pub fn ordering_key(&self) -> &str {
        self.text(self.ordering_key.clone())
    }

    /// The message as an entry of `PublishRequest.messages`: field header and body.
    #[must_use]
    pub fn request_field(&self) -> &[u8] {
        &self.buffer[self.event_id_len as usize..]
    }

    /// The encoded `PubsubMessage`, as dispatch state stores it.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.buffer[(self.event_id_len + self.header_len) as usize..]
    }

    /// The attributes, in the order in which they were written.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields(wire::MESSAGE_ATTRIBUTES).filter_map(|entry| wire::attribute(entry).ok())
    }

    /// The value of one attribute. Cheaper than a search in [`attributes`](Self::attributes),
    /// because it does not read the values of other attributes.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.fields(wire::MESSAGE_ATTRIBUTES).find_map(|entry| wire::value_of(entry, name))
    }

    /// The event type among the attributes, under either of its names.
    #[must_use]
    pub fn event_type(&self) -> Option<&str> {
        self.attribute(attribute::EVENT_TYPE)
            .or_else(|| self.attribute(attribute::cloudevents::TYPE))
    }

    /// The payload, empty if there is none.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        // Protobuf lets the last occurrence of a field win.
        self.fields(wire::MESSAGE_DATA).last().unwrap_or_default()
    }

    /// The size in a request, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.request_field().len()
    }

    /// The contents of the body's fields with this number. [`Router`] wrote the body or
    /// [`from_encoded`](Self::from_encoded) checked it, so no field is malformed.
    ///
    /// [`Router`]: crate::Router
    fn fields(&self, number: u8) -> impl Iterator<Item = &[u8]> {
        let fields = wire::contents(self.body()).filter_map(Result::ok);
        fields.filter(move |(found, _)| *found == number).map(|(_, content)| content)
    }

    /// The memory that the budget counts, in bytes. It covers the message, a second copy in an
    /// outstanding request, and the surrounding structures.
    #[must_use]
    pub fn memory(&self) -> usize {
        2 * self.buffer.len() + Self::OVERHEAD
    }

    /// The fixed cost of a row: this struct, its queue entry, the allocator's rounding and, in the
    /// worst case, a lane of its own.
    const OVERHEAD: usize = 512;

    fn text(&self, range: Range<u32>) -> &str {
        let bytes = &self.buffer[range.start as usize..range.end as usize];
        // Both texts were `&str` when they were written. Only a bug above can make the result
        // empty.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// The bytes are not an encoded `PubsubMessage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored bytes are not an encoded PubsubMessage")]
pub struct NotAMessage;

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the payload and the key, because this text reaches logs.
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("position", &self.position)
            .field("event_id", &self.event_id())
            .field("bytes", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgoutput_parser::Lsn;

    fn message(body: &[u8]) -> Result<Message, NotAMessage> {
        let position = Position { commit_lsn: Lsn::new(9), tx_index: 0 };
        Message::from_encoded("projects/p/topics/t".into(), position, "e-1", body)
    }

    #[test]
    fn views_show_what_is_encoded() {
        let body = b"\x0A\x02hi\x12\x06\x0A\x01a\x12\x011\x12\x03\x0A\x01b\x2A\x02k1";
        let message = message(body).unwrap();
        assert_eq!(message.data(), b"hi");
        assert_eq!(message.attributes().collect::<Vec<_>>(), [("a", "1"), ("b", "")]);
        assert_eq!(
            ["a", "b", "c", ""].map(|name| message.attribute(name)),
            [Some("1"), Some(""), None, None]
        );
        assert_eq!(message.ordering_key(), "k1");
        assert_eq!(message.body(), body);
        assert_eq!(message.size(), body.len() + 2);
    }

    #[test]
    fn a_message_without_anything_has_empty_views() {
        let message = message(b"").unwrap();
        assert_eq!((message.data(), message.ordering_key()), (&b""[..], ""));
        assert_eq!(message.attributes().count(), 0);
    }

    #[test]
    fn bytes_whose_views_would_fail_are_no_message() {
        for body in [&b"\x12\x03\x0A\x01\xFF"[..], b"\x0A\x03hi", b"\x2A\x01\xFF"] {
            assert_eq!(message(body).err(), Some(NotAMessage), "{body:?}");
        }
    }
}

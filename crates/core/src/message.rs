//! A row on its way to Pub/Sub: encoded once, when it is routed.
//!
//! Retries and parking reuse the same bytes. One allocation holds everything:
//!
//! ```text
//! event id │ 0x12, varint length │ PubsubMessage (google/pubsub/v1/pubsub.proto)
//!          └──── as it stands in PublishRequest.messages (field 2) ────┘
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pgoutput_parser::Position;

/// Full name of a topic, `projects/P/topics/T`; cheap to clone.
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
    /// A message from a `PubsubMessage` already encoded.
    ///
    /// `ordering_key` must be the key inside `body` (or empty); it is kept beside the body here, so
    /// use it where a message is read back from dispatch state, not on the hot path.
    #[must_use]
    pub fn from_encoded(
        topic: Topic,
        position: Position,
        event_id: &str,
        ordering_key: &str,
        body: &[u8],
    ) -> Self {
        MessageBuffer::new(event_id, body.len())
            .body(|buffer| {
                buffer.extend_from_slice(body);
                find(body, ordering_key.as_bytes())
            })
            .finish(topic, position)
    }

    /// The topic it goes to.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Where its row lies in the log.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The outbox row's id, as text.
    #[must_use]
    pub fn event_id(&self) -> &str {
        self.text(0..self.event_id_len)
    }

    /// The ordering key; empty means unordered.
    #[must_use]
    pub fn ordering_key(&self) -> &str {
        self.text(self.ordering_key.clone())
    }

    /// The message as it stands in `PublishRequest.messages`: field header and body.
    #[must_use]
    pub fn request_field(&self) -> &[u8] {
        &self.buffer[self.event_id_len as usize..]
    }

    /// The encoded `PubsubMessage`, as dispatch state keeps it.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.buffer[(self.event_id_len + self.header_len) as usize..]
    }

    /// Bytes of memory it holds, for the budget: the buffer and what surrounds it.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.buffer.len() + Self::OVERHEAD
    }

    /// What a row costs beside its own bytes: this struct, its place in a lane, a lane of its own
    /// in the worst case, and the allocator's rounding.
    pub const OVERHEAD: usize = 512;

    fn text(&self, range: Range<u32>) -> &str {
        let bytes = &self.buffer[range.start as usize..range.end as usize];
        // Both texts were `&str` when they were written; empty is only reachable by a bug above.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the payload or the key: this reaches logs.
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("position", &self.position)
            .field("event_id", &self.event_id())
            .field("bytes", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

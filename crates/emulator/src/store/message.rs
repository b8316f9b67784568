//! A message as the service keeps it: the client's bytes, an id and a time.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};

use crate::wire::limits;
use crate::wire::protobuf::put_field;

/// A published message. Cheap to clone: the bytes are shared.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    id: u64,
    publish_time: SystemTime,
    ordering_key: Bytes,
    /// The `PubsubMessage` as the client encoded it.
    body: Bytes,
}

/// What a stored message costs beside its bytes: its place in a queue, a lease and a deadline.
const OVERHEAD: usize = 256;

impl StoredMessage {
    pub(crate) fn new(id: u64, publish_time: SystemTime, ordering_key: Bytes, body: Bytes) -> Self {
        Self { id, publish_time, ordering_key, body }
    }

    /// The id the service gave it; ids ascend in the order messages were stored.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// When it was stored.
    #[must_use]
    pub fn publish_time(&self) -> SystemTime {
        self.publish_time
    }

    /// Its ordering key; empty means unordered.
    #[must_use]
    pub fn key(&self) -> &str {
        std::str::from_utf8(&self.ordering_key).unwrap_or_default()
    }

    /// Its payload.
    #[must_use]
    pub fn data(&self) -> Bytes {
        self.body.slice_ref(limits::data(&self.body))
    }

    /// Its attributes, in the order the client sent them.
    #[must_use]
    pub fn attributes(&self) -> Vec<(&str, &str)> {
        limits::attributes(&self.body)
    }

    /// One attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        limits::attribute(&self.body, name)
    }

    /// The encoded `PubsubMessage` as the client sent it.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The same message with more attributes, under another id and time.
    pub(crate) fn forwarded(
        &self,
        id: u64,
        publish_time: SystemTime,
        attributes: &[(&str, &str)],
    ) -> Self {
        // Entries of a map may stand anywhere, and the last one of a name counts.
        let mut body = BytesMut::from(&self.body[..]);
        for (name, value) in attributes {
            let mut entry = BytesMut::new();
            put_field(&mut entry, 1, name.as_bytes());
            put_field(&mut entry, 2, value.as_bytes());
            put_field(&mut body, 2, &entry);
        }
        let ordering_key = self.ordering_key.clone();
        Self { id, publish_time, ordering_key, body: body.freeze() }
    }

    pub(crate) fn ordering_key(&self) -> &Bytes {
        &self.ordering_key
    }

    /// Memory it is counted with.
    pub(crate) fn cost(&self) -> usize {
        Self::cost_of(self.body.len())
    }

    pub(crate) fn cost_of(body_bytes: usize) -> usize {
        body_bytes + OVERHEAD
    }
}

//! A stored message: the client's bytes, an id and a time.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use walrelay_protobuf::put_field;

use crate::wire::limits;

/// A published message. Cheap to clone, because the bytes are shared.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    id: u64,
    publish_time: SystemTime,
    ordering_key: Bytes,
    /// The `PubsubMessage` as the client encoded it.
    body: Bytes,
}

/// The memory of a stored message in addition to its bytes: its entry in a queue, a lease and a
/// deadline.
const OVERHEAD: usize = 256;

impl StoredMessage {
    pub(crate) fn new(id: u64, publish_time: SystemTime, ordering_key: Bytes, body: Bytes) -> Self {
        Self { id, publish_time, ordering_key, body }
    }

    /// Returns the service's id. Ids ascend in the order of storage.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the time at which the message was stored.
    #[must_use]
    pub fn publish_time(&self) -> SystemTime {
        self.publish_time
    }

    /// Returns the ordering key. Empty means unordered.
    #[must_use]
    pub fn key(&self) -> &str {
        std::str::from_utf8(&self.ordering_key).unwrap_or_default()
    }

    #[must_use]
    pub fn data(&self) -> Bytes {
        self.body.slice_ref(limits::data(&self.body))
    }

    /// Returns the attributes, in the order in which the client sent them.
    #[must_use]
    pub fn attributes(&self) -> Vec<(&str, &str)> {
        limits::attributes(&self.body)
    }

    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        limits::attribute(&self.body, name)
    }

    /// Returns the encoded `PubsubMessage` as the client sent it.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns a copy with additional attributes and another id and time.
    pub(crate) fn forwarded(
        &self,
        id: u64,
        publish_time: SystemTime,
        attributes: &[(&str, &str)],
    ) -> Self {
        // The entries of a map may be anywhere in the message, and the last entry of a name counts.
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

    /// Returns the memory that the message counts for.
    pub(crate) fn cost(&self) -> usize {
        Self::cost_of(self.body.len())
    }

    pub(crate) fn cost_of(body_bytes: usize) -> usize {
        body_bytes + OVERHEAD
    }
}

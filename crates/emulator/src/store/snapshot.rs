//! A snapshot: a subscription's unacknowledged messages, and all later messages of its topic.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::store::message::StoredMessage;

/// The maximum time that a snapshot keeps a message.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// The minimum lifetime. A shorter-lived snapshot is refused.
const LIFETIME_MIN: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) config: proto::Snapshot,
    messages: BTreeMap<u64, StoredMessage>,
    bytes: usize,
}

impl Snapshot {
    /// Creates a snapshot of these unacknowledged messages. The oldest message determines the
    /// expiry.
    pub(crate) fn new(
        config: proto::Snapshot,
        messages: Vec<StoredMessage>,
        now: SystemTime,
    ) -> Result<Self, Status> {
        let oldest = messages.iter().map(StoredMessage::publish_time).min().unwrap_or(now);
        let expires = oldest + LIFETIME;
        if expires < now + LIFETIME_MIN {
            return Err(Status::failed_precondition(
                "the snapshot would expire within an hour: the oldest unacknowledged message is too \
                 old; acknowledge it first",
            ));
        }
        let config = proto::Snapshot { expire_time: Some(expires.into()), ..config };
        let mut snapshot = Self { config, messages: BTreeMap::new(), bytes: 0 };
        snapshot.offer(&messages);
        Ok(snapshot)
    }

    /// Adds messages that were published to the topic.
    pub(crate) fn offer(&mut self, messages: &[StoredMessage]) {
        for message in messages {
            self.bytes += message.cost();
            self.messages.insert(message.id(), message.clone());
        }
    }

    pub(crate) fn has_expired(&self, now: SystemTime) -> bool {
        let expires = self.config.expire_time.and_then(|time| SystemTime::try_from(time).ok());
        expires.is_some_and(|expires| expires <= now)
    }

    /// Returns the messages that a subscription delivers after a seek to this snapshot, by id.
    pub(crate) fn messages(&self) -> &BTreeMap<u64, StoredMessage> {
        &self.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn the_oldest_message_decides_how_long_a_snapshot_lives() {
        let day = Duration::from_secs(24 * 3600);
        let old = SystemTime::UNIX_EPOCH + day;
        let message = StoredMessage::new(1, old, Bytes::new(), Bytes::from_static(b"x"));
        let made = |now| Snapshot::new(proto::Snapshot::default(), vec![message.clone()], now);

        let snapshot = made(old + day).unwrap();
        assert_eq!(snapshot.config.expire_time, Some((old + 7 * day).into()));
        assert!(!snapshot.has_expired(old + 6 * day) && snapshot.has_expired(old + 7 * day));
        let refused = made(old + 7 * day - Duration::from_secs(3599)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        let empty = Snapshot::new(proto::Snapshot::default(), Vec::new(), old).unwrap();
        assert_eq!(empty.config.expire_time, Some((old + 7 * day).into()));
    }
}

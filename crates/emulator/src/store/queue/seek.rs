//! Seeking: replaces the set of unacknowledged messages.

use std::collections::{BTreeMap, HashMap};

use super::{LeasedMessage, Queue, Waiting};
use crate::store::message::StoredMessage;

impl Queue {
    /// Returns the unacknowledged messages, in no particular order.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = &StoredMessage> {
        let unkeyed = self.unkeyed.iter().map(|waiting| &waiting.message);
        let leased = self.leases.values().filter_map(|lease| match &lease.message {
            LeasedMessage::Unkeyed(waiting) => Some(&waiting.message),
            LeasedMessage::Keyed(_) => None,
        });
        let keyed = self.keys.values().flat_map(|key| {
            let out = key.leased.iter().filter(|its| its.is_open()).map(|its| &its.waiting);
            out.chain(&key.waiting).map(|waiting| &waiting.message)
        });
        unkeyed.chain(leased).chain(keyed)
    }

    /// Makes exactly the messages of `target` unacknowledged. All leases end and their ack ids
    /// become invalid. Leased messages are redelivered if they are in the target.
    pub(crate) fn seek(&mut self, target: BTreeMap<u64, StoredMessage>) {
        let mut attempts = HashMap::new();
        for waiting in self.take_everything() {
            let id = waiting.message.id();
            match target.contains_key(&id) {
                true => drop(attempts.insert(id, waiting.attempts)),
                false => self.retained.keep(waiting.message),
            }
        }
        for (id, message) in target {
            self.retained.remove(id);
            let attempts = attempts.remove(&id).unwrap_or_default();
            self.push_waiting(Waiting { message, attempts });
        }
    }

    fn take_everything(&mut self) -> Vec<Waiting> {
        let mut everything: Vec<Waiting> = self.unkeyed.drain(..).collect();
        for (_, lease) in self.leases.drain() {
            if let LeasedMessage::Unkeyed(waiting) = lease.message {
                everything.push(waiting);
            }
        }
        for (_, key) in self.keys.drain() {
            everything.extend(key.leased.into_iter().map(|leased| leased.waiting));
            everything.extend(key.waiting);
        }
        self.deadlines.clear();
        self.anybodys.clear();
        for usage in self.consumers.values_mut() {
            usage.release_all();
        }
        self.stored_bytes = 0;
        everything
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use tokio::time::Instant;

    use super::super::{Allowance, ConsumerId, ConsumerLifetime, Ordering};
    use super::*;
    use crate::store::retained::Retained;

    const ONE: ConsumerId = ConsumerId(1);

    fn message(id: u64, key: &'static str) -> StoredMessage {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(id);
        StoredMessage::new(id, time, Bytes::from_static(key.as_bytes()), Bytes::from_static(b"x"))
    }

    fn ids(messages: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut ids: Vec<u64> = messages.collect();
        ids.sort_unstable();
        ids
    }

    /// Returns messages 1 to 6, of two keys and of none. Messages 1, 2 and 5 are acknowledged, 3
    /// and 4 are leased.
    fn queue() -> (Queue, Vec<u64>) {
        let mut queue = Queue::new(Ordering::PerKey, Retained::new(Some(Duration::from_secs(99))));
        queue.open(ONE, ConsumerLifetime::Call, Allowance { messages: 5, bytes: usize::MAX });
        for (id, key) in [(1, "a"), (2, ""), (3, "a"), (4, ""), (5, "a"), (6, "b")] {
            queue.push(message(id, key));
        }
        let mut taken = queue.take(ONE, Instant::now());
        taken.sort_by_key(|delivery| delivery.message.id());
        let ack_ids: Vec<u64> = taken.iter().map(|delivery| delivery.ack_id).collect();
        for id in [1, 2, 5] {
            assert!(queue.acknowledge(ack_ids[id - 1]));
        }
        (queue, ack_ids)
    }

    fn take(queue: &mut Queue) -> Vec<u64> {
        queue.open(ONE, ConsumerLifetime::Call, Allowance { messages: 100, bytes: usize::MAX });
        queue.take(ONE, Instant::now()).iter().map(|delivery| delivery.message.id()).collect()
    }

    #[test]
    fn what_is_out_is_unacknowledged_and_what_is_acknowledged_out_of_order_is_not() {
        let (queue, _) = queue();
        assert_eq!(ids(queue.unacknowledged().map(StoredMessage::id)), [3, 4, 6]);
    }

    #[test]
    fn seeking_back_delivers_the_target_again_in_order_and_ends_all_leases() {
        let (mut queue, ack_ids) = queue();
        let cost = message(1, "").cost();
        let target = [(1, "a"), (2, ""), (3, "a"), (5, "a"), (6, "b")];
        queue.seek(target.map(|(id, key)| (id, message(id, key))).into());

        assert!(!queue.acknowledge(ack_ids[2]), "the lease has ended");
        let taken = take(&mut queue);
        let of_a: Vec<u64> = taken.iter().copied().filter(|id| [1, 3, 5].contains(id)).collect();
        assert_eq!(of_a, [1, 3, 5]);
        assert_eq!(ids(taken.into_iter()), [1, 2, 3, 5, 6]);
        // Message 4 was not in the target, so it is acknowledged and retained.
        let kept = queue.retained.since(SystemTime::UNIX_EPOCH).map(StoredMessage::id);
        assert_eq!(ids(kept), [4]);
        assert_eq!(queue.stored_bytes(), 6 * cost);
    }

    #[test]
    fn seeking_to_nothing_acknowledges_everything() {
        let (mut queue, _) = queue();
        queue.seek(BTreeMap::new());
        assert_eq!(take(&mut queue), [0; 0]);
        assert_eq!((queue.next_deadline(), queue.unacknowledged().count()), (None, 0));
        let kept = queue.retained.since(SystemTime::UNIX_EPOCH).map(StoredMessage::id);
        assert_eq!(ids(kept), [1, 2, 3, 4, 5, 6]);
    }
}

//! Assigns keys to streams.
//!
//! - The consumer that holds messages of a key also gets the key's next messages, as in production.
//! - A key without leased messages goes to its home, one of the open streams. The home of a key
//!   stays the same while the set of streams stays the same, so the streams share the keys.
//! - When streams open or close, homes move. A key whose home has moved gets no messages until its
//!   leased messages are acknowledged. It then goes to its new home.
//! - If the home takes no messages, because it is full or lets its leases expire, another idle
//!   stream may take the key.
//! - Any consumer may take requeued messages.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::Bytes;

use super::{ConsumerId, ConsumerLifetime, Queue, Usage};

/// The id of a key's oldest waiting message, and the key.
type Front = (u64, Bytes);

impl Queue {
    /// Returns the oldest front that this consumer may take.
    pub(super) fn front_for(&mut self, consumer: ConsumerId) -> Option<Front> {
        let fronts =
            [self.front_owned(consumer), self.front_at_home(consumer), self.front_unassigned()];
        fronts.into_iter().flatten().min().or_else(|| self.front_of_others(consumer))
    }

    /// Returns the oldest front of a key of which the consumer already holds a message.
    fn front_owned(&mut self, consumer: ConsumerId) -> Option<Front> {
        loop {
            let usage = self.consumers.get(&consumer)?;
            let (key, stay) = (usage.owned.front()?.clone(), usage.stay);
            let next = self.next_of(&key, Some(consumer));
            // A Pull call ends before any of its messages is acknowledged.
            if next.is_some()
                && (stay == ConsumerLifetime::Call || !self.is_wanted_at_home(&key, consumer))
            {
                return next.map(|id| (id, key));
            }
            self.consumers.get_mut(&consumer)?.owned.pop_front();
        }
    }

    fn front_at_home(&mut self, consumer: ConsumerId) -> Option<Front> {
        loop {
            let key = self.consumers.get(&consumer)?.at_home.front()?.clone();
            if let Some(id) = self.next_of(&key, None) {
                return Some((id, key));
            }
            self.consumers.get_mut(&consumer)?.at_home.pop_front();
        }
    }

    fn front_unassigned(&mut self) -> Option<Front> {
        loop {
            let key = self.anybodys.front()?.clone();
            if let Some(id) = self.next_of(&key, None) {
                return Some((id, key));
            }
            self.anybodys.pop_front();
        }
    }

    /// Returns the front of a key whose home takes no messages.
    fn front_of_others(&mut self, consumer: ConsumerId) -> Option<Front> {
        for place in 0..self.streams.len() {
            let other = self.streams[place];
            let takes = self.consumers.get(&other).is_none_or(Usage::is_taking);
            if other != consumer
                && !takes
                && let Some(front) = self.front_at_home(other)
            {
                return Some(front);
            }
        }
        None
    }

    /// Returns the key's oldest waiting message, if `owner` owns the key.
    fn next_of(&self, key: &Bytes, owner: Option<ConsumerId>) -> Option<u64> {
        self.keys.get(key).filter(|its| its.owner == owner)?.next_id()
    }

    /// Returns whether another stream is the key's home and takes messages.
    fn is_wanted_at_home(&self, key: &Bytes, consumer: ConsumerId) -> bool {
        let home = self.home(key).filter(|home| *home != consumer);
        home.and_then(|home| self.consumers.get(&home)).is_some_and(Usage::is_taking)
    }

    /// Returns the stream with the highest hash of key and stream. A stream that opens or closes
    /// then moves no keys between the other streams.
    fn home(&self, key: &Bytes) -> Option<ConsumerId> {
        match self.streams.as_slice() {
            [] => None,
            [only] => Some(*only),
            streams => streams.iter().copied().max_by_key(|stream| {
                let mut hasher = DefaultHasher::new();
                (key, stream).hash(&mut hasher);
                hasher.finish()
            }),
        }
    }

    /// Rebuilds the lists of all waiting keys after a stream has opened or closed.
    pub(super) fn reassign_keys(&mut self) {
        self.streams.clear();
        for (consumer, usage) in &mut self.consumers {
            usage.owned.clear();
            usage.at_home.clear();
            if usage.stay == ConsumerLifetime::Stream {
                self.streams.push(*consumer);
            }
        }
        self.streams.sort_unstable();
        self.anybodys.clear();
        let waiting =
            self.keys.iter().filter_map(|(name, key)| Some((key.next_id()?, name.clone())));
        let mut waiting: Vec<Front> = waiting.collect();
        waiting.sort_unstable();
        for (_, key) in waiting {
            self.schedule(&key);
        }
    }

    /// Lists a key with waiting messages with its owner, or at its home.
    pub(super) fn schedule(&mut self, key: &Bytes) {
        let owner = self.keys.get(key).and_then(|queue| queue.owner);
        if let Some(owner) = owner {
            // A closed consumer has no list. The key is scheduled again when it is freed.
            if let Some(usage) = self.consumers.get_mut(&owner) {
                usage.owned.push_back(key.clone());
            }
            return;
        }
        let home = self.home(key).and_then(|home| self.consumers.get_mut(&home));
        match home {
            Some(usage) => usage.at_home.push_back(key.clone()),
            None => self.anybodys.push_back(key.clone()),
        }
    }

    /// Handles requeued messages of a key. Without leased messages, any consumer may take the key.
    /// Returns whether this is the case.
    pub(super) fn release_if_unleased(&mut self, key: &Bytes) -> bool {
        let is_free = self.settle_owner(key);
        if is_free {
            self.anybodys.push_back(key.clone());
        }
        is_free
    }

    /// Frees a key without leased messages, and removes it if it also has no waiting messages.
    /// Returns whether the key has no leased messages.
    pub(super) fn settle_owner(&mut self, key: &Bytes) -> bool {
        let Some(queue) = self.keys.get_mut(key) else { return false };
        if !queue.leased.is_empty() {
            return false;
        }
        queue.owner = None;
        if queue.waiting.is_empty() {
            self.keys.remove(key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, SystemTime};

    use tokio::time::Instant;

    use super::super::{Allowance, Ordering};
    use super::*;
    use crate::store::message::StoredMessage;
    use crate::store::retained::Retained;

    const ONE: ConsumerId = ConsumerId(1);
    const TWO: ConsumerId = ConsumerId(2);

    struct Fixture {
        queue: Queue,
        now: Instant,
        next_id: u64,
    }

    impl Fixture {
        /// Creates a queue with `rounds` waiting messages for each of `keys` keys.
        fn new(keys: u32, rounds: u32) -> Self {
            let queue = Queue::new(Ordering::PerKey, Retained::default());
            let mut fixture = Self { queue, now: Instant::now(), next_id: 1 };
            for number in 0..keys * rounds {
                fixture.push(&format!("key-{}", number % keys));
            }
            fixture
        }

        fn push(&mut self, key: &str) {
            let key = Bytes::copy_from_slice(key.as_bytes());
            let body = Bytes::from_static(&[0; 100]);
            let message = StoredMessage::new(self.next_id, SystemTime::UNIX_EPOCH, key, body);
            self.queue.push(message);
            self.next_id += 1;
        }

        fn open(&mut self, consumer: ConsumerId, messages: usize) {
            let allowance = Allowance { messages, bytes: usize::MAX };
            self.queue.open(consumer, ConsumerLifetime::Stream, allowance);
        }

        /// Takes messages and returns their keys and ack ids.
        fn take(&mut self, consumer: ConsumerId) -> Vec<(Bytes, u64)> {
            let taken = self.queue.take(consumer, self.now + Duration::from_secs(10));
            taken.into_iter().map(|its| (its.message.ordering_key().clone(), its.ack_id)).collect()
        }

        fn keys(&mut self, consumer: ConsumerId) -> BTreeSet<Bytes> {
            self.take(consumer).into_iter().map(|(key, _)| key).collect()
        }
    }

    #[test]
    fn two_streams_share_the_keys_however_much_one_of_them_may_hold() {
        let mut fixture = Fixture::new(100, 5);
        fixture.open(ONE, 1_000);
        fixture.open(TWO, 1_000);
        let (first, second) = (fixture.keys(ONE), fixture.keys(TWO));
        assert!(first.is_disjoint(&second));
        assert_eq!(first.len() + second.len(), 100);
        assert!((35..=65).contains(&first.len()), "{} of 100 keys", first.len());
    }

    #[test]
    fn a_stream_that_comes_later_gets_its_share_of_keys_that_are_never_quiet() {
        let mut fixture = Fixture::new(20, 50);
        fixture.open(ONE, 100);
        let mut held = fixture.take(ONE);
        assert_eq!(held.len(), 100);
        fixture.open(TWO, 100);
        let mut of_two = 0;
        for _ in 0..200 {
            // The stream always holds messages of its busiest key.
            let (_, ack_id) = held.remove(0);
            fixture.queue.acknowledge(ack_id);
            held.extend(fixture.take(ONE));
            of_two += fixture
                .take(TWO)
                .into_iter()
                .inspect(|(_, id)| {
                    fixture.queue.acknowledge(*id);
                })
                .count();
        }
        assert!(of_two >= 200, "{of_two} of 1000 messages");
    }

    #[test]
    fn a_key_that_always_has_more_does_not_keep_the_others_of_its_stream_from_coming() {
        let mut fixture = Fixture::new(2, 5);
        fixture.open(ONE, 3);
        let mut held = fixture.take(ONE);
        let is_other = |(key, _): &(Bytes, u64)| key == "key-1";
        // This message is held to the end, so that the key stays with the stream.
        held.retain(|delivery| !is_other(delivery));
        let mut others = 1;
        for _ in 0..20 {
            fixture.push("key-0");
            fixture.queue.acknowledge(held.remove(0).1);
            held.extend(fixture.take(ONE));
            others += usize::from(held.last().is_some_and(is_other));
        }
        assert_eq!(others, 5);
    }

    #[test]
    fn what_a_full_or_stuck_stream_does_not_take_goes_to_another() {
        let mut fixture = Fixture::new(50, 1);
        fixture.open(ONE, 1);
        fixture.open(TWO, 1_000);
        assert_eq!(fixture.keys(ONE).len(), 1);
        assert_eq!(fixture.keys(TWO).len(), 49, "one is held, and the other stream is full");

        let mut stuck = Fixture::new(20, 1);
        stuck.open(ONE, 1_000);
        stuck.open(TWO, 1_000);
        assert_eq!(stuck.keys(ONE).len() + stuck.keys(TWO).len(), 20);
        (20..60).for_each(|number| stuck.push(&format!("key-{number}")));
        let fresh = stuck.keys(TWO).len();
        assert!((1..40).contains(&fresh), "{fresh} of 40: the others are the first one's");
        stuck.queue.expire(stuck.now + Duration::from_secs(10));
        assert_eq!(stuck.keys(TWO).len(), 60, "the first lets its leases run out");
    }

    #[test]
    fn the_keys_of_a_stream_that_ends_go_to_those_that_stay() {
        let mut fixture = Fixture::new(50, 1);
        fixture.open(ONE, 1_000);
        fixture.open(TWO, 1_000);
        let before = fixture.keys(ONE);
        fixture.queue.close(TWO);
        let after = fixture.keys(ONE);
        assert_eq!((before.len() + after.len(), before.is_disjoint(&after)), (50, true));
    }
}

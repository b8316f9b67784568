//! The undelivered messages of one subscription: ordering, leases, redelivery.
//!
//! ```text
//!              take                    acknowledge
//!  waiting ───────────▶ leased ─────────────────────────▶ gone (a keyed message stays, acknowledged,
//!     ▲                   │                                while an earlier one of its key is not)
//!     └───────────────────┘ nack, or its deadline passed:
//!                           all later messages of its key return as well
//! ```
//!
//! A key with leased messages belongs to the consumer that holds them. No other consumer gets its
//! next message, so two streams never compete for one key. [`key_assignment`] selects the stream
//! for a key without leased messages. This module reads no clock, and takes the time as an
//! argument.

mod key_assignment;
mod seek;

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use tokio::time::Instant;

use crate::store::message::StoredMessage;
use crate::store::retained::Retained;

/// One stream or one Pull call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ConsumerId(pub(crate) u64);

/// The amount that a consumer may hold without acknowledging it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// One message on its way to a consumer.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) ack_id: u64,
    /// The number of deliveries including this one. 0 without a dead-letter policy, as in
    /// production.
    pub(crate) attempt: u32,
    pub(crate) message: StoredMessage,
}

/// The condition for giving up a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeadLetters {
    /// The number of deliveries after which a nacked message is dead.
    pub(crate) attempts_max: u32,
    /// Whether dead messages can be forwarded now. A message that cannot be forwarded is
    /// redelivered, as in production.
    pub(crate) may_forward: bool,
}

/// A message that was delivered too often.
#[derive(Debug)]
pub(crate) struct DeadLetter {
    pub(crate) message: StoredMessage,
    pub(crate) attempts: u32,
}

#[derive(Debug)]
struct Waiting {
    message: StoredMessage,
    /// The number of deliveries so far.
    attempts: u32,
}

#[derive(Debug)]
struct Leased {
    ack_id: u64,
    waiting: Waiting,
    state: LeaseState,
}

impl Leased {
    fn is_open(&self) -> bool {
        self.state == LeaseState::Open
    }
}

#[derive(Debug, PartialEq, Eq)]
enum LeaseState {
    Open,
    /// Acknowledged before an earlier message of its key. If the earlier one is redelivered, this
    /// one is redelivered as well.
    Acknowledged,
}

#[derive(Debug, Default)]
struct Key {
    waiting: VecDeque<Waiting>,
    /// Leased messages in delivery order, so that their ack ids ascend.
    leased: VecDeque<Leased>,
    /// The holder of `leased`. `None` if `leased` is empty.
    owner: Option<ConsumerId>,
}

impl Key {
    fn next_id(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.message.id())
    }

    /// Removes the oldest leased message if it is acknowledged.
    fn pop_acknowledged(&mut self) -> Option<Leased> {
        self.leased.pop_front_if(|leased| !leased.is_open())
    }
}

/// The lease behind an ack id, until its message is acknowledged or requeued.
#[derive(Debug)]
struct Lease {
    consumer: ConsumerId,
    deadline: Instant,
    bytes: usize,
    message: LeasedMessage,
}

#[derive(Debug)]
enum LeasedMessage {
    Unkeyed(Waiting),
    /// The message itself is in the key's `leased`.
    Keyed(Bytes),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConsumerLifetime {
    /// A stream. Streams share the keys.
    Stream,
    /// A single Pull call.
    Call,
}

#[derive(Debug)]
struct Usage {
    stay: ConsumerLifetime,
    allowance: Allowance,
    /// The number of streams that are this consumer. Two for a moment, if a client reconnects
    /// before the server notices the loss of the first stream.
    streams: u32,
    messages: usize,
    bytes: usize,
    /// Keys with waiting messages that this consumer owns. Entries may be stale, so each is checked
    /// on use.
    owned: VecDeque<Bytes>,
    /// Keys with waiting messages that have no owner and whose home is this consumer. Entries may
    /// be stale.
    at_home: VecDeque<Bytes>,
    /// Whether a lease of this consumer has expired since its last acknowledgement.
    is_stuck: bool,
}

impl Usage {
    /// Returns whether the consumer may take another message. One message may exceed the limit in
    /// bytes, because a large message could otherwise never be delivered.
    fn has_room(&self) -> bool {
        self.messages < self.allowance.messages && self.bytes < self.allowance.bytes
    }

    fn is_taking(&self) -> bool {
        self.has_room() && !self.is_stuck
    }

    /// Moves the key behind this consumer's other keys. Otherwise a key that always has messages
    /// would block the others for ever.
    fn rotate_key(&mut self, key: &Bytes) {
        if self.owned.front() == Some(key) {
            self.owned.rotate_left(1);
        }
    }

    fn release_all(&mut self) {
        (self.messages, self.bytes) = (0, 0);
        self.owned.clear();
        self.at_home.clear();
    }
}

/// The maximum number of messages in one response.
const RESPONSE_MESSAGES_MAX: usize = 1_000;
/// The maximum bytes of one response, below the 4 MiB that gRPC clients accept by default.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Whether a subscription orders messages by key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordering {
    /// Messages of one key are delivered in the order in which they were stored.
    PerKey,
    /// Keys are delivered, and do not affect the order.
    Ignored,
}

#[derive(Debug)]
pub(crate) struct Queue {
    ordering: Ordering,
    unkeyed: VecDeque<Waiting>,
    /// Only keys with waiting or leased messages, because the number of keys ever seen is
    /// unbounded.
    keys: HashMap<Bytes, Key>,
    /// Keys with waiting messages that any consumer may take. Entries may be stale.
    anybodys: VecDeque<Bytes>,
    leases: HashMap<u64, Lease>,
    deadlines: BTreeSet<(Instant, u64)>,
    consumers: HashMap<ConsumerId, Usage>,
    streams: Vec<ConsumerId>,
    next_ack_id: u64,
    stored_bytes: usize,
    /// Acknowledged messages, if the subscription retains them.
    pub(crate) retained: Retained,
    pub(crate) dead_letters: Option<DeadLetters>,
    /// Dead messages that are not forwarded yet.
    dead: Vec<DeadLetter>,
}

impl Queue {
    pub(crate) fn new(ordering: Ordering, retained: Retained) -> Self {
        Self {
            ordering,
            unkeyed: VecDeque::new(),
            keys: HashMap::new(),
            anybodys: VecDeque::new(),
            leases: HashMap::new(),
            deadlines: BTreeSet::new(),
            consumers: HashMap::new(),
            streams: Vec::new(),
            next_ack_id: 1,
            stored_bytes: 0,
            retained,
            dead_letters: None,
            dead: Vec::new(),
        }
    }

    /// Returns the memory of all waiting, leased or retained messages.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.stored_bytes + self.retained.bytes()
    }

    pub(crate) fn push(&mut self, message: StoredMessage) {
        self.push_waiting(Waiting { message, attempts: 0 });
    }

    /// Removes and returns the dead messages since the last call.
    pub(crate) fn take_dead(&mut self) -> Vec<DeadLetter> {
        std::mem::take(&mut self.dead)
    }

    fn push_waiting(&mut self, waiting: Waiting) {
        self.stored_bytes += waiting.message.cost();
        let key = waiting.message.ordering_key().clone();
        if self.ordering == Ordering::Ignored || key.is_empty() {
            self.unkeyed.push_back(waiting);
            return;
        }
        let queue = self.keys.entry(key.clone()).or_default();
        queue.waiting.push_back(waiting);
        if queue.waiting.len() == 1 {
            self.schedule(&key);
        }
    }

    pub(crate) fn open(
        &mut self,
        consumer: ConsumerId,
        stay: ConsumerLifetime,
        allowance: Allowance,
    ) {
        let usage = Usage {
            stay,
            allowance,
            streams: 1,
            messages: 0,
            bytes: 0,
            owned: VecDeque::new(),
            at_home: VecDeque::new(),
            is_stuck: false,
        };
        self.consumers.insert(consumer, usage);
        if stay == ConsumerLifetime::Stream {
            self.reassign_keys();
        }
    }

    /// Reopens a consumer. Its keys remain its own, and its leased messages count against the
    /// allowance.
    pub(crate) fn reopen(&mut self, consumer: ConsumerId, allowance: Allowance) {
        if let Some(usage) = self.consumers.get_mut(&consumer) {
            usage.streams += 1;
            usage.allowance = allowance;
            return;
        }
        self.open(consumer, ConsumerLifetime::Stream, allowance);
        let Some(usage) = self.consumers.get_mut(&consumer) else { return };
        for lease in self.leases.values().filter(|lease| lease.consumer == consumer) {
            usage.messages += 1;
            usage.bytes += lease.bytes;
        }
    }

    /// Closes a stream of a consumer. Its messages stay leased until their deadline, as in
    /// production.
    pub(crate) fn close(&mut self, consumer: ConsumerId) {
        let Some(usage) = self.consumers.get_mut(&consumer) else { return };
        usage.streams -= 1;
        if usage.streams > 0 {
            return;
        }
        let stay = usage.stay;
        self.consumers.remove(&consumer);
        if stay == ConsumerLifetime::Stream {
            self.reassign_keys();
        }
    }

    /// Returns whether this consumer would take more. If not, other consumers may take its
    /// messages.
    pub(crate) fn is_taking(&self, consumer: ConsumerId) -> bool {
        self.consumers.get(&consumer).is_some_and(Usage::is_taking)
    }

    /// Returns whether a consumer is open or has leased messages.
    pub(crate) fn knows(&self, consumer: ConsumerId) -> bool {
        self.consumers.contains_key(&consumer)
            || self.leases.values().any(|lease| lease.consumer == consumer)
    }

    /// Leases to `consumer` the messages that it may have now.
    pub(crate) fn take(&mut self, consumer: ConsumerId, deadline: Instant) -> Vec<Delivery> {
        let mut taken = Taken::default();
        // The older of the two fronts goes first, so that neither kind starves the other.
        while self.may_take(consumer, &taken) {
            let Some(next) = self.next_for(consumer) else { break };
            taken.add(self.lease(consumer, deadline, next));
        }
        taken.deliveries
    }

    /// Acknowledges a message. Returns whether the ack id is known and has not expired.
    pub(crate) fn acknowledge(&mut self, ack_id: u64) -> bool {
        let Some(lease) = self.release(ack_id) else { return false };
        if let Some(usage) = self.consumers.get_mut(&lease.consumer) {
            usage.is_stuck = false;
        }
        match lease.message {
            LeasedMessage::Unkeyed(waiting) => self.forget(waiting.message),
            LeasedMessage::Keyed(key) => self.acknowledge_keyed(&key, ack_id),
        }
        true
    }

    /// Returns whether an earlier message of the key has to be acknowledged first.
    pub(crate) fn has_unacknowledged_predecessor(&self, ack_id: u64) -> bool {
        match self.leases.get(&ack_id).map(|lease| &lease.message) {
            Some(LeasedMessage::Keyed(key)) => {
                let first = self.keys.get(key).and_then(|queue| queue.leased.front());
                first.is_some_and(|first| first.ack_id != ack_id)
            }
            Some(LeasedMessage::Unkeyed(_)) | None => false,
        }
    }

    /// Moves the deadline of a lease. Returns whether the ack id is known and has not expired.
    pub(crate) fn extend(&mut self, ack_id: u64, deadline: Instant) -> bool {
        let Some(lease) = self.leases.get_mut(&ack_id) else { return false };
        self.deadlines.remove(&(lease.deadline, ack_id));
        lease.deadline = deadline;
        self.deadlines.insert((deadline, ack_id));
        true
    }

    /// Requeues a message and all later ones of its key. Returns whether the ack id is known and
    /// has not expired.
    pub(crate) fn give_back(&mut self, ack_id: u64) -> bool {
        let Some(lease) = self.release(ack_id) else { return false };
        match lease.message {
            LeasedMessage::Unkeyed(waiting) => {
                if let Some(waiting) = self.unless_dead(waiting) {
                    self.unkeyed.push_front(waiting);
                }
            }
            LeasedMessage::Keyed(key) => self.give_back_from(&key, ack_id),
        }
        true
    }

    /// Reverts the last `take` as if it had not happened, because its messages were not sent.
    pub(crate) fn undo(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries.iter().rev() {
            let Some(lease) = self.release(delivery.ack_id) else { continue };
            match lease.message {
                LeasedMessage::Unkeyed(mut waiting) => {
                    waiting.attempts -= 1;
                    self.unkeyed.push_front(waiting);
                }
                LeasedMessage::Keyed(key) => self.undo_keyed(&key),
            }
        }
    }

    fn undo_keyed(&mut self, key: &Bytes) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        let had_waiting = !queue.waiting.is_empty();
        if let Some(mut leased) = queue.leased.pop_back() {
            leased.waiting.attempts -= 1;
            queue.waiting.push_front(leased.waiting);
        }
        if !self.release_if_unleased(key) && !had_waiting {
            self.schedule(key);
        }
    }

    pub(crate) fn message(&self, ack_id: u64) -> Option<&StoredMessage> {
        match &self.leases.get(&ack_id)?.message {
            LeasedMessage::Unkeyed(waiting) => Some(&waiting.message),
            LeasedMessage::Keyed(key) => {
                let leased = &self.keys.get(key)?.leased;
                let index = leased.binary_search_by_key(&ack_id, |leased| leased.ack_id).ok()?;
                Some(&leased[index].waiting.message)
            }
        }
    }

    /// Requeues all messages whose deadline has passed. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(&(deadline, ack_id)) = self.deadlines.first()
            && deadline <= now
        {
            let holder = self.leases.get(&ack_id).map(|lease| lease.consumer);
            if let Some(usage) = holder.and_then(|its| self.consumers.get_mut(&its)) {
                usage.is_stuck = true;
            }
            self.give_back(ack_id);
            any = true;
        }
        any
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    fn may_take(&self, consumer: ConsumerId, taken: &Taken) -> bool {
        taken.deliveries.len() < RESPONSE_MESSAGES_MAX
            && taken.bytes < RESPONSE_BYTES_MAX
            && self.consumers.get(&consumer).is_some_and(Usage::has_room)
    }

    /// Returns the next message for this consumer: the older of the unkeyed front and the front of
    /// a key.
    fn next_for(&mut self, consumer: ConsumerId) -> Option<Waiting> {
        let key = self.front_for(consumer);
        let unkeyed = self.unkeyed.front().map(|waiting| waiting.message.id());
        match (key, unkeyed) {
            (None, _) => self.unkeyed.pop_front(),
            (Some((id, _)), Some(unkeyed)) if unkeyed < id => self.unkeyed.pop_front(),
            (Some((_, key)), _) => self.pop_keyed(&key, consumer),
        }
    }

    fn pop_keyed(&mut self, key: &Bytes, consumer: ConsumerId) -> Option<Waiting> {
        let queue = self.keys.get_mut(key)?;
        let waiting = queue.waiting.pop_front();
        let was_free = queue.owner.replace(consumer).is_none();
        let has_more = !queue.waiting.is_empty();
        if was_free && has_more {
            self.schedule(key);
        } else if has_more && let Some(usage) = self.consumers.get_mut(&consumer) {
            usage.rotate_key(key);
        }
        waiting
    }

    fn lease(&mut self, consumer: ConsumerId, deadline: Instant, mut waiting: Waiting) -> Delivery {
        let ack_id = self.next_ack_id;
        self.next_ack_id += 1;
        waiting.attempts = waiting.attempts.saturating_add(1);
        let attempt = if self.dead_letters.is_some() { waiting.attempts } else { 0 };
        let delivery = Delivery { ack_id, attempt, message: waiting.message.clone() };
        let bytes = waiting.message.body().len();
        if let Some(usage) = self.consumers.get_mut(&consumer) {
            usage.messages += 1;
            usage.bytes += bytes;
        }
        let key = waiting.message.ordering_key().clone();
        let message = match self.keys.get_mut(&key) {
            Some(queue) if self.ordering == Ordering::PerKey && !key.is_empty() => {
                queue.leased.push_back(Leased { ack_id, waiting, state: LeaseState::Open });
                LeasedMessage::Keyed(key)
            }
            _ => LeasedMessage::Unkeyed(waiting),
        };
        self.deadlines.insert((deadline, ack_id));
        self.leases.insert(ack_id, Lease { consumer, deadline, bytes, message });
        delivery
    }

    fn release(&mut self, ack_id: u64) -> Option<Lease> {
        let lease = self.leases.remove(&ack_id)?;
        self.deadlines.remove(&(lease.deadline, ack_id));
        if let Some(usage) = self.consumers.get_mut(&lease.consumer) {
            usage.messages -= 1;
            usage.bytes -= lease.bytes;
        }
        Some(lease)
    }

    fn acknowledge_keyed(&mut self, key: &Bytes, ack_id: u64) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        if let Ok(index) = queue.leased.binary_search_by_key(&ack_id, |leased| leased.ack_id) {
            queue.leased[index].state = LeaseState::Acknowledged;
        }
        while let Some(leased) = self.keys.get_mut(key).and_then(Key::pop_acknowledged) {
            self.forget(leased.waiting.message);
        }
        if self.settle_owner(key) {
            self.schedule(key);
        }
    }

    fn give_back_from(&mut self, key: &Bytes, ack_id: u64) {
        let Some(queue) = self.keys.get_mut(key) else { return };
        let Ok(index) = queue.leased.binary_search_by_key(&ack_id, |leased| leased.ack_id) else {
            return;
        };
        let mut returned = queue.leased.split_off(index);
        let had_waiting = !queue.waiting.is_empty();
        // Only the message itself counts as nacked. The later ones are redelivered because of it.
        let first = returned.pop_front().and_then(|leased| self.unless_dead(leased.waiting));
        for leased in &returned {
            drop(self.release(leased.ack_id));
        }
        let rest = returned.into_iter().map(|leased| leased.waiting);
        let again: Vec<Waiting> = first.into_iter().chain(rest).collect();
        if let Some(its) = self.keys.get_mut(key) {
            again.into_iter().rev().for_each(|waiting| its.waiting.push_front(waiting));
        }
        if !self.release_if_unleased(key) && !had_waiting {
            self.schedule(key);
        }
    }

    /// Returns a message that is to be redelivered, or moves it to the dead messages after too many
    /// deliveries.
    fn unless_dead(&mut self, waiting: Waiting) -> Option<Waiting> {
        let is_dead = self
            .dead_letters
            .is_some_and(|its| its.may_forward && waiting.attempts >= its.attempts_max);
        if !is_dead {
            return Some(waiting);
        }
        let Waiting { message, attempts } = waiting;
        self.forget(message.clone());
        self.dead.push(DeadLetter { message, attempts });
        None
    }

    /// Removes a message that needs no further delivery.
    fn forget(&mut self, message: StoredMessage) {
        self.stored_bytes -= message.cost();
        self.retained.keep(message);
    }
}

#[derive(Default)]
struct Taken {
    deliveries: Vec<Delivery>,
    bytes: usize,
}

impl Taken {
    fn add(&mut self, delivery: Delivery) {
        self.bytes += delivery.message.body().len();
        self.deliveries.push(delivery);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    const ANY: Allowance = Allowance { messages: usize::MAX, bytes: usize::MAX };
    const ONE: ConsumerId = ConsumerId(1);
    const TWO: ConsumerId = ConsumerId(2);

    struct Fixture {
        queue: Queue,
        now: Instant,
    }

    impl Fixture {
        fn new(ordering: Ordering) -> Self {
            let mut queue = Queue::new(ordering, Retained::default());
            queue.open(ONE, ConsumerLifetime::Call, ANY);
            queue.open(TWO, ConsumerLifetime::Call, ANY);
            Self { queue, now: Instant::now() }
        }

        fn push(&mut self, id: u64, key: &'static str) {
            let body = Bytes::from(vec![0; 100]);
            let key = Bytes::from_static(key.as_bytes());
            self.queue.push(StoredMessage::new(id, SystemTime::UNIX_EPOCH, key, body));
        }

        fn take(&mut self, consumer: ConsumerId) -> Vec<(u64, u64, u32)> {
            let deadline = self.now + Duration::from_secs(10);
            let taken = self.queue.take(consumer, deadline);
            taken.iter().map(|d| (d.message.id(), d.ack_id, d.attempt)).collect()
        }

        fn ids(&mut self, consumer: ConsumerId) -> Vec<u64> {
            self.take(consumer).into_iter().map(|(id, ..)| id).collect()
        }
    }

    #[test]
    fn messages_come_in_the_order_they_were_stored() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        for (id, key) in [(1, "a"), (2, ""), (3, "b"), (4, "a"), (5, "")] {
            fixture.push(id, key);
        }
        let mut ids = fixture.ids(ONE);
        let of_a: Vec<u64> = ids.iter().copied().filter(|id| [1, 4].contains(id)).collect();
        assert_eq!(of_a, [1, 4]);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_key_belongs_to_one_consumer_until_everything_of_it_is_acknowledged() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.push(1, "a");
        let first = fixture.take(ONE);
        fixture.push(2, "a");
        assert_eq!(fixture.ids(TWO), [0; 0]);
        let second = fixture.take(ONE);
        assert_eq!(second[0].0, 2);
        fixture.push(3, "a");
        fixture.queue.acknowledge(first[0].1);
        assert_eq!(fixture.ids(TWO), [0; 0]);
        fixture.queue.acknowledge(second[0].1);
        assert_eq!(fixture.ids(TWO), [3]);
    }

    #[test]
    fn without_ordering_consumers_share_a_key() {
        let mut fixture = Fixture::new(Ordering::Ignored);
        fixture.push(1, "a");
        assert_eq!(fixture.ids(ONE), [1]);
        fixture.push(2, "a");
        assert_eq!(fixture.ids(TWO), [2]);
    }

    #[test]
    fn redelivery_takes_all_later_messages_of_the_key_along_even_acknowledged_ones() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.queue.dead_letters = Some(DeadLetters { attempts_max: 9, may_forward: true });
        for id in 1..=4 {
            fixture.push(id, "a");
        }
        fixture.push(5, "b");
        let taken = fixture.take(ONE);
        let ack_id = |id| taken.iter().find(|t| t.0 == id).unwrap().1;
        fixture.queue.acknowledge(ack_id(3));
        fixture.queue.give_back(ack_id(2));

        let again = fixture.take(ONE);
        let seen: Vec<_> = again.iter().map(|(id, _, attempt)| (*id, *attempt)).collect();
        assert_eq!(seen, [(2, 2), (3, 2), (4, 2)]);

        // The old ack ids are no longer valid.
        fixture.queue.acknowledge(ack_id(4));
        fixture.queue.give_back(again[2].1);
        assert_eq!(fixture.ids(ONE), [4]);
    }

    #[test]
    fn a_passed_deadline_redelivers_and_an_extended_one_does_not() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.push(1, "");
        fixture.push(2, "");
        let taken = fixture.take(ONE);
        fixture.queue.extend(taken[1].1, fixture.now + Duration::from_secs(60));
        assert_eq!(fixture.queue.next_deadline(), Some(fixture.now + Duration::from_secs(10)));
        fixture.queue.expire(fixture.now + Duration::from_secs(10));
        assert_eq!(fixture.ids(TWO), [1]);
    }

    #[test]
    fn the_key_of_a_consumer_that_went_away_moves_on_after_the_deadline() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.push(1, "a");
        fixture.push(2, "a");
        assert_eq!(fixture.ids(ONE), [1, 2]);
        fixture.queue.close(ONE);
        fixture.push(3, "a");
        assert_eq!(fixture.ids(TWO), [0; 0]);
        fixture.queue.expire(fixture.now + Duration::from_secs(10));
        assert_eq!(fixture.ids(TWO), [1, 2, 3]);
    }

    #[test]
    fn a_consumer_gets_no_more_than_its_allowance() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.queue.open(
            ONE,
            ConsumerLifetime::Call,
            Allowance { messages: 2, bytes: usize::MAX },
        );
        fixture.queue.open(TWO, ConsumerLifetime::Call, Allowance { messages: 10, bytes: 150 });
        for id in 1..=6 {
            fixture.push(id, "");
        }
        let first = fixture.take(ONE);
        assert_eq!(first.len(), 2);
        assert_eq!(fixture.ids(ONE), [0; 0]);
        fixture.queue.acknowledge(first[0].1);
        assert_eq!(fixture.ids(ONE), [3]);
        // 100 bytes each. The second message exceeds the limit, so the third has to wait.
        assert_eq!(fixture.ids(TWO), [4, 5]);
    }

    #[test]
    fn an_allowance_of_one_walks_through_a_key_in_order() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.queue.open(
            ONE,
            ConsumerLifetime::Call,
            Allowance { messages: 1, bytes: usize::MAX },
        );
        for id in 1..=3 {
            fixture.push(id, "a");
        }
        for id in 1..=3 {
            let taken = fixture.take(ONE);
            assert_eq!(taken[0].0, id);
            fixture.queue.acknowledge(taken[0].1);
        }
        assert_eq!(fixture.queue.stored_bytes(), 0);
        assert!(fixture.queue.keys.is_empty());
    }

    #[test]
    fn what_was_taken_and_not_sent_is_as_if_it_had_not_been_taken() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        fixture.queue.dead_letters = Some(DeadLetters { attempts_max: 9, may_forward: true });
        for (id, key) in [(1, "a"), (2, "a"), (3, ""), (4, "b")] {
            fixture.push(id, key);
        }
        let held = fixture.queue.take(ONE, fixture.now);
        assert_eq!(held.len(), 4);
        fixture.push(5, "a");
        fixture.queue.undo(&held);
        assert_eq!(fixture.queue.next_deadline(), None);

        let mut taken = fixture.take(TWO);
        let of_a: Vec<u64> =
            taken.iter().map(|t| t.0).filter(|id| [1, 2, 5].contains(id)).collect();
        assert_eq!(of_a, [1, 2, 5]);
        taken.sort_unstable();
        let attempts: Vec<_> = taken.iter().map(|(id, _, attempt)| (*id, *attempt)).collect();
        assert_eq!(attempts, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
    }

    #[test]
    fn a_message_given_back_too_often_is_dead_and_its_key_goes_on() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        let dead_letters = DeadLetters { attempts_max: 2, may_forward: true };
        fixture.queue.dead_letters = Some(DeadLetters { may_forward: false, ..dead_letters });
        for (id, key) in [(1, "a"), (2, "a"), (3, "")] {
            fixture.push(id, key);
        }
        // A message that cannot be forwarded is redelivered without a limit.
        for _ in 0..3 {
            for (_, ack_id, _) in fixture.take(ONE) {
                fixture.queue.give_back(ack_id);
            }
        }
        assert!(fixture.queue.take_dead().is_empty());

        fixture.queue.dead_letters = Some(dead_letters);
        let taken = fixture.take(ONE);
        let ack_id = |id| taken.iter().find(|t| t.0 == id).unwrap().1;
        fixture.queue.give_back(ack_id(1));
        fixture.queue.give_back(ack_id(3));
        let dead: Vec<_> =
            fixture.queue.take_dead().iter().map(|d| (d.message.id(), d.attempts)).collect();
        assert_eq!(dead, [(1, 4), (3, 4)]);
        // The later message of the key was not nacked itself.
        let rest = fixture.take(TWO);
        assert_eq!((rest.len(), rest[0].0, rest[0].2), (1, 2, 5));
        fixture.queue.acknowledge(rest[0].1);
        assert_eq!(fixture.queue.stored_bytes(), 0);
        assert!(fixture.queue.keys.is_empty() && fixture.queue.leases.is_empty());
    }

    #[test]
    fn nothing_is_remembered_of_what_is_acknowledged() {
        let mut fixture = Fixture::new(Ordering::PerKey);
        for id in 1..=100 {
            fixture.push(id, if id % 2 == 0 { "a" } else { "" });
        }
        for (_, ack_id, _) in fixture.take(ONE).into_iter().rev() {
            fixture.queue.acknowledge(ack_id);
        }
        assert_eq!(fixture.queue.stored_bytes(), 0);
        assert!(fixture.queue.keys.is_empty() && fixture.queue.leases.is_empty());
        assert!(fixture.queue.deadlines.is_empty());
    }
}

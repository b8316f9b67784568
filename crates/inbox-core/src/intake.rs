//! The held messages, and the next action for each.
//!
//! ```text
//!                    ┌───────── conflict, outage ──────────┐
//!                    ▼                                     │
//! delivered ──▶ Ready ──▶ Out ──▶ finished ──▶ acknowledged, gone
//!                 ▲        │
//!                 │        └──▶ deferred ──▶ Resting
//!                 └─────────────────────────────┘
//! ```
//!
//! The states belong to a key, which has one batch in flight at a time (C3). A message without a
//! key takes its turn alone. Messages in [doubt](crate::poison_isolation) wait in a queue of their own. When
//! a lease runs out, the unsent messages of its key are dropped. Pub/Sub redelivers these messages,
//! and they queue behind the batch that is still in flight.

mod scheduler;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_core::{Backoff, Random};

use crate::adaptive_concurrency::{PATIENCE, Pace};
use crate::batch::{BatchId, Fate, Outcome};
use crate::failure::Failure;
use crate::leases::{Lease, Leases, Look, Ticket};
use crate::poison_isolation::PoisonIsolation;

/// The pause of a key after a deferral. It is short at first, because most deferred events wait for
/// another transaction that ends soon.
const KEY_PAUSE: Backoff = Backoff { base: Duration::from_millis(5), cap: Duration::from_secs(1) };

/// The keys that `app_inbox_run` has certainly tried when it gives up a batch in which no event
/// passed.
const TRIED_AT_LEAST: usize = 2;

/// The messages held during an outage. So many suffice to detect that the outage is over, or that
/// only some events fail.
const OUTAGE_MESSAGES: usize = 100;

/// The limits on the held messages, and on the time for which each is held.
#[derive(Debug, Clone, Copy)]
pub struct IntakeLimits {
    /// The messages in a batch, at most.
    pub batch: usize,
    /// The batches in flight at once, at most.
    pub workers: usize,
    /// The messages held, at most.
    pub messages: usize,
    /// The bytes held, at most.
    pub bytes: usize,
    /// The length of a lease.
    pub lease: Duration,
    /// The time for which a message is held before its lease is left to run out.
    pub max_lease: Duration,
}

/// One delivery of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The name of the message, equal in every delivery.
    pub message_id: &'a str,
    /// The name of this delivery.
    pub ack_id: String,
    /// The ordering key. Empty: the message has no order.
    pub ordering_key: &'a str,
    /// The bytes that count against the budget.
    pub bytes: usize,
}

/// Whether a delivery brings a new message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryKind {
    /// The message was not held before.
    New,
    /// The message was held already. It is acknowledged by the newer delivery's name.
    Again,
}

#[derive(Debug)]
struct Held<M> {
    message: Arc<M>,
    message_id: Arc<str>,
    ack_id: String,
    key: Option<Arc<str>>,
    bytes: usize,
    since: Instant,
    lease: Lease,
    is_out: bool,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Ticket>,
    state: State,
    deferrals: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Queued for the next batch, if the key holds any message.
    #[default]
    Ready,
    /// A batch of the key is in flight.
    Out,
    /// The key was deferred and waits until this time.
    Resting(Instant),
}

#[derive(Debug, Clone)]
enum Turn {
    Key(Arc<str>),
    Single(Ticket),
}

#[derive(Debug, Default)]
struct IsolatedTurns {
    /// Turns that failed in a batch with others, and may be healthy.
    untried: VecDeque<Turn>,
    /// Turns that failed alone.
    tried: VecDeque<Turn>,
    /// The number of doubtful batches so far.
    turns: u64,
}

/// The two queues of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Trusted,
    Doubtful,
}

/// A batch in flight.
#[derive(Debug)]
struct Out {
    line: Line,
    began: Instant,
    tickets: Vec<Ticket>,
}

/// The messages that a consumer holds. Generic in the message, which only passes through.
#[derive(Debug)]
pub struct Intake<M> {
    bounds: IntakeLimits,
    random: Random,
    held: BTreeMap<Ticket, Held<M>>,
    by_message: HashMap<Arc<str>, Ticket>,
    lanes: HashMap<Arc<str>, Lane>,
    ready: VecDeque<Turn>,
    doubtful: IsolatedTurns,
    resting: BTreeSet<(Instant, Arc<str>)>,
    batches: BTreeMap<BatchId, Out>,
    /// The queue that the last batch came from. The two queues alternate.
    last: Line,
    /// With one worker, the time until which the trusted queue has the worker. The trusted queue
    /// gets as much time as the last doubtful batch took.
    doubtful_after: Option<Instant>,
    doubts: PoisonIsolation,
    /// Whether a message is stored to free capacity. No more is read until an eighth of the
    /// capacity is free.
    is_freeing_capacity: bool,
    leases: Leases,
    pace: Pace,
    acknowledgements: VecDeque<String>,
    bytes: usize,
    next_ticket: Ticket,
    next_batch: BatchId,
}

impl<M> Intake<M> {
    /// Creates an intake that holds no message.
    #[must_use]
    pub fn new(bounds: IntakeLimits, random: Random) -> Self {
        Self {
            bounds,
            random,
            held: BTreeMap::new(),
            by_message: HashMap::new(),
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            doubtful: IsolatedTurns::default(),
            is_freeing_capacity: false,
            resting: BTreeSet::new(),
            batches: BTreeMap::new(),
            last: Line::Doubtful,
            doubtful_after: None,
            doubts: PoisonIsolation::new(bounds.batch),
            leases: Leases::new(bounds.lease, bounds.max_lease),
            pace: Pace::new(bounds.batch, bounds.workers),
            acknowledgements: VecDeque::new(),
            bytes: 0,
            next_ticket: 0,
            next_batch: 0,
        }
    }

    /// Returns whether more messages may be read. The budget must have capacity, and the database
    /// must be reachable. An outage still allows a few messages. Without them the consumer would
    /// never notice that the outage is over, or that only some events fail.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let IntakeLimits { messages, bytes, .. } = self.bounds;
        let is_wanted = !self.pace.is_away() || self.held.len() < OUTAGE_MESSAGES;
        self.held.len() < messages && self.bytes < bytes && is_wanted && !self.is_freeing_capacity
    }

    /// Returns whether an eighth or less of the capacity is left.
    fn is_nearly_full(&self) -> bool {
        let IntakeLimits { messages, bytes, .. } = self.bounds;
        self.held.len() >= messages / 8 * 7 || self.bytes >= bytes / 8 * 7
    }

    /// Returns whether the database was unreachable at the last attempt.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.pace.is_away()
    }

    /// Notes that events passed that are not held here. An event that fails meanwhile fails by
    /// itself.
    pub fn others_passed(&mut self) {
        self.doubts.others_passed();
        self.is_freeing_capacity = false;
    }

    /// Returns the number of messages held.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of ordering keys that have held messages.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the number of batches in flight.
    #[must_use]
    pub fn batches_out(&self) -> usize {
        self.batches.len()
    }

    /// Returns the age of the oldest held message.
    #[must_use]
    pub fn oldest(&self, now: Instant) -> Duration {
        let first = self.held.first_key_value();
        first.map_or(Duration::ZERO, |(_, held)| now.saturating_duration_since(held.since))
    }

    /// Adds a delivery to the held messages.
    pub fn arrive(
        &mut self,
        delivery: Delivery<'_>,
        message: &Arc<M>,
        now: Instant,
    ) -> DeliveryKind {
        let Delivery { message_id, ack_id, ordering_key, bytes } = delivery;
        if let Some(ticket) = self.by_message.get(message_id).copied() {
            if let Some(held) = self.held.get_mut(&ticket) {
                held.ack_id = ack_id;
                self.leases.end(ticket, &held.lease);
                held.lease = self.leases.begin(ticket, held.since, now, &mut self.random);
            }
            return DeliveryKind::Again;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let key = (!ordering_key.is_empty()).then(|| self.enqueue(ordering_key, ticket));
        if key.is_none() {
            self.ready.push_back(Turn::Single(ticket));
        }
        let lease = self.leases.begin(ticket, now, now, &mut self.random);
        self.bytes += bytes;
        let message_id: Arc<str> = message_id.into();
        self.by_message.insert(Arc::clone(&message_id), ticket);
        let message = Arc::clone(message);
        let held =
            Held { message, message_id, ack_id, key, bytes, since: now, lease, is_out: false };
        self.held.insert(ticket, held);
        DeliveryKind::New
    }

    fn enqueue(&mut self, ordering_key: &str, ticket: Ticket) -> Arc<str> {
        let key = match self.lanes.get_key_value(ordering_key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(ordering_key),
        };
        let lane = self.lanes.entry(Arc::clone(&key)).or_default();
        if lane.queue.is_empty() && lane.state == State::Ready {
            self.ready.push_back(Turn::Key(Arc::clone(&key)));
        }
        lane.queue.push_back(ticket);
        key
    }

    /// Ends a batch with its outcome.
    ///
    /// # Panics
    ///
    /// Panics if the batch is not in flight, or if fates and messages differ in number.
    pub fn settle(&mut self, id: BatchId, outcome: &Outcome, now: Instant) {
        let out = self.batches.remove(&id).expect("C2: a batch that is not out has ended");
        let Out { line, began, tickets } = out;
        let time = now.saturating_duration_since(began);
        if line == Line::Doubtful {
            self.doubts.took(tickets.len(), time);
            self.doubtful_after = (self.bounds.workers == 1).then_some(now + time);
        }
        match outcome {
            Outcome::Committed(fates) => {
                assert_eq!(fates.len(), tickets.len(), "C2: a message without a fate");
                if fates.contains(&Fate::Applied) {
                    self.pace.worked();
                    self.others_passed();
                } else {
                    self.pace.recorded();
                }
                if line == Line::Trusted && fates.contains(&Fate::Deferred) {
                    self.pace.note_cut_short(tickets.len(), time);
                }
                self.settle_each(&tickets, fates, now);
            }
            Outcome::Failed(failure) => {
                if failure.may_be_its_own() {
                    self.doubt(&tickets, *failure, time);
                }
                match line {
                    Line::Trusted => self.slow_down(*failure, tickets.len(), time, now),
                    // The failure was expected, and does not slow the trusted queue down.
                    Line::Doubtful => {
                        self.doubts.failed(tickets.len(), now, &mut self.random);
                        self.pace.answered(*failure);
                    }
                }
                self.settle_each(&tickets, &vec![Fate::Deferred; tickets.len()], now);
            }
        }
    }

    /// Puts the first message of each key of a failed batch in doubt. The failure says nothing
    /// about an event.
    fn doubt(&mut self, tickets: &[Ticket], failure: Failure, time: Duration) {
        let mut seen: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut firsts = Vec::new();
        for ticket in tickets {
            let key = self.held.get(ticket).and_then(|held| held.key.clone());
            if key.is_none_or(|key| seen.insert(key)) {
                firsts.push(*ticket);
            }
        }
        // If the server refuses the handler's actions, the database tries the events one by one
        // until `PATIENCE` is over.
        let is_cut = failure == Failure::Operator && time > PATIENCE;
        let tried = if is_cut { TRIED_AT_LEAST } else { firsts.len() };
        for first in firsts.iter().take(tried) {
            self.doubts.note(*first, failure, firsts.len());
        }
    }

    fn slow_down(&mut self, failure: Failure, size: usize, time: Duration, now: Instant) {
        match failure {
            // Each attempt takes long anyway, and the next attempt has other events.
            Failure::Operator if time > PATIENCE => self.pace.note_cut_short(size, time),
            Failure::Conflict if size > 1 => self.pace.conflicted(size, now, &mut self.random),
            // A message that waits for a lock, conflicts alone or ends its session waits in doubt
            // from now on. For the other failures, the consumer only reads the generation's number
            // again.
            Failure::Conflict
            | Failure::Locked
            | Failure::Severed
            | Failure::Rebuilt
            | Failure::Paused => self.pace.answered(failure),
            Failure::Outage | Failure::Operator | Failure::Unregistered => {
                self.pace.failed(failure, now, &mut self.random);
            }
        }
    }

    fn settle_each(&mut self, tickets: &[Ticket], fates: &[Fate], now: Instant) {
        let mut keys: BTreeMap<Arc<str>, Vec<Ticket>> = BTreeMap::new();
        for (ticket, fate) in tickets.iter().zip(fates) {
            let key = self.held.get(ticket).and_then(|held| held.key.clone());
            let returned = key.map(|key| keys.entry(key).or_default());
            match (fate, returned) {
                // A message behind a deferred one is redelivered with the deferred one, and is a
                // duplicate then. Acknowledging the message now would acknowledge it out of order
                // (C7).
                (Fate::Applied | Fate::Recorded, None) => self.finish(*ticket),
                (Fate::Applied | Fate::Recorded, Some(returned)) if returned.is_empty() => {
                    self.finish(*ticket);
                }
                (_, Some(returned)) => returned.push(*ticket),
                (Fate::Deferred, None) => self.take_back(*ticket, now),
            }
        }
        for (key, returned) in keys {
            self.give_back(&key, &returned, now);
        }
    }

    fn finish(&mut self, ticket: Ticket) {
        let Some(held) = self.forget(ticket) else { return };
        self.acknowledgements.push_back(held.ack_id);
    }

    fn forget(&mut self, ticket: Ticket) -> Option<Held<M>> {
        let held = self.held.remove(&ticket)?;
        self.by_message.remove(&held.message_id);
        self.doubts.forget(ticket);
        self.leases.end(ticket, &held.lease);
        self.bytes -= held.bytes;
        self.is_freeing_capacity &= self.is_nearly_full();
        Some(held)
    }

    /// Queues a message without a key that was not applied.
    fn take_back(&mut self, ticket: Ticket, now: Instant) {
        let Some(held) = self.held.get_mut(&ticket) else { return };
        held.is_out = false;
        if held.lease.is_lost(now) {
            self.forget(ticket);
            return;
        }
        self.enqueue_turn(Turn::Single(ticket), Some(ticket));
    }

    /// Puts the messages that were not applied back at the front of their key. The key pauses if
    /// the failure was its own.
    fn give_back(&mut self, key: &Arc<str>, returned: &[Ticket], now: Instant) {
        let mut lost = Vec::new();
        for (place, ticket) in returned.iter().enumerate() {
            let Some(held) = self.held.get_mut(ticket) else { continue };
            held.is_out = false;
            lost.extend(held.lease.is_lost(now).then_some(place));
        }
        // The messages behind a lost one are dropped with the lost one (see `lost`).
        let kept = lost.first().copied();
        let Some(lane) = self.lanes.get_mut(key) else { return };
        for ticket in returned.iter().rev() {
            lane.queue.push_front(*ticket);
        }
        let dropped = kept.map(|kept| lane.queue.split_off(kept)).unwrap_or_default();
        let count = kept.unwrap_or(returned.len());
        self.give_back_lane(key, count, now);
        for waiting in dropped {
            self.forget(waiting);
        }
    }

    fn give_back_lane(&mut self, key: &Arc<str>, returned: usize, now: Instant) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        // If everything waits, or the key waits in doubt, the key needs no further pause.
        let is_in_doubt = lane.queue.front().is_some_and(|first| self.doubts.contains(*first));
        if returned == 0 || is_in_doubt || self.pace.wake_at(now).is_some() {
            lane.deferrals = 0;
            self.make_ready(key);
            return;
        }
        lane.deferrals += 1;
        let until = now + KEY_PAUSE.delay(lane.deferrals, self.random.next_u32());
        lane.state = State::Resting(until);
        self.resting.insert((until, Arc::clone(key)));
    }

    /// Returns the deliveries to acknowledge, in this order. Each is returned once.
    pub fn acknowledgements(&mut self, at_most: usize) -> Vec<String> {
        let count = at_most.min(self.acknowledgements.len());
        self.acknowledgements.drain(..count).collect()
    }

    /// Checks the leases that are due. Returns the deliveries to renew (C8), and drops messages
    /// whose lease has run out. Call this function while the stream is open. For a closed stream
    /// see [`lapse`](Self::lapse).
    pub fn renewals(&mut self, now: Instant) -> Vec<String> {
        let mut renewed = Vec::new();
        while let Some(ticket) = self.leases.next_due(now) {
            let Some(held) = self.held.get_mut(&ticket) else { continue };
            match self.leases.look(&held.lease, now) {
                Look::Renew => {
                    self.leases.renew(ticket, &mut held.lease, now, &mut self.random);
                    renewed.push(held.ack_id.clone());
                }
                Look::LetGo => self.leases.let_expire(ticket, &mut held.lease),
                Look::Lost => self.lost(ticket),
            }
        }
        renewed
    }

    /// Does the work of [`renewals`](Self::renewals) while the stream is closed and no lease can be
    /// renewed.
    pub fn lapse(&mut self, now: Instant) {
        while let Some(ticket) = self.leases.next_due(now) {
            let Some(held) = self.held.get_mut(&ticket) else { continue };
            match self.leases.look(&held.lease, now) {
                Look::Renew | Look::LetGo => self.leases.let_expire(ticket, &mut held.lease),
                Look::Lost => self.lost(ticket),
            }
        }
    }

    /// Returns all deliveries, which need renewal because the stream is open again.
    pub fn reopened(&mut self, now: Instant) -> Vec<String> {
        self.lapse(now);
        let mut renewed = Vec::new();
        for (ticket, held) in &mut self.held {
            if self.leases.look(&held.lease, now) == Look::Renew {
                self.leases.end(*ticket, &held.lease);
                self.leases.renew(*ticket, &mut held.lease, now, &mut self.random);
                renewed.push(held.ack_id.clone());
            }
        }
        renewed
    }

    /// Drops the deliveries that Pub/Sub reports as no longer ours. Exactly-once subscriptions
    /// report this.
    pub fn disowned(&mut self, ack_ids: &[String]) {
        // Nearly every confirmation refuses none, and the held messages may be thousands.
        if ack_ids.is_empty() {
            return;
        }
        let lost: BTreeSet<&String> = ack_ids.iter().collect();
        let tickets: Vec<Ticket> = self
            .held
            .iter()
            .filter(|(_, held)| lost.contains(&held.ack_id))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in tickets {
            self.lost(ticket);
        }
    }

    /// Drops messages because a lease has run out. A message in flight stays until its outcome is
    /// known. The unsent messages of its key are dropped from this message on. Another instance may
    /// apply them by now, and otherwise Pub/Sub redelivers them. The messages before this one stay,
    /// because redelivery would put them behind this one.
    fn lost(&mut self, ticket: Ticket) {
        let Some(held) = self.held.get_mut(&ticket) else { return };
        self.leases.end(ticket, &held.lease);
        held.lease.lose();
        let Some(key) = held.key.clone() else {
            if !held.is_out {
                self.forget(ticket);
            }
            return;
        };
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let kept = lane.queue.iter().position(|waiting| *waiting == ticket).unwrap_or(0);
        let dropped = lane.queue.split_off(kept);
        if lane.queue.is_empty() && lane.state == State::Ready {
            self.lanes.remove(&key);
        }
        for waiting in dropped {
            self.forget(waiting);
        }
    }

    /// Drops every message that is not in flight, at the end of a drain. Returns the deliveries, so
    /// that the caller can nack them.
    pub fn give_up(&mut self) -> Vec<String> {
        let waiting: Vec<Ticket> =
            self.held.iter().filter(|(_, held)| !held.is_out).map(|(ticket, _)| *ticket).collect();
        self.ready.clear();
        self.doubtful = IsolatedTurns::default();
        self.resting.clear();
        self.lanes.retain(|_, lane| {
            lane.queue.clear();
            lane.state == State::Out
        });
        waiting.iter().filter_map(|ticket| Some(self.forget(*ticket)?.ack_id)).collect()
    }

    /// Returns the time of the next action if nothing happens before.
    #[must_use]
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let rested = self.resting.first().map(|(at, _)| *at);
        let pace = if self.ready.is_empty() { None } else { self.pace.wake_at(now) };
        let IsolatedTurns { tried, untried, .. } = &self.doubtful;
        let is_waiting = !tried.is_empty() || !untried.is_empty();
        let doubts = self.doubts.wake_at(now).filter(|_| is_waiting);
        [rested, pace, doubts, self.leases.wake_at()].into_iter().flatten().min()
    }
}

//! All lanes: the next batch to send, the effect of each reply, and the parked keys.
//!
//! Owns every row between routing and settling. Promises I3 (a lane has one outstanding batch) and
//! I4 (a refused batch is sent again before the rows behind it). The caller does the sending, the
//! recording and the timing. [`LaneOutputs`] collects the work for the caller.

mod compact_parked_keys;
mod dead_rows;
mod due;
pub(crate) mod lane;
pub(crate) mod outputs;
mod parked;
mod relief;
mod resting;
mod spilling;
mod table;
mod undecided;
mod undecided_rows;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use due::DueLanes;

use crate::backoff::Backoff;
use crate::failure::{FailureClass, PublishFailure};
use crate::flow_control::wal_budget::SpillMode;
use crate::lanes::compact_parked_keys::CompactParkedKeys;
use crate::lanes::lane::{Batch, Lane, LaneId, Origin, Parked, Redelivery, Row, State, are_live};
use crate::lanes::outputs::{LaneOutputs, ParkCause};
use crate::lanes::table::LaneTable;
use crate::lanes::undecided_rows::UndecidedRows;
use crate::message::{Message, Topic};
use crate::publish_health::{
    Delivery, FailedDelivery, KeyBefore, PublishHealth, Recovery, RefusedRows,
};
use crate::random::Random;
use crate::tracker::Ticket;

pub use parked::{ClaimAnswer, ClaimKey};

/// The treatment of a key after one of its rows is found unpublishable, `--on-dead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// The rows behind the dead row are published.
    Continue,
    /// The rows behind the dead row wait until an operator has retried or discarded it.
    Hold,
}

/// The settings of lanes. The configuration has a default for every number.
#[derive(Debug, Clone, Copy)]
pub struct LanePolicy {
    /// Messages in one request. The service takes 1,000.
    pub batch_messages: usize,
    /// Bytes in one request without the topic's name. The service takes 10,000,000 in total.
    pub batch_bytes: usize,
    /// Delays after transient failures.
    pub transient: Backoff,
    /// Delays after failures that only an operator can fix.
    pub operator: Backoff,
    /// Delays between deliveries of a parked key.
    pub redelivery: Backoff,
    /// The time after which a stuck lane is parked, while others succeed.
    pub park_after: Duration,
    /// Failed deliveries after which a parked row is dead.
    pub max_attempts: u32,
    /// The maximum number of lanes for parked keys. Beyond it, a waiting key is stored as a
    /// fingerprint.
    pub parked_lanes: usize,
    /// The effect of a dead row on its key.
    pub on_dead: OnDead,
}

impl LanePolicy {
    /// The `park_after` of lanes whose rows never enter dispatch state.
    pub const NEVER_PARKS: Duration = Duration::from_hours(24 * 3650);
}

/// All lanes.
#[derive(Debug)]
pub struct Lanes {
    policy: LanePolicy,
    table: LaneTable,
    /// The lanes with rows to send, in round-robin order, so that no key starves another.
    ready: VecDeque<LaneId>,
    /// The lanes and parked keys that are due later.
    due: DueLanes,
    /// The parked keys that may be claimed now.
    claimable: VecDeque<LaneId>,
    health: PublishHealth,
    spill: SpillMode,
    /// Whether a key was spilled since the last moment without parked keys.
    has_spilled: bool,
    next_relief_at: Option<Instant>,
    /// The latest time that a caller passed in, used for rows of a topic that is known to fail.
    now: Option<Instant>,
    random: Random,
    outputs: LaneOutputs,
    /// The number of parked keys with a lane.
    parked_count: usize,
    /// The number of parked keys whose next rows wait in memory.
    keys_waiting: usize,
    /// The parked keys without a lane.
    resting: CompactParkedKeys,
    /// Rows that were refused as invalid, until their second try.
    undecided: BTreeMap<Topic, UndecidedRows>,
}

impl Lanes {
    /// Creates an empty set of lanes. `seed` drives only the jitter and the key hash.
    #[must_use]
    pub fn new(policy: LanePolicy, seed: u64) -> Self {
        Self {
            policy,
            table: LaneTable::new(seed),
            ready: VecDeque::new(),
            due: DueLanes::new(),
            claimable: VecDeque::new(),
            health: PublishHealth::new(policy.park_after, policy.operator),
            spill: SpillMode::Off,
            has_spilled: false,
            next_relief_at: None,
            now: None,
            random: Random::new(seed),
            outputs: LaneOutputs::default(),
            parked_count: 0,
            keys_waiting: 0,
            resting: CompactParkedKeys::new(seed),
            undecided: BTreeMap::new(),
        }
    }

    /// Adds a routed row from the slot.
    pub fn push(&mut self, message: Message, ticket: Ticket) {
        let id = self.lane_of(message.topic(), message.ordering_key());
        let row = Row::new(message, Origin::Live(ticket));
        if !self.undecided.is_empty() {
            self.begin_with_passed_over(id);
        }
        if let Some(why) = self.park_cause(id) {
            return self.push_to_record(id, row, &why);
        }
        let lane = &mut self.table[id];
        if lane.sends_live_rows() {
            lane.enqueue(row);
            if lane.state == State::Empty {
                lane.state = State::Ready;
                self.ready.push_back(id);
            }
        } else {
            self.push_behind(id, row);
        }
        self.debug_check(id);
    }

    /// Adds a row that is recorded without being tried.
    fn push_to_record(&mut self, id: LaneId, row: Row, why: &ParkCause) {
        self.table[id].enqueue(row);
        if let Some(now) = self.now {
            self.set_aside(id, why, now);
        }
        self.debug_check(id);
    }

    /// The next batch to publish. Lanes take turns.
    pub fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        // The queue may still name lanes that were parked since and have nothing to send.
        let id = loop {
            let id = self.ready.pop_front()?;
            if self.table[id].state == State::Ready {
                break id;
            }
        };
        let healthy_time = self.health.healthy_time(now);
        let policy = self.policy;
        let lane = &mut self.table[id];
        let rows = lane.take_front(lane.rows_max(policy.batch_messages), policy.batch_bytes);
        let failed_before = lane.refusals.attempts;
        let id = if lane.is_ordered() || !lane.listed {
            lane.state = State::Out;
            lane.refusals.since.get_or_insert(healthy_time);
            id
        } else {
            self.detach(id, healthy_time)
        };
        self.health.sent(now);
        Some(Batch { lane: id, rows, failed_before, sent_at: now })
    }

    /// The time at which [`wake`](Self::wake) has work.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.next().into_iter().chain(self.next_second_try()).min()
    }

    /// The next time for a timer. Ready lanes wait for `opens_at`, if that is set.
    #[must_use]
    pub fn next_timer(&self, opens_at: Option<Instant>) -> Option<Instant> {
        let opens_at = opens_at.filter(|_| !self.ready.is_empty());
        self.next_due().into_iter().chain(opens_at).min()
    }

    /// Makes due lanes ready to send, and due parked keys claimable.
    pub fn wake(&mut self, now: Instant) {
        self.now = Some(now);
        self.try_due_again(now);
        while let Some((at, id)) = self.due.pop(now) {
            let lane = &mut self.table[id];
            if lane.state == (State::Waiting { until: at }) {
                lane.state = State::Ready;
                self.ready.push_back(id);
            }
            if lane.rests_until(at) {
                self.claimable.push_back(id);
            }
        }
    }

    /// The work that the calls since the last drain request from the caller.
    pub fn outputs(&mut self) -> &mut LaneOutputs {
        &mut self.outputs
    }

    /// The number of lanes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no lane exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The topics of lanes with rows that are queued or outstanding.
    #[must_use]
    pub fn topics_queued(&self) -> BTreeSet<Topic> {
        let lanes = self.table.ids().map(|id| &self.table[id]);
        let holds =
            |lane: &&Lane| matches!(lane.state, State::Ready | State::Out | State::Waiting { .. });
        let queued = lanes.filter(holds).map(|lane| Topic::clone(&lane.topic));
        queued.chain(self.undecided.keys().map(Topic::clone)).collect()
    }

    /// The topics of lanes with rows, and of parked keys that have a lane.
    #[must_use]
    pub fn topics_held(&self) -> BTreeSet<Topic> {
        let lanes = self.table.ids().map(|id| &self.table[id]);
        let holds = |lane: &&Lane| match lane.state {
            State::Free => false,
            State::Empty => lane.parked.is_some(),
            State::Ready | State::Out | State::Waiting { .. } => true,
        };
        let queued = lanes.filter(holds).map(|lane| Topic::clone(&lane.topic));
        queued.chain(self.undecided.keys().map(Topic::clone)).collect()
    }

    /// Whether no row of the key is being delivered from dispatch state or is about to be.
    #[must_use]
    pub fn rests(&self, topic: &Topic, ordering_key: &str, now: Instant) -> bool {
        let id = self.table.find(topic, ordering_key);
        match id.and_then(|id| self.table[id].parked.as_ref()).map(|parked| parked.redelivery) {
            None => true,
            Some(Redelivery::Pausing { until }) => until > now,
            Some(Redelivery::Claiming { .. } | Redelivery::Publishing) => false,
        }
    }

    /// Checks every lane against the legal combinations. For tests only, because it visits all
    /// lanes.
    ///
    /// # Panics
    ///
    /// A lane is in an illegal combination.
    pub fn check(&self) {
        self.table.check();
        let parked = self.table.ids().filter(|id| self.table[*id].parked.is_some());
        assert_eq!(parked.count(), self.parked_count, "I4: parked keys are miscounted");
        let waiting = self.lanes_waiting().count();
        assert_eq!(waiting, self.keys_waiting, "I4: keys with waiting rows are miscounted");
    }

    /// The number of keys with rows in dispatch state.
    #[must_use]
    pub fn parked_keys(&self) -> usize {
        self.parked_count + self.resting.len()
    }

    /// Whether publishes are tried and none succeeds.
    #[must_use]
    pub fn is_outage(&self, now: Instant) -> bool {
        self.health.is_outage(now)
    }

    /// Whether Pub/Sub is storing rows.
    #[must_use]
    pub fn delivery(&self, now: Instant) -> Delivery {
        self.health.delivery(now)
    }

    /// Notes that Pub/Sub stored the batch under these message ids.
    pub fn stored(&mut self, batch: Batch, message_ids: Vec<String>, now: Instant) {
        match self.health.stored(batch.topic(), batch.sent_at, now) {
            Recovery::Nothing => {}
            Recovery::Topic => {
                let topic = Topic::clone(batch.topic());
                self.retry_soon(now, |lane| lane.topic == topic);
            }
            Recovery::Everything => self.retry_soon(now, |_| true),
        }
        if !self.undecided.is_empty() {
            self.try_again_after(batch.topic(), batch.ordering_key(), now);
        }
        let (id, count) = (batch.lane, batch.rows.len());
        assert_eq!(message_ids.len(), count, "one message id a row");
        for (row, message_id) in batch.rows.into_iter().zip(message_ids) {
            self.outputs.row_stored(row, message_id);
        }
        self.table[id].stored(count, self.policy.batch_messages);
        self.after_reply(id, now);
        self.debug_check(id);
    }

    /// Notes that Pub/Sub did not confirm the batch.
    pub fn refused(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        self.take_refusal(batch, failure, now);
        self.debug_check(id);
    }

    // The rest is private: the effects of the calls above on one lane.

    fn take_refusal(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        self.now = Some(now);
        let rows = self.refused_rows(&batch);
        let failed = self.health.refused(batch.topic(), failure, rows, now);
        if failure.class == FailureClass::Row {
            return self.refused_row(batch, failure, now);
        }
        self.retry_later(batch, failure, failed, now);
    }

    /// Retries a refused batch later. `failed` is the delivery, if the key is parked.
    fn retry_later(
        &mut self,
        batch: Batch,
        failure: &PublishFailure,
        failed: Option<FailedDelivery>,
        now: Instant,
    ) {
        match are_live(&batch.rows) {
            true => self.retry_live_later(batch.lane, batch.rows, failure, now),
            false => self.delivery_failed(batch, failure, failed, now),
        }
    }

    /// Puts refused rows from the slot back in front of their lane, and retries them later.
    fn retry_live_later(
        &mut self,
        id: LaneId,
        mut rows: VecDeque<Row>,
        failure: &PublishFailure,
        now: Instant,
    ) {
        rows.iter_mut().for_each(|row| row.is_last_try = false);
        let is_stuck = self.is_stuck(id, failure.class, now);
        let lane = &mut self.table[id];
        lane.refusals.attempts += 1;
        lane.refusals.code = Some(failure.code);
        let attempts = lane.refusals.attempts;
        let parked = lane.parked.is_some();
        lane.put_back(rows);
        if parked || is_stuck || self.spill != SpillMode::Off {
            let why = self.park_cause_of(failure);
            self.park(id, &why, now);
            return;
        }
        let backoff = match failure.class {
            FailureClass::Operator => self.policy.operator,
            FailureClass::Transient | FailureClass::Row => self.policy.transient,
        };
        let mut delay = backoff.delay(attempts, self.random.next_u32());
        if failure.class == FailureClass::Operator || !self.health.is_outage(now) {
            // A longer delay would let the lane sleep past the time at which it is parked.
            let rest = self.until_stuck(id, failure.class, now);
            delay = delay.min(self.policy.park_after / 2).min(rest);
        }
        let delay = self.health.retry_delay(delay, now);
        self.table[id].state = State::Waiting { until: now + delay };
        self.look_at(now + delay, id);
    }

    /// The rows of a refused batch, and what is known of their key.
    fn refused_rows(&self, batch: &Batch) -> RefusedRows {
        if are_live(&batch.rows) {
            let attempts = self.table[batch.lane].refusals.attempts;
            return RefusedRows::Live(KeyBefore::after(attempts));
        }
        let parked = self.parked_key(batch.lane).and_then(|id| self.table[id].parked.as_ref());
        parked.map_or(RefusedRows::Unparked, |parked| RefusedRows::Parked {
            key: KeyBefore::after(parked.failures),
            last: parked.failed,
        })
    }

    /// Schedules a check of the lane at this time.
    fn look_at(&mut self, at: Instant, id: LaneId) {
        let Self { due, table, .. } = self;
        due.push(at, id, |until, lane| table[lane].waits_until(until));
    }

    /// Checks the changed lane in debug builds, and therefore in tests and in the simulation.
    fn debug_check(&self, id: LaneId) {
        if cfg!(debug_assertions) {
            self.table.check_lane(id);
        }
    }

    /// After a reply, makes the lane ready for its next rows or removes it.
    fn after_reply(&mut self, id: LaneId, now: Instant) {
        let lane = &mut self.table[id];
        if lane.queue.is_empty() {
            lane.rest();
            if let Some(Parked { redelivery: Redelivery::Publishing, failures, failed, .. }) =
                &mut lane.parked
            {
                (*failures, *failed) = (0, None);
                self.pause(id, now);
            }
            self.table.remove_if_unused(id);
        } else {
            lane.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    /// Retries every matching lane and parked key within a second.
    fn retry_soon(&mut self, now: Instant, matches: impl Fn(&Lane) -> bool) {
        for id in self.table.ids() {
            let soon = now + Duration::from_millis(u64::from(self.random.next_u32() % 1_000));
            let lane = &mut self.table[id];
            if !matches(lane) {
                continue;
            }
            let mut is_sooner = false;
            if let State::Waiting { until } = &mut lane.state
                && *until > soon
            {
                *until = soon;
                is_sooner = true;
            }
            if let Some(Parked { redelivery: Redelivery::Pausing { until }, .. }) = &mut lane.parked
                && *until > soon
            {
                *until = soon;
                is_sooner = true;
            }
            if is_sooner {
                self.look_at(soon, id);
            }
        }
    }

    /// Moves a batch of unordered rows to a lane of its own. The topic's lane collects the next
    /// rows.
    fn detach(&mut self, id: LaneId, healthy_time: Duration) -> LaneId {
        let lane = &mut self.table[id];
        let mut loose = Lane::loose(Topic::clone(&lane.topic));
        loose.state = State::Out;
        loose.refusals.since = Some(healthy_time);
        if lane.queue.is_empty() {
            lane.state = State::Empty;
        } else {
            self.ready.push_back(id);
        }
        let loose = self.table.insert(loose);
        self.table.remove_if_unused(id);
        loose
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes() -> Lanes {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };
        let policy = LanePolicy {
            batch_messages: 1,
            batch_bytes: 1,
            transient: backoff,
            operator: backoff,
            redelivery: backoff,
            park_after: Duration::from_secs(1),
            max_attempts: 1,
            parked_lanes: 1,
            on_dead: OnDead::Continue,
        };
        let mut lanes = Lanes::new(policy, 1);
        lanes.load_parked(&Topic::from("t"), "k", None, Instant::now());
        lanes.check();
        lanes
    }

    #[test]
    #[should_panic(expected = "I4: parked keys are miscounted")]
    fn parked_keys_that_are_miscounted_are_found() {
        let mut lanes = lanes();
        lanes.parked_count += 1;
        lanes.check();
    }

    #[test]
    #[should_panic(expected = "no legal combination")]
    fn a_step_that_leaves_a_lane_in_no_legal_combination_is_found() {
        let mut lanes = lanes();
        lanes.table[LaneId(0)].state = State::Waiting { until: Instant::now() };
        lanes.debug_check(LaneId(0));
    }
}

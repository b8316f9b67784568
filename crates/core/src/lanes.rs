//! All lanes: which may send next, what a reply means, which keys are parked.
//!
//! Owns every row between routing and settling. Promises I3 (a lane has one batch out) and I4 (a
//! refused batch goes out again before anything behind it). Leaves sending, recording and time to
//! the caller: what has to happen outside is collected in [`Effects`].

mod due;
mod failing;
mod parked;
mod resting;
mod spilling;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::effects::{Aside, Effects, Finished, RowToRecord};
use crate::failing_topics::FailingTopics;
use crate::failure::{FailureClass, PublishFailure};
use crate::lane::{Batch, Behind, Lane, LaneId, Origin, Parked, Redelivery, Row, State, are_live};
use crate::lane_table::LaneTable;
use crate::message::{Message, Topic};
use crate::random::Random;
use crate::resting_keys::RestingKeys;
use crate::topic_weather::{TopicWeather, WasWell};
use crate::tracker::Ticket;
use crate::wal_budget::Spill;
use crate::weather::{Change, Delivery, Weather};

use due::DueLanes;

pub use parked::{ClaimKey, Claimed};

/// What becomes of a key when one of its rows can never be published, `--on-dead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDead {
    /// The rows behind it flow on.
    Continue,
    /// They wait until an operator has retried or discarded it.
    Hold,
}

/// How lanes behave; every number has its default in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct LanePolicy {
    /// Messages in one request; the service takes 1,000.
    pub batch_messages: usize,
    /// Bytes in one request beside the topic's name; the service takes 10,000,000 in all.
    pub batch_bytes: usize,
    /// Delays after transient failures.
    pub transient: Backoff,
    /// Delays after failures that only an operator can end.
    pub operator: Backoff,
    /// Delays between deliveries of a parked key.
    pub redelivery: Backoff,
    /// A lane stuck for this long while others succeed is parked.
    pub park_after: Duration,
    /// Deliveries of a parked row before it is dead.
    pub max_attempts: u32,
    /// Lanes that parked keys may hold; of those beyond it only a fingerprint is kept while they wait.
    pub parked_lanes: usize,
    /// What a dead row does to its key.
    pub on_dead: OnDead,
}

/// Every lane there is.
#[derive(Debug)]
pub struct Lanes {
    policy: LanePolicy,
    table: LaneTable,
    /// Lanes with something to send, in turn: no key starves another.
    ready: VecDeque<LaneId>,
    /// Lanes and parked keys that are due later.
    due: DueLanes,
    /// Parked keys that may be claimed now.
    claimable: VecDeque<LaneId>,
    weather: Weather,
    topic_weather: TopicWeather,
    /// When the next try during an outage is due.
    probe_at: Option<Instant>,
    failing: FailingTopics,
    spill: Spill,
    /// Keys were spilled, and since then there has always been a parked one.
    has_spilled: bool,
    relieved_at: Option<Instant>,
    /// The latest time anybody told, for rows of a topic that is known sick.
    now: Option<Instant>,
    random: Random,
    effects: Effects,
    /// Parked keys that have a lane.
    parked_count: usize,
    /// Parked keys that have none.
    resting: RestingKeys,
}

impl Lanes {
    /// No lanes yet. `seed` drives jitter and the key hash, nothing else.
    #[must_use]
    pub fn new(policy: LanePolicy, seed: u64) -> Self {
        Self {
            policy,
            table: LaneTable::new(seed),
            ready: VecDeque::new(),
            due: DueLanes::new(),
            claimable: VecDeque::new(),
            weather: Weather::new(policy.park_after),
            topic_weather: TopicWeather::default(),
            probe_at: None,
            failing: FailingTopics::default(),
            spill: Spill::Off,
            has_spilled: false,
            relieved_at: None,
            now: None,
            random: Random::new(seed),
            effects: Effects::default(),
            parked_count: 0,
            resting: RestingKeys::new(seed),
        }
    }

    /// A routed row from the slot.
    pub fn push(&mut self, message: Message, ticket: Ticket) {
        let id = self.lane_of(message.topic(), message.ordering_key());
        let row = Row { message, origin: Origin::Live(ticket) };
        if let Some(why) = self.reason_to_set_aside(id) {
            return self.push_aside(id, row, &why);
        }
        let lane = &mut self.table[id];
        match &mut lane.parked {
            // Behind the rows of its key that are in the table (I4).
            Some(parked) if !lane.ordering_key.is_empty() => {
                parked.append();
                self.effects.rows_to_record.push(match (parked.behind, self.spill) {
                    (Behind::Spilled, _) | (_, Spill::Everything) => {
                        RowToRecord::aside(id, row, &Aside::Spilled(None), None)
                    }
                    (Behind::Queued, _) => RowToRecord::queued(id, row),
                });
            }
            _ => {
                lane.enqueue(row);
                if lane.state == State::Empty {
                    lane.state = State::Ready;
                    self.ready.push_back(id);
                }
            }
        }
        self.debug_check(id);
    }

    /// A row that is recorded without being tried.
    fn push_aside(&mut self, id: LaneId, row: Row, why: &Aside) {
        self.table[id].enqueue(row);
        if let Some(now) = self.now {
            self.set_aside(id, why, now);
        }
        self.debug_check(id);
    }

    /// A row that Pub/Sub would refuse whatever happens: dead before it was sent.
    pub fn push_dead(
        &mut self,
        message: Message,
        ticket: Ticket,
        failure: &PublishFailure,
        now: Instant,
    ) {
        let id = self.lane_of(message.topic(), message.ordering_key());
        self.dead(id, Row { message, origin: Origin::Live(ticket) }, failure, now);
        self.table.evict_if_spent(id);
    }

    /// The next batch to publish, lanes taking turns.
    pub fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        // The ring may name lanes that were parked since, and have nothing to send any more.
        let id = loop {
            let id = self.ready.pop_front()?;
            if self.table[id].state == State::Ready {
                break id;
            }
        };
        let fair = self.weather.fair(now);
        let policy = self.policy;
        let lane = &mut self.table[id];
        let rows = lane.take_front(lane.rows_max(policy.batch_messages), policy.batch_bytes);
        let id = if lane.is_ordered() || !lane.listed {
            lane.state = State::Out;
            lane.refusals.since.get_or_insert(fair);
            id
        } else {
            self.detach(id, fair)
        };
        self.weather.sent(now);
        Some(Batch { lane: id, rows, sent_at: now })
    }

    /// When [`wake`](Self::wake) has something to do next.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.next()
    }

    /// Lanes whose waiting is over may send again; parked keys whose rest is over may be claimed.
    pub fn wake(&mut self, now: Instant) {
        self.now = Some(now);
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

    /// What has to happen outside because of the calls since the last one.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Lanes that exist.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no lane exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The topics that rows wait for in a lane.
    #[must_use]
    pub fn topics_queued(&self) -> BTreeSet<Topic> {
        let lanes = self.table.ids().map(|id| &self.table[id]);
        let holds =
            |lane: &&Lane| matches!(lane.state, State::Ready | State::Out | State::Waiting { .. });
        lanes.filter(holds).map(|lane| Topic::clone(&lane.topic)).collect()
    }

    /// The topics that a lane holds rows of, or a key that is parked.
    #[must_use]
    pub fn topics_held(&self) -> BTreeSet<Topic> {
        let lanes = self.table.ids().map(|id| &self.table[id]);
        let holds = |lane: &&Lane| match lane.state {
            State::Free => false,
            State::Empty => lane.parked.is_some(),
            State::Ready | State::Out | State::Waiting { .. } => true,
        };
        lanes.filter(holds).map(|lane| Topic::clone(&lane.topic)).collect()
    }

    /// Whether nothing of a key is on its way from dispatch state, nor about to be.
    #[must_use]
    pub fn rests(&self, topic: &Topic, ordering_key: &str, now: Instant) -> bool {
        let id = self.table.find(topic, ordering_key);
        match id.and_then(|id| self.table[id].parked.as_ref()).map(|parked| parked.redelivery) {
            None => true,
            Some(Redelivery::Pausing { until }) => until > now,
            Some(Redelivery::Claiming { .. } | Redelivery::Publishing) => false,
        }
    }

    /// Checks every lane against the legal combinations; for tests, since it looks at all of them.
    ///
    /// # Panics
    ///
    /// A lane is in none.
    pub fn check(&self) {
        self.table.check();
        let parked = self.table.ids().filter(|id| self.table[*id].parked.is_some());
        assert_eq!(parked.count(), self.parked_count, "I4: parked keys are miscounted");
    }

    /// Keys that have rows in dispatch state.
    #[must_use]
    pub fn parked_keys(&self) -> usize {
        self.parked_count + self.resting.len()
    }

    /// Whether nothing at all is being stored although it is tried.
    #[must_use]
    pub fn is_outage(&self, now: Instant) -> bool {
        self.weather.is_outage(now)
    }

    /// Whether rows go out at all.
    #[must_use]
    pub fn delivery(&self, now: Instant) -> Delivery {
        self.weather.delivery(now)
    }

    /// Pub/Sub stored the batch, under these message ids.
    pub fn stored(&mut self, batch: Batch, message_ids: Vec<String>, now: Instant) {
        self.weather.answered(now);
        self.topic_weather.stored(batch.topic(), batch.sent_at);
        if self.weather.success(batch.sent_at, now) == Change::OutageOver {
            self.retry_soon(now, |_| true);
        }
        if !self.failing.is_empty() && self.failing.stored(batch.topic()) {
            let topic = Topic::clone(batch.topic());
            self.retry_soon(now, |lane| lane.topic == topic);
        }
        let (id, count) = (batch.lane, batch.rows.len());
        debug_assert_eq!(message_ids.len(), count, "one message id a row");
        for (row, message_id) in batch.rows.into_iter().zip(message_ids) {
            self.effects.row_stored(row, message_id);
        }
        self.table[id].stored(count, self.policy.batch_messages);
        self.after_reply(id, now);
        self.debug_check(id);
    }

    /// Pub/Sub did not confirm the batch.
    pub fn refused(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        self.take_refusal(batch, failure, now);
        self.debug_check(id);
    }

    // The rest is private: how the calls above change one lane.

    fn take_refusal(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        self.now = Some(now);
        self.weather.answered(now);
        if failure.class == FailureClass::Row {
            return self.refused_row(batch, failure, now);
        }
        self.failing.refused(batch.topic(), failure, now);
        self.weather.failure(now);
        let id = batch.lane;
        if !are_live(&batch.rows) {
            return self.delivery_failed(batch, failure, now);
        }
        let is_stuck = self.is_stuck(id, failure.class, now);
        let lane = &mut self.table[id];
        if lane.refusals.attempts == 0 && failure.class == FailureClass::Transient {
            self.weather.failure_of_the_well();
            self.topic_weather.failed(&lane.topic, WasWell::Yes, now);
        }
        lane.refusals.attempts += 1;
        let attempts = lane.refusals.attempts;
        let parked = lane.parked.is_some();
        lane.put_back(batch.rows);
        if parked || is_stuck || self.spill != Spill::Off {
            let why = self.aside_of(failure);
            self.park(id, &why, now);
            return;
        }
        let backoff = match failure.class {
            FailureClass::Operator => self.policy.operator,
            FailureClass::Transient | FailureClass::Row => self.policy.transient,
        };
        let mut delay = backoff.delay(attempts, self.random.next_u32());
        if failure.class == FailureClass::Operator || !self.weather.is_outage(now) {
            // A sick lane would sleep through the time until it is parked.
            let rest = self.until_stuck(id, failure.class, now);
            delay = delay.min(self.policy.park_after / 2).min(rest);
        }
        let delay = self.probing(delay, now);
        self.table[id].state = State::Waiting { until: now + delay };
        self.look_at(now + delay, id);
    }

    /// The lane waits until then.
    fn look_at(&mut self, at: Instant, id: LaneId) {
        let Self { due, table, .. } = self;
        due.push(at, id, |until, lane| table[lane].waits_until(until));
    }

    /// Debug builds, and so the tests and the simulation, check the lane that was changed.
    fn debug_check(&self, id: LaneId) {
        if cfg!(debug_assertions) {
            self.table.check_lane(id);
        }
    }

    /// While nothing is stored, somebody tries at least this often: it costs one request, and a
    /// service that is back is noticed. All others are called when it succeeds.
    const PROBE_EVERY: Duration = Duration::from_secs(2);

    /// A delay, or less for the one that probes.
    fn probing(&mut self, delay: Duration, now: Instant) -> Duration {
        let is_probed = self.probe_at.is_some_and(|at| at > now);
        if is_probed || !self.weather.is_outage(now) {
            return delay;
        }
        let delay = delay.min(Self::PROBE_EVERY);
        self.probe_at = Some(now + delay);
        delay
    }

    fn refused_row(&mut self, mut batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        if batch.rows.len() == 1
            && let Some(row) = batch.rows.pop_front()
        {
            self.table[id].rest();
            self.table[id].refusals.careful = Some(1);
            self.dead(id, row, failure, now);
            return self.after_reply(id, now);
        }
        let lane = &mut self.table[id];
        lane.refusals.suspects = batch.rows.len();
        lane.put_back(batch.rows);
        if lane.parked.is_some() && lane.holds_live_rows() {
            // Parked while it was out, because an operator retries earlier rows: the table sorts it out.
            return self.park(id, &Aside::refused(failure), now);
        }
        lane.state = State::Ready;
        self.ready.push_back(id);
    }

    /// A row that can never be published: recorded, and its key flows on or is held.
    fn dead(&mut self, id: LaneId, row: Row, failure: &PublishFailure, now: Instant) {
        let lane = &mut self.table[id];
        let hold = self.policy.on_dead == OnDead::Hold && lane.is_ordered();
        let is_claimed = matches!(row.origin, Origin::Claimed { .. });
        match row.origin {
            Origin::Claimed { attempts } => {
                self.effects.finished.push(Finished::dead(row.message, attempts + 1, failure));
            }
            Origin::Live(_) => {
                if hold && lane.parked.is_none() {
                    self.pause(id, now + Self::HELD_PAUSE);
                }
                if hold {
                    self.note_append(id);
                }
                self.effects.rows_to_record.push(RowToRecord::dead(
                    hold.then_some(id),
                    row,
                    failure,
                ));
            }
        }
        if hold && self.table[id].holds_live_rows() != is_claimed {
            self.append_queue(id, None);
        }
    }

    /// How often a key that is held by a dead row is looked at: an operator's decision takes
    /// effect within two seconds.
    const HELD_PAUSE: Duration = Duration::from_secs(1);

    /// After a reply: send on, or leave.
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
            self.table.evict_if_spent(id);
        } else {
            lane.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    /// Everything that waits and matches is tried again within a second.
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

    /// A batch of unordered rows goes on by itself; its topic's lane collects the next.
    fn detach(&mut self, id: LaneId, fair: Duration) -> LaneId {
        let lane = &mut self.table[id];
        let mut loose = Lane::loose(Topic::clone(&lane.topic));
        loose.state = State::Out;
        loose.refusals.since = Some(fair);
        if lane.queue.is_empty() {
            lane.state = State::Empty;
        } else {
            self.ready.push_back(id);
        }
        let loose = self.table.insert(loose);
        self.table.evict_if_spent(id);
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

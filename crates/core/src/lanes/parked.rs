//! Keys with rows in dispatch state: out of their lane, claimed back, and live again.
//!
//! The second half of [`Lanes`], drawn in [`lane`](crate::lane). Promises I4 across parking: rows of
//! a parked key join the table behind those it holds, and the key is live again only when an answer
//! that nothing could have made stale says that the table holds none.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::effects::{Finished, Parcel, Verdict};
use crate::failure::{FailureClass, PublishFailure};
use crate::lane::{Batch, Lane, LaneId, Origin, Parked, Rest, Row, State, Trouble};
use crate::message::{Message, Topic};

use super::Lanes;

/// A parked key whose rows should be read back now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimKey {
    /// Its lane, to answer with.
    pub lane: LaneId,
    /// Its topic.
    pub topic: Topic,
    /// Its ordering key; empty for the unordered rows of the topic.
    pub ordering_key: Box<str>,
}

/// What the store found for a [`ClaimKey`].
#[derive(Debug)]
pub struct Claimed {
    /// Rows in order, each with its attempts so far.
    pub rows: Vec<(Message, u32)>,
    /// When no row was returned: in how long to look again, or none if the table holds nothing of
    /// this key that is still to be delivered.
    pub held_for: Option<Duration>,
}

impl Lanes {
    /// A key that dispatch state holds rows of, read before streaming starts.
    pub fn load_parked(&mut self, topic: &Topic, ordering_key: &str, due: Instant) {
        let id = self.table.lane_of(topic, ordering_key);
        self.rest(id, due);
    }

    /// Rows of a key became due in the table without our doing: an operator retries them.
    ///
    /// A live key is parked for that, so that the rows in its lane do not interleave (I3).
    pub fn call_for(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        let id = self.table.lane_of(topic, ordering_key);
        match self.table[id].parked {
            Some(Parked { rest: Rest::Claiming { .. } | Rest::Delivering, .. }) => {}
            Some(Parked { rest: Rest::Resting { until }, .. }) if until <= now => {}
            Some(Parked { rest: Rest::Resting { .. }, .. }) => self.rest(id, now),
            None => {
                self.rest(id, now);
                self.append_queue(id, None);
            }
        }
    }

    /// Up to `max` parked keys whose rows should be read back now.
    pub fn claims(&mut self, max: usize, now: Instant) -> Vec<ClaimKey> {
        let mut claims = Vec::new();
        while claims.len() < max {
            let Some(id) = self.claimable.pop_front() else { break };
            let lane = &mut self.table[id];
            let busy = lane.state != State::Empty && lane.is_ordered();
            let Some(parked) = &mut lane.parked else { continue };
            let Rest::Resting { until } = parked.rest else { continue };
            if until > now {
                continue;
            }
            if busy || parked.durable < parked.barrier {
                // A batch of the live lane is still out, or its rows are not durable yet.
                self.rest(id, now + Self::SETTLE_PAUSE);
                continue;
            }
            parked.rest = Rest::Claiming { appended: false };
            claims.push(ClaimKey {
                lane: id,
                topic: Topic::clone(&lane.topic),
                ordering_key: lane.ordering_key.clone(),
            });
        }
        claims
    }

    /// How soon a parked key is looked at again that was not quite ready to be claimed.
    const SETTLE_PAUSE: Duration = Duration::from_millis(20);

    /// Whether a parked key may be claimed now.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        !self.claimable.is_empty()
    }

    /// The store's answer for a key; with nothing left in the table and nothing on its way there,
    /// the key is live again.
    ///
    /// # Panics
    ///
    /// The key was not being claimed.
    pub fn claimed(&mut self, id: LaneId, claimed: Claimed, now: Instant) {
        let lane = &mut self.table[id];
        let Some(Parked { rest: Rest::Claiming { appended }, handed, durable, .. }) = lane.parked
        else {
            panic!("I4: {id:?} was answered without a claim");
        };
        if claimed.rows.is_empty() {
            match claimed.held_for {
                Some(held_for) => self.rest(id, now + held_for),
                None if appended || durable < handed => self.rest(id, now + Self::SETTLE_PAUSE),
                None => self.unpark(id),
            }
            return;
        }
        let rows = claimed
            .rows
            .into_iter()
            .map(|(message, attempts)| Row { message, origin: Origin::Stored { attempts } });
        if lane.is_ordered() {
            rows.for_each(|row| lane.enqueue(row));
            lane.state = State::Ready;
            self.ready.push_back(id);
            self.set_rest(id, Rest::Delivering);
        } else {
            // Unordered rows are independent: they travel by themselves, and there may be more.
            let mut loose = Lane::loose(Topic::clone(&lane.topic));
            rows.for_each(|row| loose.enqueue(row));
            loose.state = State::Ready;
            let loose = self.table.insert(loose);
            self.ready.push_back(loose);
            self.rest(id, now);
        }
    }

    /// The store could not answer; the key rests a little.
    pub fn claim_failed(&mut self, id: LaneId, again_at: Instant) {
        self.rest(id, again_at);
    }

    /// A parcel's row is durable in dispatch state.
    pub fn appended(&mut self, id: LaneId) {
        if let Some(parked) = &mut self.table[id].parked {
            assert!(
                parked.durable < parked.handed,
                "I4: {id:?} appended more than was handed over"
            );
            parked.durable += 1;
        }
    }

    /// A delivery from dispatch state failed: the rows go back, the key backs off.
    pub(super) fn delivery_failed(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        let outage = self.weather.is_outage(now);
        // Neither an outage nor a missing right is the row's fault: it must not die of them.
        let counts = !outage && failure.class == FailureClass::Transient;
        let ordered = self.table[id].is_ordered();
        let failures = match &mut self.table[id].parked {
            Some(parked) => {
                parked.failures += 1;
                parked.failures
            }
            None => 1,
        };
        let delay = self.policy.redelivery.delay(failures, self.random.next_u32());
        let mut rows = batch.rows;
        rows.append(&mut self.table[id].take_queue());
        for (index, row) in rows.into_iter().enumerate() {
            let Origin::Stored { attempts } = row.origin else {
                panic!("I4: a live row among claimed ones");
            };
            // Of an ordered key only the head was really tried by itself.
            let tried = index == 0 || !ordered;
            let attempts = attempts + u32::from(tried && counts);
            let delay = if ordered {
                delay
            } else {
                self.policy.redelivery.delay(attempts, self.random.next_u32())
            };
            let verdict = match tried {
                true if attempts >= self.policy.max_attempts => Verdict::Dead,
                true => Verdict::Again { after: Some(delay) },
                false => Verdict::Again { after: None },
            };
            self.effects.finished.push(Finished::refused(row.message, attempts, failure, verdict));
        }
        let lane = &mut self.table[id];
        lane.state = State::Empty;
        lane.trouble = Trouble::default();
        if lane.parked.is_some() {
            self.rest(id, now + delay);
        }
        self.table.evict_if_spent(id);
    }

    /// Moves a stuck lane into dispatch state, in order.
    pub(super) fn park(&mut self, id: LaneId, failure: &PublishFailure, now: Instant) {
        let delay = self.policy.redelivery.delay(1, self.random.next_u32());
        let lane = &mut self.table[id];
        lane.trouble = Trouble::default();
        if lane.is_ordered() {
            if lane.parked.is_none() {
                self.rest(id, now + delay);
            }
            self.append_queue(id, Some((failure, delay)));
            // Rows pushed while these were out may be in the table already, and come after them.
            if let Some(parked) = &mut self.table[id].parked {
                parked.barrier = parked.handed;
            }
            return;
        }
        // Unordered rows are claimed back through the topic's listed lane.
        let rows = lane.take_queue();
        let topic = Topic::clone(&lane.topic);
        let listed = self.table.lane_of(&topic, "");
        if self.table[listed].parked.is_none() {
            self.rest(listed, now + delay);
        }
        for row in rows {
            self.note_append(listed);
            self.effects.parcels.push(Parcel::stuck(listed, row, failure, Some(delay)));
        }
        self.table.evict_if_spent(id);
    }

    /// Hands the queue of a parked lane over to dispatch state.
    pub(super) fn append_queue(&mut self, id: LaneId, stuck: Option<(&PublishFailure, Duration)>) {
        if !self.table[id].is_ordered() {
            return;
        }
        if self.table[id].state != State::Out {
            self.table[id].state = State::Empty;
        }
        let rows = self.table[id].take_queue();
        let (live, claimed): (VecDeque<Row>, VecDeque<Row>) =
            rows.into_iter().partition(|row| matches!(row.origin, Origin::Live(_)));
        for (index, row) in live.into_iter().enumerate() {
            self.note_append(id);
            let parcel = match stuck {
                Some((failure, delay)) => {
                    Parcel::stuck(id, row, failure, (index == 0).then_some(delay))
                }
                None => Parcel::queued(id, row),
            };
            self.effects.parcels.push(parcel);
        }
        for row in claimed {
            self.effects.finished.push(Finished::released(row));
        }
    }

    pub(super) fn note_append(&mut self, id: LaneId) {
        if let Some(parked) = &mut self.table[id].parked {
            parked.append();
        }
    }

    /// Parks the key, or changes when it is looked at again.
    pub(super) fn rest(&mut self, id: LaneId, until: Instant) {
        self.set_rest(id, Rest::Resting { until });
        self.due.push(Reverse((until, id)));
    }

    fn set_rest(&mut self, id: LaneId, rest: Rest) {
        let lane = &mut self.table[id];
        match &mut lane.parked {
            Some(parked) => parked.rest = rest,
            None => {
                lane.parked = Some(Parked { rest, handed: 0, durable: 0, barrier: 0, failures: 0 });
                self.parked_count += 1;
            }
        }
    }

    fn unpark(&mut self, id: LaneId) {
        self.table[id].parked = None;
        self.parked_count -= 1;
        self.table.evict_if_spent(id);
    }
}

impl Parked {
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.rest, Rest::Resting { .. })
    }

    pub(super) fn append(&mut self) {
        self.handed += 1;
        if let Rest::Claiming { appended } = &mut self.rest {
            *appended = true;
        }
    }
}

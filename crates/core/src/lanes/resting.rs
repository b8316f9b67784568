//! Parked keys without a lane: memory does not grow with the number of parked keys (I6).
//!
//! A parked key needs a lane while its rows are claimed or written to the table. In between, the
//! table holds the due time of the head. Beyond a number of lanes, such keys are *resting*: only a
//! fingerprint of each is kept. The fingerprint shows that a new row of the key belongs behind its
//! rows in the table (I4).

use std::time::{Duration, Instant};

use crate::lanes::lane::{Behind, LaneId, Parked, Redelivery, State};
use crate::message::Topic;

use super::Lanes;

impl Lanes {
    /// A key that is due sooner keeps its lane.
    const REST_MIN: Duration = Duration::from_millis(500);

    /// The longest time for which a key that a new row has woken keeps its lane.
    const WOKEN_LANE_MAX: Duration = Duration::from_secs(60);

    /// The memory of parked keys without a lane, in bytes, for the budget.
    #[must_use]
    pub fn resting_memory(&self) -> usize {
        self.resting.memory()
    }

    /// The number of keys that have rows in dispatch state and no lane.
    #[must_use]
    pub fn resting_keys(&self) -> usize {
        self.resting.len()
    }

    /// Whether the key has rows in dispatch state, so that its later rows must queue behind them.
    #[must_use]
    pub fn is_parked(&self, topic: &Topic, ordering_key: &str) -> bool {
        let lane = self.table.find(topic, ordering_key).map(|id| &self.table[id]);
        lane.is_some_and(|lane| lane.parked.is_some()) || self.resting.contains(topic, ordering_key)
    }

    /// Whether keys are resting and half of the lanes for parked keys are free. The next query for
    /// due keys may then return more at once.
    #[must_use]
    pub fn has_lanes_to_wake(&self) -> bool {
        !self.resting.is_empty() && self.parked_count <= self.policy.parked_lanes / 2
    }

    /// Makes a key due if its head has no due time. Queries for due keys cannot find such a key.
    ///
    /// An operator or an ended session has removed the rows before the head. A resting key is woken.
    /// A key not known to be parked is parked, because an ended session has put the row there. A
    /// parked key with a lane checks the table by itself.
    pub fn mark_without_due_time(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        let lane = self.table.find(topic, ordering_key).map(|id| &self.table[id]);
        if lane.is_some_and(|lane| lane.parked.is_some()) {
            return;
        }
        self.mark_due(topic, ordering_key, now);
        let id = self.lane_of(topic, ordering_key);
        if let Some(parked) = &mut self.table[id].parked {
            parked.is_timed = false;
        }
    }

    /// The topics whose due keys need not be queried now. An operator has to act, and one of the
    /// topic's keys was tried a moment ago.
    #[must_use]
    pub fn paused_topics(&self, now: Instant) -> Vec<Topic> {
        self.health.paused_topics(now)
    }

    /// The lane of a key, created on first use. A resting key is parked again.
    pub(super) fn lane_of(&mut self, topic: &Topic, ordering_key: &str) -> LaneId {
        let id = self.table.lane_of(topic, ordering_key);
        if !self.resting.is_empty()
            && self.table[id].is_spent()
            && self.resting.remove(topic, ordering_key)
        {
            let until = self.now.map(|now| now + Self::WOKEN_LANE_MAX);
            self.park_again(id, until);
        }
        id
    }

    /// The head of a resting key may have failed, so it is sent alone.
    fn park_again(&mut self, id: LaneId, until: Option<Instant>) {
        let Some(until) = until else { panic!("I4: a key rests without a due time") };
        self.pause(id, until);
        if let Some(parked) = &mut self.table[id].parked {
            parked.failures = 1;
            parked.is_timed = true;
            if self.has_spilled {
                parked.behind = Behind::Spilled;
            }
        }
    }

    /// Lets a parked key rest if there are too many lanes and the key is not due soon.
    pub(super) fn rest_if_lanes_scarce(&mut self, id: LaneId, now: Instant) {
        let Some(Parked { redelivery: Redelivery::Pausing { until }, .. }) = self.table[id].parked
        else {
            return;
        };
        if until >= now + Self::REST_MIN {
            self.rest_until_due_query(id);
        }
    }

    /// Lets a parked key rest if there are too many lanes, due or not. The next query for due keys
    /// finds it.
    pub(super) fn rest_until_due_query(&mut self, id: LaneId) {
        if self.parked_count <= self.policy.parked_lanes {
            return;
        }
        let lane = &self.table[id];
        // The table must hold everything that the lane knows.
        let is_known = lane.parked.as_ref().is_some_and(|parked| {
            matches!(parked.redelivery, Redelivery::Pausing { .. })
                && parked.is_timed
                && parked.rows_durable == parked.rows_handed_over
                && parked.waiting.is_none()
        });
        if lane.state != State::Empty || !is_known {
            return;
        }
        self.resting.insert(&Topic::clone(&lane.topic), &lane.ordering_key.clone());
        self.unpark(id);
    }
}

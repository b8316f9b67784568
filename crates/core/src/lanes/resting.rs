//! Parked keys that are only known by name: memory does not follow how many keys are parked (I6).
//!
//! A parked key needs a lane when its rows are claimed, or go into the table. In between it needs
//! none: the table says when its head is due. Beyond a number of lanes such keys *rest*: only a
//! fingerprint of each is kept, which tells that a row of it belongs behind those in the table (I4).

use std::time::{Duration, Instant};

use crate::lane::{Behind, LaneId, Parked, Redelivery, State};
use crate::message::Topic;

use super::Lanes;

impl Lanes {
    /// A key whose head is due sooner keeps its lane.
    const REST_MIN: Duration = Duration::from_millis(500);

    /// How long a key that was woken by a row behind it keeps its lane at most.
    const LOOK_PAUSE: Duration = Duration::from_secs(60);

    /// Memory that parked keys without a lane hold, for the budget.
    #[must_use]
    pub fn resting_memory(&self) -> usize {
        self.resting.memory()
    }

    /// Keys that have rows in dispatch state and no lane.
    #[must_use]
    pub fn resting_keys(&self) -> usize {
        self.resting.len()
    }

    /// Whether rows of a key wait in dispatch state, so that its later ones must wait behind them.
    #[must_use]
    pub fn is_parked(&self, topic: &Topic, ordering_key: &str) -> bool {
        let lane = self.table.find(topic, ordering_key).map(|id| &self.table[id]);
        lane.is_some_and(|lane| lane.parked.is_some()) || self.resting.contains(topic, ordering_key)
    }

    /// Whether keys rest, and half of the lanes of parked keys are left for them: a look finds more at
    /// once then.
    #[must_use]
    pub fn has_room_to_wake(&self) -> bool {
        !self.resting.is_empty() && self.parked_count <= self.policy.parked_lanes / 2
    }

    /// The head of a key has no time, so that the table never tells it is due: the rows before it were
    /// taken away by somebody else, an operator or a session that is gone. A key that rests is woken, and one
    /// that is not known to be parked is, since a session that is gone has put the row there. One with a lane
    /// looks again by itself.
    pub fn mark_untimed(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
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

    /// Topics whose due keys need not be looked for now: an operator has to act, and one of their
    /// keys has been tried a moment ago.
    #[must_use]
    pub fn topics_at_rest(&self, now: Instant) -> Vec<Topic> {
        self.failing.at_rest(now)
    }

    /// The lane of a key, made on first use; one that rests is parked as it was.
    pub(super) fn lane_of(&mut self, topic: &Topic, ordering_key: &str) -> LaneId {
        let id = self.table.lane_of(topic, ordering_key);
        if !self.resting.is_empty()
            && self.table[id].is_spent()
            && self.resting.remove(topic, ordering_key)
        {
            let until = self.now.map(|now| now + Self::LOOK_PAUSE);
            self.park_again(id, until);
        }
        id
    }

    /// The head of a key that rested may have failed: it goes alone.
    fn park_again(&mut self, id: LaneId, until: Option<Instant>) {
        let Some(until) = until else { panic!("I4: a key rests and nobody told the time") };
        self.pause(id, until);
        if let Some(parked) = &mut self.table[id].parked {
            parked.failures = 1;
            parked.is_timed = true;
            if self.has_spilled {
                parked.behind = Behind::Spilled;
            }
        }
    }

    /// Lets a parked key rest if there are many, and it is not due at once.
    pub(super) fn rest_if_crowded(&mut self, id: LaneId, now: Instant) {
        let Some(Parked { redelivery: Redelivery::Pausing { until }, .. }) = self.table[id].parked
        else {
            return;
        };
        if until >= now + Self::REST_MIN {
            self.rest_until_told(id);
        }
    }

    /// The same, due or not: the next look for due keys tells.
    pub(super) fn rest_until_told(&mut self, id: LaneId) {
        if self.parked_count <= self.policy.parked_lanes {
            return;
        }
        let lane = &self.table[id];
        // The table must know all that the lane does.
        let is_known = lane.parked.as_ref().is_some_and(|parked| {
            matches!(parked.redelivery, Redelivery::Pausing { .. })
                && parked.is_timed
                && parked.durable == parked.handed
        });
        if lane.state != State::Empty || !is_known {
            return;
        }
        self.resting.insert(&Topic::clone(&lane.topic), &lane.ordering_key.clone());
        self.unpark(id);
    }
}

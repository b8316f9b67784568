//! Records rows because they retain too much WAL (I10).
//!
//! An outage parks nothing while retained WAL is within the budget. Beyond the budget, rows that
//! cannot be published are recorded like rows of a parked key, the oldest first. They are published
//! from the table when Pub/Sub is back. No row caused the outage, so no attempt is counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::PublishFailure;
use crate::flow_control::wal_budget::SpillMode;
use crate::lanes::lane::{Behind, LaneId, State};
use crate::message::Topic;

use super::{Lanes, ParkCause};

impl Lanes {
    /// The delay until the head of a spilled key is due. The table is queried for it when Pub/Sub
    /// is back.
    pub(super) const SPILLED_DUE: Duration = Duration::from_secs(1);

    /// Records the rows that must not retain WAL any longer, now and from now on.
    pub fn spill(&mut self, spill: SpillMode, now: Instant) {
        self.now = Some(now);
        if self.spill == spill {
            return;
        }
        self.spill = spill;
        if spill != SpillMode::Off {
            self.try_all_again(now);
            self.record_waiting();
        }
        let mut spilled: Vec<_> = self.table.ids().filter(|id| self.must_spill(*id)).collect();
        spilled.sort_by_key(|id| self.table[*id].queue.front().map(|row| row.message.position()));
        for id in spilled {
            let why = ParkCause::Spilled(self.last_refusal(id));
            self.set_aside(id, &why, now);
        }
    }

    /// The failure of the rows queued in a lane, if they were refused: the last failure of their
    /// topic.
    fn last_refusal(&self, id: LaneId) -> Option<Arc<PublishFailure>> {
        let lane = &self.table[id];
        let was_refused = lane.refusals.attempts > 0 && lane.state != State::Out;
        let failing = self.health.failing(&lane.topic).filter(|_| was_refused)?;
        Some(Arc::clone(&failing.failure))
    }

    /// Whether the lane holds live rows that are to be recorded.
    fn must_spill(&self, id: LaneId) -> bool {
        let lane = &self.table[id];
        let has_failed = lane.refusals.attempts > 0;
        let is_meant = match self.spill {
            SpillMode::Off => false,
            SpillMode::Failing => has_failed,
            SpillMode::Everything => true,
        };
        is_meant && lane.sends_live_rows() && lane.holds_live_rows()
    }

    /// Why a new row for this lane is recorded without being tried, if it is.
    pub(super) fn park_cause(&self, id: LaneId) -> Option<ParkCause> {
        if self.spill == SpillMode::Off && !self.health.has_failing_topics() {
            return None;
        }
        let lane = &self.table[id];
        let topic_failure = || {
            let failing = self.health.failing(&lane.topic)?;
            let failure = || ParkCause::Refused(Arc::clone(&failing.failure));
            failing.is_recorded_untried.then(failure)
        };
        match self.spill {
            _ if !lane.sends_live_rows() => None,
            SpillMode::Everything => Some(ParkCause::Spilled(None)),
            SpillMode::Failing | SpillMode::Off => topic_failure(),
        }
    }

    /// Why the rows of a refused batch are recorded.
    pub(super) fn park_cause_of(&self, failure: &PublishFailure) -> ParkCause {
        match self.spill {
            SpillMode::Off => ParkCause::refused(failure),
            SpillMode::Failing | SpillMode::Everything => {
                ParkCause::Spilled(Some(Arc::new(failure.clone())))
            }
        }
    }

    /// Marks a key as spilled, so that later rows behind it are recorded as spilled.
    pub(super) fn note_spilled(&mut self, id: LaneId) {
        self.has_spilled = true;
        if let Some(parked) = &mut self.table[id].parked {
            parked.behind = Behind::Spilled;
        }
    }

    /// Adds a key like [`load_parked`](Self::load_parked), if its first row was spilled. Later rows
    /// behind it are recorded as spilled.
    pub fn load_spilled(
        &mut self,
        topic: &Topic,
        ordering_key: &str,
        due_in: Option<Duration>,
        now: Instant,
    ) {
        self.load_parked(topic, ordering_key, due_in, now);
        self.has_spilled = true;
        if let Some(id) = self.table.find(topic, ordering_key) {
            self.note_spilled(id);
        }
    }

    pub(super) fn delay_of(&mut self, why: &ParkCause) -> Duration {
        match why {
            ParkCause::Refused(_) => self.policy.redelivery.delay(1, self.random.next_u32()),
            ParkCause::Spilled(_) => Self::SPILLED_DUE,
        }
    }
}

//! Topics that refuse rows, and the share of the budget that failing rows may use.
//!
//! Failing keys or topics must not fill the budget. Otherwise the relay reads no other rows,
//! nothing succeeds, and the state looks like an outage for ever. If the service is known to be up,
//! failing rows are recorded before `--park-after` once they use too much memory. New keys of a
//! topic that is known to fail are recorded at once. Rows that fail in an outage stay queued,
//! because their cause is unknown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{FailureClass, PublishFailure};
use crate::flow_control::budget::{Budget, BudgetLimits};
use crate::lanes::lane::{Batch, Lane, LaneId, State};
use crate::lanes::outputs::ParkCause;
use crate::message::Topic;
use crate::publish_health::Delivery;

use super::Lanes;

/// The time after which a key whose request has no reply is held up.
const HELD_UP_AFTER: Duration = Duration::from_secs(1);

impl Lanes {
    /// The shortest pause between two scans for failing rows.
    const RELIEF_PAUSE: Duration = Duration::from_millis(100);

    /// Records failing rows while the budget is nearly full and the service is up. Starts with the
    /// heaviest topic and stops when failing rows use no more than `share`.
    pub fn relieve(&mut self, share: BudgetLimits, now: Instant) {
        if !self.health.has_failing_topics() || self.next_relief_at.is_some_and(|at| now < at) {
            return;
        }
        self.next_relief_at = Some(now + Self::RELIEF_PAUSE);
        let mut held: BTreeMap<Topic, Held> = BTreeMap::new();
        let mut total = BudgetLimits { bytes: 0, rows: 0 };
        for id in self.table.ids().filter(|id| self.fails_while_others_succeed(*id)) {
            let lane = &self.table[id];
            let of_topic = held.entry(Topic::clone(&lane.topic)).or_default();
            of_topic.lanes.push(id);
            of_topic.bytes += lane.queue_memory();
            total.bytes += lane.queue_memory();
            total.rows += lane.queue.len();
            of_topic.rows += lane.queue.len();
        }
        let mut heaviest: Vec<_> = held.into_iter().collect();
        heaviest.sort_by_key(|(_, of_topic)| std::cmp::Reverse(of_topic.bytes));
        for (topic, of_topic) in heaviest {
            if total.bytes <= share.bytes && total.rows <= share.rows {
                break;
            }
            total.bytes -= of_topic.bytes;
            total.rows -= of_topic.rows;
            self.record_failing(&topic, of_topic.lanes, now);
        }
    }

    /// Notes in a full budget how many rows are held up, so that rows of other keys are read. `out`
    /// are the batches without a reply.
    pub fn hold_up<'a>(
        &self,
        budget: &mut Budget,
        out: impl Iterator<Item = &'a Batch>,
        now: Instant,
    ) {
        if budget.is_read_ahead() {
            budget.hold_up(self.held_up_rows(out, now));
        }
    }

    /// The rows of keys that are held up: their request has no reply, or they wait for the next
    /// attempt. None while nothing succeeds, because the cause is then not in the keys.
    fn held_up_rows<'a>(&self, out: impl Iterator<Item = &'a Batch>, now: Instant) -> usize {
        if self.health.delivery(now) == Delivery::Stalled {
            return 0;
        }
        let unanswered = out
            .filter(|batch| now.saturating_duration_since(batch.sent_at) >= HELD_UP_AFTER)
            .map(|batch| batch.rows.len() + self.table[batch.lane].queue.len());
        let waiting = self.table.ids().map(|id| &self.table[id]);
        let waiting = waiting.filter(|lane| matches!(lane.state, State::Waiting { .. }));
        unanswered.chain(waiting.map(|lane| lane.queue.len())).sum()
    }

    fn record_failing(&mut self, topic: &Topic, lanes: Vec<LaneId>, now: Instant) {
        let Some(why) = self.refusal_of(topic, &lanes) else { return };
        // One heavy lane is a failing key and says nothing about the topic.
        if lanes.len() > 1 {
            self.health.record_untried(topic);
        }
        for id in lanes {
            self.set_aside(id, &why, now);
        }
    }

    /// Why the rows of these lanes of the topic are recorded. If the failure of the topic is no
    /// longer remembered, only its code is known.
    fn refusal_of(&self, topic: &Topic, lanes: &[LaneId]) -> Option<ParkCause> {
        if let Some(failing) = self.health.failing(topic) {
            return Some(ParkCause::Refused(Arc::clone(&failing.failure)));
        }
        let refusals = lanes.iter().map(|id| &self.table[*id].refusals);
        let (class, code) = refusals.into_iter().find_map(|refusals| {
            let class = match refusals.operator_since {
                Some(_) => FailureClass::Operator,
                None => FailureClass::Transient,
            };
            Some((class, refusals.code?))
        })?;
        let text = "too many topics refuse rows to keep the text of each";
        Some(ParkCause::refused(&PublishFailure::new(class, code, text)))
    }

    /// Whether the lane's live rows fail although other rows are stored.
    fn fails_while_others_succeed(&self, id: LaneId) -> bool {
        let lane = &self.table[id];
        let waits = lane.sends_live_rows() && lane.holds_live_rows();
        let is_topic_failing = || {
            self.health.failing(&lane.topic).is_some()
                || (self.health.may_forget_failing_topics() && lane.refusals.code.is_some())
        };
        if !waits || !is_topic_failing() {
            return false;
        }
        // A failure that an operator has to fix is an answer of the service. For any other failure,
        // a request sent later must have been stored.
        let others_succeed = || {
            let first = lane.refusals.first;
            first.is_some_and(|moment| self.health.has_stored_since(moment))
        };
        lane.refusals.operator_since.is_some() || others_succeed()
    }

    /// Moves the rows of a lane into dispatch state, even if a request is outstanding.
    pub(super) fn set_aside(&mut self, id: LaneId, why: &ParkCause, now: Instant) {
        if self.table[id].state != State::Out {
            self.park(id, why, now);
        } else if self.table[id].is_ordered() {
            // The outstanding batch may still be stored. If it is refused, it goes into the table
            // before these rows.
            let (delay, aside) = match why {
                ParkCause::Refused(_) => (self.policy.redelivery.base, None),
                ParkCause::Spilled(_) => (Self::SPILLED_DUE, Some((why, Self::SPILLED_DUE))),
            };
            self.pause(id, now + delay);
            self.append_queue(id, aside);
        }
    }

    /// Notes a refused live row. Returns whether its lane or its topic has been stuck for long
    /// enough.
    pub(super) fn is_stuck(&mut self, id: LaneId, class: FailureClass, now: Instant) -> bool {
        let Lane { topic, refusals, .. } = &mut self.table[id];
        refusals.first.get_or_insert(now);
        if class == FailureClass::Operator {
            refusals.operator_since.get_or_insert(now);
        }
        let is_recorded_untried = class == FailureClass::Operator
            && self.health.failing(topic).is_some_and(|failing| failing.is_recorded_untried);
        is_recorded_untried || self.until_stuck(id, class, now) == Duration::ZERO
    }

    /// The remaining time until a refused lane is parked, if others keep succeeding.
    pub(super) fn until_stuck(&self, id: LaneId, class: FailureClass, now: Instant) -> Duration {
        let (refusals, healthy_time) = (&self.table[id].refusals, self.health.healthy_time(now));
        let rest = |stuck: Duration| self.policy.park_after.saturating_sub(stuck);
        let by_healthy_time = match self.health.is_outage(now) {
            true => Duration::MAX,
            false => rest(healthy_time.saturating_sub(refusals.since.unwrap_or(healthy_time))),
        };
        // The service answered, so there is no outage and wall time counts.
        let by_the_clock = match (class, refusals.operator_since) {
            (FailureClass::Operator, Some(since)) => rest(now.saturating_duration_since(since)),
            (FailureClass::Operator | FailureClass::Transient | FailureClass::Row, _) => {
                Duration::MAX
            }
        };
        by_healthy_time.min(by_the_clock)
    }
}

/// The rows and bytes of a topic's failing lanes.
#[derive(Debug, Default)]
struct Held {
    lanes: Vec<LaneId>,
    bytes: usize,
    rows: usize,
}

//! Publish health: the results of publish calls, and the conclusions from them.
//!
//! Three facts go in: a request was sent, stored, or refused. The questions have different
//! thresholds and lifetimes, so each is answered by the detector that fits it. None of them holds
//! any order: a wrong answer costs requests or time, and never a row.
//!
//! | question | answers | threshold |
//! | --- | --- | --- |
//! | [`healthy_time`] | since when a lane is stuck | gaps count up to `--park-after` / 2 |
//! | [`is_outage`] | whether nothing is stored at all | `--park-after` / 2 |
//! | [`delivery`] | the same, for callers that cannot wait | 1 s refused, 5 s silent |
//! | [`has_stored_since`] | whether a failing lane fails alone | one later success |
//! | [`is_row_at_fault`] | whether an attempt counts against a row | one later success of the topic |
//! | [`is_at_fault`] | whether a topic refuses every row as invalid | 20 rows, or 3 keys of a new topic |
//! | [`failing`] | the failure of a topic | `--park-after`, for rows recorded untried |
//! | [`may_claim`], [`paused_topics`] | whether a parked key is tried | 5 s a topic, 2 s in an outage |
//! | [`retry_delay`] | when a refused lane is tried | 2 s while the service seems down |
//!
//! [`healthy_time`]: PublishHealth::healthy_time
//! [`is_outage`]: PublishHealth::is_outage
//! [`delivery`]: PublishHealth::delivery
//! [`has_stored_since`]: PublishHealth::has_stored_since
//! [`is_row_at_fault`]: PublishHealth::is_row_at_fault
//! [`is_at_fault`]: PublishHealth::is_at_fault
//! [`failing`]: PublishHealth::failing
//! [`may_claim`]: PublishHealth::may_claim
//! [`paused_topics`]: PublishHealth::paused_topics
//! [`retry_delay`]: PublishHealth::retry_delay

mod failed_delivery;
mod failing_topics;
mod invalid_topics;
mod outage_detector;
mod success_intervals;
mod topic_intervals;

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::failure::{FailureClass, PublishFailure};
use crate::message::Topic;

use failed_delivery::FailureInterval;
use failing_topics::{FailingTopic, FailingTopics};
use invalid_topics::InvalidTopics;
use outage_detector::OutageDetector;
use topic_intervals::TopicIntervals;

pub(crate) use failed_delivery::{FailedDelivery, KeyBefore};
pub use outage_detector::Delivery;

/// The health of publishing in one replication session.
#[derive(Debug)]
pub(crate) struct PublishHealth {
    park_after: Duration,
    /// Delays between probes of a topic that an operator has to fix.
    operator: Backoff,
    outage: OutageDetector,
    topic_intervals: TopicIntervals,
    failing: FailingTopics,
    invalid: InvalidTopics,
    /// The time of the next probe during an outage.
    probe_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedRows {
    /// Rows from the slot.
    Live(KeyBefore),
    /// Rows from dispatch state, with the last failed delivery of their key.
    Parked { key: KeyBefore, last: Option<FailedDelivery> },
    /// Rows without an ordering key from dispatch state, which holds no others of their topic.
    Unparked,
}

/// The effect of a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Nothing had to recover.
    Nothing,
    /// The topic stores rows again, after a failure that an operator had to fix.
    Topic,
    /// The service was down, as far as is known, and stores rows again.
    Everything,
}

/// The facts.
impl PublishHealth {
    pub(crate) fn new(park_after: Duration, operator: Backoff) -> Self {
        Self {
            park_after,
            operator,
            outage: OutageDetector::new(park_after),
            topic_intervals: TopicIntervals::default(),
            failing: FailingTopics::default(),
            invalid: InvalidTopics::default(),
            probe_at: None,
        }
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.outage.sent(now);
    }

    /// Notes that Pub/Sub stored a request of the topic that was sent at `sent_at`.
    pub(crate) fn stored(&mut self, topic: &Topic, sent_at: Instant, now: Instant) -> Recovery {
        self.outage.answered(now);
        self.topic_intervals.stored(topic, sent_at);
        self.invalid.stored(topic);
        let is_outage_over = self.outage.stored(sent_at, now);
        let is_topic_fixed = !self.failing.is_empty() && self.failing.stored(topic);
        match (is_outage_over, is_topic_fixed) {
            (true, _) => Recovery::Everything,
            (false, true) => Recovery::Topic,
            (false, false) => Recovery::Nothing,
        }
    }

    /// Notes that Pub/Sub did not confirm a request of the topic. For rows of a parked key, returns
    /// the failed delivery, for [`is_row_at_fault`](Self::is_row_at_fault) when the key fails again.
    ///
    /// If a row can never be published, the refusal is an answer and says nothing about the topic.
    pub(crate) fn refused(
        &mut self,
        topic: &Topic,
        failure: &PublishFailure,
        rows: RefusedRows,
        now: Instant,
    ) -> Option<FailedDelivery> {
        self.outage.answered(now);
        self.note_refusal(topic, failure, rows, now)
    }

    /// Notes a refusal like [`refused`](Self::refused), for a reply that was noted before.
    pub(crate) fn note_refusal(
        &mut self,
        topic: &Topic,
        failure: &PublishFailure,
        rows: RefusedRows,
        now: Instant,
    ) -> Option<FailedDelivery> {
        let is_transient = match failure.class {
            FailureClass::Row => return None,
            FailureClass::Transient => true,
            FailureClass::Operator => false,
        };
        self.failing.refused(topic, failure, now);
        self.outage.refused(now);
        match rows {
            RefusedRows::Live(key) if is_transient => {
                if key == KeyBefore::Healthy {
                    self.outage.note_healthy_key_failure();
                    self.topic_intervals.failed(topic, key, now);
                }
                None
            }
            RefusedRows::Live(_) => {
                self.failing.judge(topic, self.park_after, now);
                None
            }
            RefusedRows::Parked { key, last } => {
                let key = if is_transient { key } else { KeyBefore::Failing };
                Some(self.failed_delivery(topic, key, last, now))
            }
            RefusedRows::Unparked => None,
        }
    }

    /// Notes that Pub/Sub refused rows of the topic as invalid. A single row is refused with its
    /// ordering key. Returns whether the topic refuses every row, as far as is known.
    pub(crate) fn note_invalid(
        &mut self,
        topic: &Topic,
        single_row_of: Option<&str>,
        now: Instant,
    ) -> bool {
        if let Some(ordering_key) = single_row_of {
            self.invalid.refused(topic, ordering_key, now);
        }
        self.invalid.is_at_fault(topic)
    }

    pub(crate) fn refuses_as_invalid(&self, topic: &Topic) -> bool {
        self.invalid.refuses(topic)
    }

    pub(crate) fn is_at_fault(&self, topic: &Topic) -> bool {
        self.invalid.is_at_fault(topic)
    }

    fn failed_delivery(
        &mut self,
        topic: &Topic,
        key: KeyBefore,
        last: Option<FailedDelivery>,
        now: Instant,
    ) -> FailedDelivery {
        if key == KeyBefore::Healthy {
            self.outage.note_healthy_key_failure();
        }
        let of_topic = self.topic_intervals.failed(topic, key, now);
        let everywhere = self.outage.interval();
        FailedDelivery {
            at: now,
            everywhere: FailureInterval::following(
                last.map(|failed| failed.everywhere),
                everywhere,
                key,
            ),
            of_topic: FailureInterval::following(last.map(|failed| failed.of_topic), of_topic, key),
        }
    }
}

/// The questions.
impl PublishHealth {
    /// The healthy time up to now, for lanes that are parked after `--park-after` of it. It runs
    /// only while successes are at most half of `--park-after` apart.
    pub(crate) fn healthy_time(&self, now: Instant) -> Duration {
        self.outage.healthy_time(now)
    }

    pub(crate) fn is_outage(&self, now: Instant) -> bool {
        self.outage.is_outage(now)
    }

    /// Whether Pub/Sub is storing rows. It is stalled after one second of refusals, or five seconds
    /// without any reply. This reacts sooner than [`is_outage`](Self::is_outage), for callers that
    /// cannot wait.
    pub(crate) fn delivery(&self, now: Instant) -> Delivery {
        self.outage.delivery(now)
    }

    pub(crate) fn has_stored_since(&self, moment: Instant) -> bool {
        self.outage.has_stored_what_was_sent_after(moment)
    }

    /// Whether the row caused its failed delivery. A request of the topic that was sent later must
    /// have been stored. And no other healthy key may have failed in the same success interval.
    ///
    /// An intermittent outage, of one topic or of all, makes several healthy keys fail each time.
    pub(crate) fn is_row_at_fault(&self, topic: &Topic, failed: &FailedDelivery) -> bool {
        self.topic_intervals.has_only_own_failure(topic, failed)
            && self.outage.has_only_own_failure(failed)
    }

    /// Whether any topic refused a row since it last stored one.
    pub(crate) fn has_failing_topics(&self) -> bool {
        !self.failing.is_empty()
    }

    /// The failure of a topic that refused a row since it last stored one. Its rows are recorded
    /// untried once an operator has been needed for `--park-after`.
    pub(crate) fn failing(&self, topic: &Topic) -> Option<&FailingTopic> {
        self.failing.get(topic)
    }

    /// Whether more topics may have refused a row since they last stored one than are remembered.
    pub(crate) fn may_forget_failing_topics(&self) -> bool {
        self.failing.is_full()
    }

    /// Has new rows of the topic recorded untried, if it waits for an operator. Otherwise the rows
    /// of its next keys would fill the budget again.
    pub(crate) fn record_untried(&mut self, topic: &Topic) {
        if let Some(failing) = self.failing.get_mut(topic) {
            failing.is_recorded_untried |= failing.operator_since.is_some();
        }
    }

    /// The longest pause between probes of a topic that an operator has to fix. A probe tries one
    /// key.
    const TOPIC_PROBE_EVERY: Duration = Duration::from_secs(5);

    /// Whether a parked key may be claimed now. If the topic waits for an operator, only one key is
    /// tried at a time. In an outage, one key of all topics is tried at a time. The other keys get
    /// the time of their next check as the error.
    pub(crate) fn may_claim(
        &mut self,
        topic: &Topic,
        random: u32,
        now: Instant,
    ) -> Result<(), Instant> {
        let seems_down = self.outage.seems_down(now);
        let Some(failing) = self.failing.get_mut(topic) else { return Ok(()) };
        if failing.operator_since.is_none() {
            return if seems_down { self.may_claim_in_outage(random, now) } else { Ok(()) };
        }
        if now < failing.probe_at {
            let spread = self.operator.delay(failing.probes, random);
            return Err(failing.probe_at + spread.min(Self::TOPIC_PROBE_EVERY));
        }
        failing.probes += 1;
        let pause = self.operator.delay(failing.probes, random);
        failing.probe_at = now + pause.min(Self::TOPIC_PROBE_EVERY);
        Ok(())
    }

    pub(crate) fn paused_topics(&self, now: Instant) -> Vec<Topic> {
        self.failing.paused_topics(now)
    }

    /// The longest pause between probes in an outage. A probe costs one request and detects that
    /// the service is back. All other lanes are woken when a probe succeeds.
    const PROBE_EVERY: Duration = Duration::from_secs(2);

    fn may_claim_in_outage(&mut self, random: u32, now: Instant) -> Result<(), Instant> {
        match self.probe_at {
            Some(at) if at > now => {
                let spread = Duration::from_millis(u64::from(random % 1_000));
                Err(at + spread)
            }
            _ => {
                self.probe_at = Some(now + Self::PROBE_EVERY);
                Ok(())
            }
        }
    }

    /// The longest delay of a parked key while one key at a time is tried for all. The key is due
    /// soon after the first success, also if it has no lane.
    const WOKEN_WITHIN: Duration = Duration::from_secs(1);

    /// The delay that dispatch state stores for a row whose delivery failed. While one key at a time
    /// is tried for all, the key itself need not back off there.
    pub(crate) fn stored_delay(&self, backoff: Duration, now: Instant) -> Duration {
        match self.outage.seems_down(now) {
            true => backoff.min(Self::WOKEN_WITHIN),
            false => backoff,
        }
    }

    /// The delay until a refused lane or key is tried again. While the service seems to be down, one
    /// of them is the probe and is tried sooner. Its success wakes the others.
    pub(crate) fn retry_delay(&mut self, backoff: Duration, now: Instant) -> Duration {
        let is_probed = self.probe_at.is_some_and(|at| at > now);
        if is_probed || !self.outage.seems_down(now) {
            return backoff;
        }
        let delay = backoff.min(Self::PROBE_EVERY);
        self.probe_at = Some(now + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_with_any_number_of_refused_topics() {
        let start = Instant::now();
        let operator = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };
        let mut health = PublishHealth::new(Duration::from_secs(5), operator);
        let failures = [FailureClass::Transient, FailureClass::Operator]
            .map(|class| PublishFailure::new(class, crate::CallCode::Unknown, "made up"));
        for number in 0..10 * failing_topics::TOPICS_MAX as u64 {
            let (topic, now) =
                (Topic::from(format!("t{number}")), start + Duration::from_millis(number));
            for failure in &failures {
                health.sent(now);
                health.refused(&topic, failure, RefusedRows::Live(KeyBefore::Healthy), now);
                let parked = RefusedRows::Parked { key: KeyBefore::Healthy, last: None };
                health.sent(now);
                health.refused(&topic, failure, parked, now);
            }
        }
        assert_eq!(health.failing.topics.len(), failing_topics::TOPICS_MAX);
        assert_eq!(health.topic_intervals.topics.len(), topic_intervals::TOPICS_MAX);
        let later = start + Duration::from_secs(3_600);
        assert!(health.paused_topics(start).len() <= failing_topics::TOPICS_MAX);
        assert_eq!(health.may_claim(&Topic::from("t0"), 0, later), Ok(()), "it is forgotten");
    }
}

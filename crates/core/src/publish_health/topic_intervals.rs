//! Distinguishes one failing key from an outage of its topic.
//!
//! One topic may be unavailable while all others accept rows. No row of that topic is stored then,
//! so a failed delivery says nothing about its row. A failure therefore counts against a row only
//! if another row of the *same topic* was stored since.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::message::Topic;
use crate::publish_health::failed_delivery::{FailedDelivery, KeyBefore};
use crate::publish_health::success_intervals::{Interval, SuccessIntervals};

/// The number of topics that are remembered. Topics come from rows, so their number has no bound.
/// If more topics fail at once, the one that failed longest ago is forgotten until it fails again.
/// No attempt is counted in a topic that was forgotten.
pub(super) const TOPICS_MAX: usize = 256;

/// Success intervals remembered for each topic. Together, all topics take at most 1 MiB.
const BAD_INTERVALS_MAX: usize = 256;

/// Topics with a failure, and the successes of each topic since.
#[derive(Debug, Default)]
pub(super) struct TopicIntervals {
    pub(super) topics: BTreeMap<Topic, IntervalsOfTopic>,
    /// Successes of all topics. A topic that was forgotten therefore never reuses an interval
    /// number.
    ended: u64,
}

#[derive(Debug)]
pub(super) struct IntervalsOfTopic {
    last_failure: Instant,
    intervals: SuccessIntervals,
}

impl TopicIntervals {
    /// Notes a refused publish of the key. Returns the current interval.
    pub(super) fn failed(&mut self, topic: &Topic, key: KeyBefore, now: Instant) -> Interval {
        if !self.topics.contains_key(topic) && self.topics.len() == TOPICS_MAX {
            self.forget_one();
        }
        self.ended += u64::from(!self.topics.contains_key(topic));
        let first = self.ended;
        let of_topic = self.topics.entry(Topic::clone(topic)).or_insert_with(|| IntervalsOfTopic {
            last_failure: now,
            intervals: SuccessIntervals::new(first, BAD_INTERVALS_MAX),
        });
        of_topic.last_failure = now;
        if key == KeyBefore::Healthy {
            of_topic.intervals.note_healthy_key_failure();
        }
        of_topic.intervals.current()
    }

    /// Notes that a request of the topic, sent at `sent_at`, was stored.
    pub(super) fn stored(&mut self, topic: &Topic, sent_at: Instant) {
        if self.topics.is_empty() {
            return;
        }
        if let Some(of_topic) = self.topics.get_mut(topic) {
            of_topic.intervals.stored(sent_at);
            self.ended += 1;
        }
    }

    /// Whether a request of the topic that was sent after the failure was stored. And no other
    /// previously healthy key of the topic failed in the same interval.
    pub(super) fn has_only_own_failure(&self, topic: &Topic, failed: &FailedDelivery) -> bool {
        self.topics.get(topic).is_some_and(|IntervalsOfTopic { intervals, .. }| {
            let of_topic = failed.of_topic;
            intervals.has_stored_what_was_sent_after(failed.at)
                && intervals.failed_keys_in(of_topic.interval) <= of_topic.own
        })
    }

    fn forget_one(&mut self) {
        let oldest = self.topics.iter().min_by_key(|(_, of_topic)| of_topic.last_failure);
        if let Some(topic) = oldest.map(|(topic, _)| Topic::clone(topic)) {
            self.topics.remove(&topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::publish_health::failed_delivery::FailureInterval;

    use super::*;

    /// A delivery that failed at `at`, in the interval of its topic, of which `own` failures are
    /// its own.
    fn failed(at: Instant, interval: Interval, own: u32) -> FailedDelivery {
        let of_topic = FailureInterval { interval, own };
        FailedDelivery { at, everywhere: of_topic, of_topic }
    }

    #[test]
    fn only_stored_rows_of_the_same_topic_count() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (failing, other) = (Topic::from("failing"), Topic::from("other"));
        let mut topics = TopicIntervals::default();
        let interval = topics.failed(&failing, KeyBefore::Healthy, start);
        let is_own = |of: &TopicIntervals, own| {
            of.has_only_own_failure(&failing, &failed(start, interval, own))
        };
        topics.stored(&other, after(1));
        assert!(!is_own(&topics, 1), "another topic flows");
        topics.stored(&failing, start);
        assert!(!is_own(&topics, 1), "it had been sent before");
        topics.stored(&failing, after(2));
        assert!(is_own(&topics, 1));
        assert!(!is_own(&topics, 0), "another key started to fail with it");
    }

    #[test]
    fn memory_stays_bounded_with_any_number_of_topics_and_a_forgotten_topic_counts_nothing() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let topic = |number: u64| Topic::from(format!("t{number}"));
        let mut topics = TopicIntervals::default();
        let first = topics.failed(&topic(0), KeyBefore::Failing, start);
        for number in 1..=TOPICS_MAX as u64 {
            topics.failed(&topic(number), KeyBefore::Failing, after(number));
        }
        assert_eq!(topics.topics.len(), TOPICS_MAX);
        topics.stored(&topic(0), after(1_000));
        assert!(!topics.has_only_own_failure(&topic(0), &failed(start, first, 0)));
        assert!(topics.failed(&topic(0), KeyBefore::Failing, after(1_000)) > first);
    }
}

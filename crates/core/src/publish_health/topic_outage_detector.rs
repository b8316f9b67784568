//! Distinguishes one failing key from an outage of its topic.
//!
//! One topic may be unavailable while all others accept rows. No row of that topic is stored then,
//! so a failed delivery says nothing about its row. A failure therefore counts against a row only
//! if another row of the *same topic* was stored since.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::message::Topic;
use crate::publish_health::success_intervals::{Pause, SuccessIntervals};

/// The number of topics that are remembered. Topics come from rows, so their number has no bound.
/// If more topics fail at once, the one that failed longest ago is forgotten until it fails again.
const TOPICS_MAX: usize = 256;

/// Success intervals remembered for each topic. Together, all topics take at most 1 MiB.
const BAD_PAUSES_MAX: usize = 256;

/// Topics with a failure, and the successes of each topic since.
#[derive(Debug, Default)]
pub(crate) struct TopicOutageDetector {
    topics: BTreeMap<Topic, TopicIntervals>,
    /// Successes of all topics. A topic that was forgotten therefore never reuses an interval
    /// number.
    pauses_ended: u64,
}

#[derive(Debug)]
struct TopicIntervals {
    last_failure: Instant,
    pauses: SuccessIntervals,
}

impl TopicOutageDetector {
    /// Notes a refused publish, and whether its key was healthy before. Returns the current
    /// interval.
    pub(crate) fn failed(&mut self, topic: &Topic, was_well: WasHealthy, now: Instant) -> Pause {
        if !self.topics.contains_key(topic) && self.topics.len() == TOPICS_MAX {
            self.forget_one();
        }
        self.pauses_ended += u64::from(!self.topics.contains_key(topic));
        let first = self.pauses_ended;
        let of_topic = self.topics.entry(Topic::clone(topic)).or_insert_with(|| TopicIntervals {
            last_failure: now,
            pauses: SuccessIntervals::new(first, BAD_PAUSES_MAX),
        });
        of_topic.last_failure = now;
        if was_well == WasHealthy::Yes {
            of_topic.pauses.note_healthy_key_failure();
        }
        of_topic.pauses.current()
    }

    /// Notes that a request of the topic, sent at `sent_at`, was stored.
    pub(crate) fn stored(&mut self, topic: &Topic, sent_at: Instant) {
        if self.topics.is_empty() {
            return;
        }
        if let Some(of_topic) = self.topics.get_mut(topic) {
            of_topic.pauses.stored(sent_at);
            self.pauses_ended += 1;
        }
    }

    /// Whether a request of the topic that was sent after `moment` was stored, and at most `own`
    /// previously healthy keys failed in the interval `pause`.
    pub(crate) fn has_only_own_failures(
        &self,
        topic: &Topic,
        moment: Instant,
        (pause, own): (Pause, u32),
    ) -> bool {
        self.topics.get(topic).is_some_and(|TopicIntervals { pauses, .. }| {
            pauses.has_stored_what_was_sent_after(moment) && pauses.failed_keys_in(pause) <= own
        })
    }

    fn forget_one(&mut self) {
        let oldest = self.topics.iter().min_by_key(|(_, of_topic)| of_topic.last_failure);
        if let Some(topic) = oldest.map(|(topic, _)| Topic::clone(topic)) {
            self.topics.remove(&topic);
        }
    }
}

/// Whether the key was healthy until this refusal, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WasHealthy {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_is_stored_of_the_same_topic_tells() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (sick, other) = (Topic::from("sick"), Topic::from("other"));
        let mut weather = TopicOutageDetector::default();
        let pause = weather.failed(&sick, WasHealthy::Yes, start);
        weather.stored(&other, after(1));
        assert!(!weather.has_only_own_failures(&sick, start, (pause, 1)), "another topic flows");
        weather.stored(&sick, start);
        assert!(
            !weather.has_only_own_failures(&sick, start, (pause, 1)),
            "it had been sent before"
        );
        weather.stored(&sick, after(2));
        assert!(weather.has_only_own_failures(&sick, start, (pause, 1)));
        assert!(
            !weather.has_only_own_failures(&sick, start, (pause, 0)),
            "another key fell ill with it"
        );
    }

    #[test]
    fn topics_without_end_do_not_fill_the_memory_and_one_that_was_forgotten_counts_nothing() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let topic = |number: u64| Topic::from(format!("t{number}"));
        let mut weather = TopicOutageDetector::default();
        let first = weather.failed(&topic(0), WasHealthy::No, start);
        for number in 1..=TOPICS_MAX as u64 {
            weather.failed(&topic(number), WasHealthy::No, after(number));
        }
        assert_eq!(weather.topics.len(), TOPICS_MAX);
        weather.stored(&topic(0), after(1_000));
        assert!(!weather.has_only_own_failures(&topic(0), start, (first, 0)));
        assert!(weather.failed(&topic(0), WasHealthy::No, after(1_000)) > first);
    }
}

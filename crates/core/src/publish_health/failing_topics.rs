//! The topics that refuse rows, and since when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{FailureClass, PublishFailure};
use crate::message::Topic;

/// The number of failing topics that are remembered. Topics come from rows, so their number has no
/// bound. With the longest error text, this many topics take about 2 MiB.
///
/// If more topics fail at once, the one with the oldest last refusal is forgotten until it refuses
/// again. Order and parking do not depend on the entry: they are states of each key. A forgotten
/// topic only costs requests, because its keys are tried first and its probes start again. Its lanes
/// know that they were refused.
pub(super) const TOPICS_MAX: usize = 1_024;

/// The topics that have refused a row since they last stored one.
#[derive(Debug, Default)]
pub(super) struct FailingTopics {
    pub(super) topics: BTreeMap<Topic, FailingTopic>,
}

/// A topic that has refused a row since it last stored one.
#[derive(Debug)]
pub(crate) struct FailingTopic {
    refused_at: Instant,
    pub(crate) failure: Arc<PublishFailure>,
    /// The time since which the topic answers that an operator has to act. Such an answer proves
    /// that the service is up.
    pub(super) operator_since: Option<Instant>,
    /// Whether rows for this topic are recorded without being tried first.
    pub(crate) is_recorded_untried: bool,
    /// The time before which no parked key of the topic is tried.
    pub(super) probe_at: Instant,
    pub(super) probes: u32,
}

impl FailingTopics {
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Whether further topics may be failing.
    pub(super) fn is_full(&self) -> bool {
        self.topics.len() >= TOPICS_MAX
    }

    pub(super) fn get(&self, topic: &Topic) -> Option<&FailingTopic> {
        self.topics.get(topic)
    }

    pub(super) fn get_mut(&mut self, topic: &Topic) -> Option<&mut FailingTopic> {
        self.topics.get_mut(topic)
    }

    pub(super) fn refused(&mut self, topic: &Topic, failure: &PublishFailure, now: Instant) {
        if self.is_full() && !self.topics.contains_key(topic) {
            self.forget_one();
        }
        let failing = self.topics.entry(Topic::clone(topic)).or_insert_with(|| FailingTopic {
            refused_at: now,
            failure: Arc::new(failure.clone()),
            operator_since: None,
            is_recorded_untried: false,
            probe_at: now,
            probes: 0,
        });
        failing.refused_at = now;
        if *failing.failure != *failure {
            failing.failure = Arc::new(failure.clone());
        }
        if failure.class == FailureClass::Operator {
            failing.operator_since.get_or_insert(now);
        }
    }

    fn forget_one(&mut self) {
        let oldest = self.topics.iter().min_by_key(|(_, failing)| failing.refused_at);
        if let Some(topic) = oldest.map(|(topic, _)| Topic::clone(topic)) {
            self.topics.remove(&topic);
        }
    }

    /// Notes that the topic stored a row. Returns whether this ends a failure that an operator had
    /// to fix.
    pub(super) fn stored(&mut self, topic: &Topic) -> bool {
        self.topics.remove(topic).is_some_and(|failing| failing.operator_since.is_some())
    }

    /// Has rows of the topic recorded without being tried, once an operator has been needed for
    /// `park_after`.
    pub(super) fn judge(&mut self, topic: &Topic, park_after: Duration, now: Instant) {
        if let Some(failing) = self.topics.get_mut(topic)
            && let Some(since) = failing.operator_since
            && now.saturating_duration_since(since) >= park_after
        {
            failing.is_recorded_untried = true;
        }
    }

    /// The topics whose parked keys are not tried now.
    pub(super) fn paused_topics(&self, now: Instant) -> Vec<Topic> {
        let is_paused =
            |failing: &FailingTopic| failing.operator_since.is_some() && now < failing.probe_at;
        let paused = self.topics.iter().filter(|(_, failing)| is_paused(failing));
        paused.map(|(topic, _)| Topic::clone(topic)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_with_any_number_of_refused_topics_and_the_last_refused_are_kept() {
        let start = Instant::now();
        let missing =
            PublishFailure::new(FailureClass::Operator, crate::CallCode::NotFound, "made up");
        let topic = |number: u64| Topic::from(format!("t{number}"));
        let mut failing = FailingTopics::default();
        let last = 3 * TOPICS_MAX as u64;
        for number in 1..=last {
            let now = start + Duration::from_secs(number);
            failing.refused(&topic(number), &missing, now);
            failing.refused(&topic(0), &missing, now);
            failing.judge(&topic(0), Duration::from_secs(10), now);
        }
        assert_eq!(failing.topics.len(), TOPICS_MAX);
        let first = failing.get(&topic(0)).expect("it still refuses");
        assert!(first.is_recorded_untried);
        assert!(failing.stored(&topic(last)), "the last one is known");
        assert!(!failing.stored(&topic(1)), "the first one is forgotten");
    }
}

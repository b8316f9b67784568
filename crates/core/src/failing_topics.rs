//! Topics that refuse, and since when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::failure::{FailureClass, PublishFailure};
use crate::message::Topic;

/// Topics that refused since they last stored anything.
#[derive(Debug, Default)]
pub(crate) struct FailingTopics {
    pub(crate) topics: BTreeMap<Topic, FailingTopic>,
}

#[derive(Debug)]
pub(crate) struct FailingTopic {
    /// What it said last.
    pub(crate) failure: Arc<PublishFailure>,
    /// Since when it answers that an operator has to act, which proves that the service is up.
    pub(crate) operator_since: Option<Instant>,
    /// Its keys are recorded without being tried first.
    pub(crate) is_sick: bool,
    /// No parked key of it is tried before.
    pub(crate) probe_at: Instant,
    pub(crate) probes: u32,
}

impl FailingTopics {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub(crate) fn refused(&mut self, topic: &Topic, failure: &PublishFailure, now: Instant) {
        let failing = self.topics.entry(Topic::clone(topic)).or_insert_with(|| FailingTopic {
            failure: Arc::new(failure.clone()),
            operator_since: None,
            is_sick: false,
            probe_at: now,
            probes: 0,
        });
        if *failing.failure != *failure {
            failing.failure = Arc::new(failure.clone());
        }
        if failure.class == FailureClass::Operator {
            failing.operator_since.get_or_insert(now);
        }
    }

    /// The topic stored something. Whether that is the end of what an operator had to act on.
    pub(crate) fn stored(&mut self, topic: &Topic) -> bool {
        self.topics.remove(topic).is_some_and(|failing| failing.operator_since.is_some())
    }

    /// Whether the topic's keys are recorded at once, and why.
    pub(crate) fn sickness(&self, topic: &Topic) -> Option<Arc<PublishFailure>> {
        let failing = self.topics.get(topic).filter(|failing| failing.is_sick)?;
        Some(Arc::clone(&failing.failure))
    }

    /// Refused for so long that new keys need not find out for themselves.
    pub(crate) fn judge(&mut self, topic: &Topic, park_after: Duration, now: Instant) {
        if let Some(failing) = self.topics.get_mut(topic)
            && let Some(since) = failing.operator_since
            && now.saturating_duration_since(since) >= park_after
        {
            failing.is_sick = true;
        }
    }

    /// Topics of which no parked key is tried now.
    pub(crate) fn at_rest(&self, now: Instant) -> Vec<Topic> {
        let rests =
            |failing: &FailingTopic| failing.operator_since.is_some() && now < failing.probe_at;
        let resting = self.topics.iter().filter(|(_, failing)| rests(failing));
        resting.map(|(topic, _)| Topic::clone(topic)).collect()
    }
}

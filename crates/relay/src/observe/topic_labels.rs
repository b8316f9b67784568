//! Selects the topics that have a label of their own in the metrics.
//!
//! Topics come from rows, so their number has no bound. The length of a project's name has none
//! either. At most [`TOPICS_MAX`] topics are labelled. A topic keeps its label for the life of the
//! process. All other topics share the label [`OTHER`], so sums over topics stay correct.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use walrelay_core::Topic;

/// The maximum number of topics with a label of their own.
pub(super) const TOPICS_MAX: usize = 100;

/// The maximum number of labelled topics that have never stored a message. The other labels are for
/// topics that exist, so that misspelled or invented names cannot use up all labels.
const REFUSED_MAX: usize = 50;

/// The longest labelled name in bytes: a topic of 255 characters, and the longest project name of
/// Google.
const NAME_MAX: usize = 320;

/// The maximum number of pairs of topic and event type with a label of their own.
pub(super) const TYPES_MAX: usize = 100;

/// The longest labelled event type in bytes. An event type is text of any length.
const TYPE_LEN_MAX: usize = 128;

/// The label that all other topics share. No topic has this name, because full names begin with
/// `projects/`.
pub(super) const OTHER: &str = "other";

/// A topic's reply to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TopicAnswer {
    /// The topic refused the batch, or did not reply.
    Refused,
    /// The topic stored the batch.
    Stored,
}

/// The labelled topics, each with its best reply, and the labelled event types of each.
#[derive(Debug, Default)]
pub(super) struct TopicLabels {
    topics: Mutex<BTreeMap<Topic, TopicAnswer>>,
    types: Mutex<BTreeSet<(Topic, Box<str>)>>,
}

/// A topic and an event type of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TypeLabels {
    /// `projects/P/topics/T`, or `other`.
    pub topic: String,
    /// The event type, or `other`.
    pub event_type: String,
}

/// What happened to rows that Pub/Sub refused.
pub(super) const PARKED: &str = "parked";
pub(super) const DEAD: &str = "dead";

/// A topic, an event type, and what happened to its rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    /// `projects/P/topics/T`, or `other`.
    pub topic: String,
    /// The event type, or `other`.
    pub event_type: String,
    /// `parked` or `dead`.
    pub state: &'static str,
}

impl TypeLabels {
    pub(super) fn failed(&self, state: &'static str) -> FailureLabels {
        let Self { topic, event_type } = self.clone();
        FailureLabels { topic, event_type, state }
    }
}

impl TopicLabels {
    /// Returns the label of a topic that has just replied.
    pub(super) fn of(&self, topic: &Topic, answered: TopicAnswer) -> String {
        let mut labelled = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(best) = labelled.get_mut(topic) {
            *best = answered.max(*best);
            return topic.to_string();
        }
        let refused = labelled.values().filter(|best| **best == TopicAnswer::Refused).count();
        let has_place = match answered {
            TopicAnswer::Refused => refused < REFUSED_MAX,
            TopicAnswer::Stored => true,
        };
        if !has_place || labelled.len() >= TOPICS_MAX || topic.len() > NAME_MAX {
            return OTHER.to_owned();
        }
        labelled.insert(Topic::clone(topic), answered);
        topic.to_string()
    }

    /// Returns the labels of an event type, whose topic may not have replied.
    pub(super) fn with_type(&self, topic: &Topic, event_type: &str) -> TypeLabels {
        let shown = self.of(topic, TopicAnswer::Refused);
        let mut labelled = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = (Topic::clone(topic), Box::from(event_type));
        let has_place = labelled.len() < TYPES_MAX && event_type.len() <= TYPE_LEN_MAX;
        let is_other = shown == OTHER || !has_place && !labelled.contains(&pair);
        if !is_other {
            labelled.insert(pair);
        }
        let event_type = if is_other { OTHER } else { event_type }.to_owned();
        TypeLabels { topic: shown, event_type }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(number: usize) -> Topic {
        Topic::from(format!("projects/p/topics/t{number}"))
    }

    #[test]
    fn a_topic_keeps_its_label_and_the_topics_after_the_hundredth_share_one() {
        let labels = TopicLabels::default();
        for number in 0..TOPICS_MAX {
            assert_eq!(labels.of(&topic(number), TopicAnswer::Stored), *topic(number));
        }
        for answered in [TopicAnswer::Stored, TopicAnswer::Refused] {
            assert_eq!(labels.of(&topic(TOPICS_MAX), answered), OTHER);
            assert_eq!(labels.of(&topic(7), answered), *topic(7));
        }
    }

    #[test]
    fn names_that_are_refused_leave_labels_for_topics_that_exist() {
        let labels = TopicLabels::default();
        let labelled = (0..10 * TOPICS_MAX)
            .filter(|number| labels.of(&topic(*number), TopicAnswer::Refused) != OTHER)
            .count();
        assert_eq!(labelled, REFUSED_MAX);
        let exists = topic(10_000);
        assert_eq!(labels.of(&exists, TopicAnswer::Stored), *exists);
        // A topic that was created meanwhile frees its label among the refused names.
        labels.of(&topic(0), TopicAnswer::Stored);
        assert_eq!(labels.of(&topic(20_000), TopicAnswer::Refused), *topic(20_000));
    }

    #[test]
    fn a_name_of_endless_length_has_no_label() {
        let labels = TopicLabels::default();
        let long = Topic::from(format!("projects/{}/topics/t", "p".repeat(NAME_MAX)));
        assert_eq!(labels.of(&long, TopicAnswer::Stored), OTHER);
    }
}

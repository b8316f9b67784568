//! Distinguishes an invalid row from a topic that refuses every row as invalid.
//!
//! A schema that was attached or changed, or an impossible project, makes Pub/Sub refuse every row
//! of a topic with `INVALID_ARGUMENT`. A row with an error of its own gets the same answer, but then
//! other rows of the topic are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::message::Topic;

/// The number of topics with refusals that are remembered. Topics come from rows, so their number
/// has no bound. A forgotten topic counts from zero.
const TOPICS_MAX: usize = 256;

/// The number of topics that are known to have stored a row. Further topics count as such topics.
const STORED_TOPICS_MAX: usize = 4_096;

/// Refusals of single rows, without a stored row since the first, that put the topic at fault.
const REFUSALS_MAX: u32 = 20;

/// The same number, of different keys, for a topic that has never stored a row.
const KEYS_OF_NEW_TOPIC_MAX: usize = 3;

/// The topics that have refused single rows as invalid since they last stored a row.
#[derive(Debug, Default)]
pub(super) struct InvalidTopics {
    topics: BTreeMap<Topic, Refusals>,
    stored: BTreeSet<Topic>,
}

#[derive(Debug)]
struct Refusals {
    last: Instant,
    count: u32,
    /// The ordering keys of the rows. Rows without a key count as rows of different keys.
    keys: Vec<Box<str>>,
    is_topic_at_fault: bool,
}

impl InvalidTopics {
    /// Notes that Pub/Sub refused a row of this key alone as invalid.
    pub(super) fn refused(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        if self.topics.len() >= TOPICS_MAX && !self.topics.contains_key(topic) {
            let oldest = self.topics.iter().min_by_key(|(_, refusals)| refusals.last);
            if let Some(oldest) = oldest.map(|(name, _)| Topic::clone(name)) {
                self.topics.remove(&oldest);
            }
        }
        let has_stored = self.stored.len() >= STORED_TOPICS_MAX || self.stored.contains(topic);
        let refusals = self.topics.entry(Topic::clone(topic)).or_insert_with(|| Refusals {
            last: now,
            count: 0,
            keys: Vec::new(),
            is_topic_at_fault: false,
        });
        refusals.last = now;
        refusals.count = refusals.count.saturating_add(1);
        let is_new =
            ordering_key.is_empty() || !refusals.keys.iter().any(|it| **it == *ordering_key);
        if is_new && refusals.keys.len() < KEYS_OF_NEW_TOPIC_MAX {
            refusals.keys.push(ordering_key.into());
        }
        refusals.is_topic_at_fault |= refusals.count >= REFUSALS_MAX
            || (!has_stored && refusals.keys.len() >= KEYS_OF_NEW_TOPIC_MAX);
    }

    /// Notes that the topic stored a row, so its refusals concern single rows.
    pub(super) fn stored(&mut self, topic: &Topic) {
        if !self.topics.is_empty() {
            self.topics.remove(topic);
        }
        if self.stored.len() < STORED_TOPICS_MAX && !self.stored.contains(topic) {
            self.stored.insert(Topic::clone(topic));
        }
    }

    /// Whether the topic has refused a row since it last stored one.
    pub(super) fn refuses(&self, topic: &Topic) -> bool {
        self.topics.contains_key(topic)
    }

    /// Whether the topic refuses every row, as far as is known.
    pub(super) fn is_at_fault(&self, topic: &Topic) -> bool {
        self.topics.get(topic).is_some_and(|refusals| refusals.is_topic_at_fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> Topic {
        Topic::from("t")
    }

    /// Refuses a row of each key. Returns how many refusals put the topic at fault.
    fn refusals_until_fault<'a>(
        topics: &mut InvalidTopics,
        mut keys: impl Iterator<Item = &'a str>,
    ) -> Option<usize> {
        (1..=100).find(|_| {
            let key = keys.next().expect("an endless iterator");
            topics.refused(&topic(), key, Instant::now());
            topics.is_at_fault(&topic())
        })
    }

    #[test]
    fn a_topic_is_at_fault_after_twenty_refusals_in_a_row() {
        for key in ["k", ""] {
            let mut topics = InvalidTopics::default();
            topics.stored(&topic());
            assert_eq!(refusals_until_fault(&mut topics, [key].into_iter().cycle()), Some(20));
            topics.stored(&topic());
            assert!(!topics.is_at_fault(&topic()), "a stored row ends it");
            assert_eq!(refusals_until_fault(&mut topics, [key].into_iter().cycle()), Some(20));
        }
    }

    #[test]
    fn a_topic_that_never_stored_a_row_is_at_fault_after_three_keys() {
        for (keys, count) in [(["a", "b", "a", "c"], 4), (["a", "b", "c", "d"], 3), ([""; 4], 3)] {
            let found =
                refusals_until_fault(&mut InvalidTopics::default(), keys.into_iter().cycle());
            assert_eq!(found, Some(count), "{keys:?}");
        }
        let one_key = ["a"].into_iter().cycle();
        assert_eq!(refusals_until_fault(&mut InvalidTopics::default(), one_key), Some(20));
    }

    #[test]
    fn a_row_between_two_stored_rows_is_at_fault_itself() {
        let mut topics = InvalidTopics::default();
        for _ in 0..100 {
            for key in ["a", "b", "c"].into_iter().cycle().take(19) {
                topics.stored(&topic());
                topics.refused(&topic(), key, Instant::now());
                assert!(!topics.is_at_fault(&topic()));
            }
        }
    }

    #[test]
    fn memory_stays_bounded_with_any_number_of_topics() {
        let mut topics = InvalidTopics::default();
        for number in 0..2 * STORED_TOPICS_MAX {
            let topic = Topic::from(format!("t{number}"));
            topics.refused(&topic, "k", Instant::now());
            assert!(topics.topics.len() <= TOPICS_MAX);
            topics.stored(&topic);
        }
        assert_eq!(topics.stored.len(), STORED_TOPICS_MAX);
    }
}

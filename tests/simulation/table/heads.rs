//! The first row of each key, as the query over all heads returns it.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_core::ClaimKey;
use walrelay_outbox_store::{HEADS_MAX, Head};

use super::{HELD_PAUSE, Rules, State};
use crate::judge::Status;

impl State {
    pub(super) fn heads_after(&self, after: Option<&Head>) -> Vec<Head> {
        let mut heads = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| entry.status == Status::Retrying) {
            let is_timed = entry.next_attempt.is_some();
            heads.entry((entry.topic.clone(), entry.key.clone())).or_insert(is_timed);
        }
        let is_behind = |((topic, key), _): &(&(String, String), &bool)| {
            !key.is_empty()
                && after.is_none_or(|head| (topic, key) > (&head.topic, &head.ordering_key))
        };
        let found = heads.iter().filter(is_behind).take(HEADS_MAX);
        let head = |((topic, key), is_timed): (&(String, String), &bool)| Head {
            topic: topic.clone(),
            ordering_key: key.clone(),
            is_timed: *is_timed,
        };
        found.map(head).collect()
    }

    /// Returns the time after which to check a key again, if it is one of these parked keys.
    pub(super) fn held_for(
        &self,
        rules: Rules,
        key: &ClaimKey,
        parked: &[(String, String)],
    ) -> Option<Duration> {
        let name = (key.topic.to_string(), key.ordering_key.to_string());
        let due_in = self.due_in(rules, &name.0, &name.1).unwrap_or(HELD_PAUSE);
        if self.is_held(&name.0, &name.1) {
            return Some(HELD_PAUSE * 60);
        }
        parked.contains(&name).then(|| due_in.clamp(HELD_PAUSE / 10, HELD_PAUSE * 60))
    }
}

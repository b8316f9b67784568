//! Determines which keys are parked, held by a dead row, or due, and which of their rows may be
//! claimed.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_core::{Behind, OnDead};
use walrelay_outbox_store::ParkedKey;

use super::{Entry, Place, Rules, State, Table};
use crate::judge::Status;

impl Table {
    /// Returns the same table for a recovery whose slot begins at this position.
    pub(crate) fn before(self, point: u64) -> Self {
        Self { rules: Rules { before: point, ..self.rules }, ..self }
    }

    /// Reads the parked keys early for a process, which uses them once it has the slot.
    pub(crate) fn read_early(&self, process: u64) {
        let mut state = self.state();
        let keys = state.parked_keys(self.rules);
        state.read_early.entry(process).or_insert(keys);
    }
}

impl State {
    /// Returns the keys whose rows make them parked, in order.
    pub(super) fn keys(
        &self,
        rules: Rules,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<(String, String)> {
        let holds = |entry: &&Entry| match entry.status {
            Status::Retrying => true,
            Status::Dead => rules.on_dead == OnDead::Hold && !entry.key.is_empty(),
            Status::Published | Status::Discarded => false,
        };
        let entries = self.entries.range(..(rules.before, 0, 0)).map(|(_, entry)| entry);
        let entries = entries.filter(holds).filter(|entry| wanted(entry));
        let mut keys: Vec<_> =
            entries.map(|entry| (entry.topic.clone(), entry.key.clone())).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    pub(super) fn retrying(
        &self,
        topic: &str,
        key: &str,
    ) -> impl Iterator<Item = (&Place, &Entry)> {
        self.entries.iter().filter(move |(_, entry)| {
            entry.status == Status::Retrying && entry.topic == topic && entry.key == key
        })
    }

    /// Returns the retrying rows of a key that do not wait for a recovery.
    fn retrying_before(
        &self,
        rules: Rules,
        topic: &str,
        key: &str,
    ) -> impl Iterator<Item = (&Place, &Entry)> {
        self.retrying(topic, key).take_while(move |(position, _)| position.0 < rules.before)
    }

    /// Returns the position of the first dead row that holds the key.
    pub(super) fn held_at(&self, on_dead: OnDead, topic: &str, key: &str) -> Option<Place> {
        let dead = |entry: &Entry| {
            entry.status == Status::Dead && entry.topic == topic && entry.key == key
        };
        let holds = on_dead == OnDead::Hold && !key.is_empty();
        let first = self.entries.iter().find(|(_, entry)| holds && dead(entry));
        first.map(|(position, _)| *position)
    }

    /// Returns the time until a key is due, or `None` if it may be claimed at any time.
    pub(super) fn due_in(&self, rules: Rules, topic: &str, key: &str) -> Option<Duration> {
        let mut rows = self.retrying_before(rules, topic, key).map(|(_, entry)| entry.next_attempt);
        let at = if key.is_empty() { rows.flatten().min() } else { rows.next().flatten() };
        at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn parked_key(&self, rules: Rules, topic: String, ordering_key: String) -> ParkedKey {
        let head = self.retrying_before(rules, &topic, &ordering_key).next();
        let dead_at = self.held_at(rules.on_dead, &topic, &ordering_key);
        ParkedKey {
            is_held: dead_at.is_some_and(|dead| head.is_none_or(|(first, _)| dead < *first)),
            behind: match head {
                Some((_, entry)) if entry.is_read_without_lease() => Behind::Spilled,
                Some(_) | None => Behind::Queued,
            },
            next_attempt_in: self.due_in(rules, &topic, &ordering_key),
            attempts: head.map_or(0, |(_, entry)| entry.attempts),
            topic,
            ordering_key,
        }
    }

    pub(super) fn parked_keys(&self, rules: Rules) -> Vec<ParkedKey> {
        let keys = self.keys(rules, |_| true).into_iter();
        keys.map(|(topic, key)| self.parked_key(rules, topic, key)).collect()
    }

    /// Returns the rows of a key that may be claimed now, in order.
    pub(super) fn claimable(&self, rules: Rules, topic: &str, key: &str) -> Vec<Place> {
        if self.is_held(topic, key) {
            return Vec::new();
        }
        let now = Instant::now();
        let is_due = |entry: &Entry| entry.next_attempt.is_none_or(|at| at <= now);
        let held_at = self.held_at(rules.on_dead, topic, key);
        let before = self
            .retrying_before(rules, topic, key)
            .take_while(|(position, _)| held_at.is_none_or(|held| **position < held));
        if !key.is_empty() {
            let mut due = before.take(rules.per_key_rows).take_while(|(_, entry)| is_due(entry));
            let Some(head) = due.next() else { return Vec::new() };
            let is_spilled = head.1.is_spilled;
            let alike = due.take_while(|(_, entry)| entry.is_spilled == is_spilled);
            let first = std::iter::once(head).chain(alike);
            return first.map(|(position, _)| *position).collect();
        }
        let mut due: Vec<_> = before.filter(|(_, entry)| is_due(entry)).collect();
        due.sort_by_key(|(_, entry)| entry.next_attempt);
        due.into_iter().take(rules.per_key_rows).map(|(position, _)| *position).collect()
    }
}

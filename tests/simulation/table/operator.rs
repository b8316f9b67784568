//! Changes of dispatch state by operators.

use std::collections::HashSet;

use tokio::time::Instant;

use super::{Entry, State, Table, is_open};
use crate::judge::{RowNumber, Status};

impl Table {
    /// Returns the rows with one of these statuses.
    pub(crate) fn rows(&self, wanted: &[Status]) -> Vec<RowNumber> {
        let state = self.state();
        let rows = state.entries.values().filter(|entry| wanted.contains(&entry.status));
        rows.map(|entry| entry.row).collect()
    }

    /// Returns the first row of each due key, with its version.
    pub(crate) fn due(&self) -> Vec<(RowNumber, u64)> {
        let (state, now) = (self.state(), Instant::now());
        let is_due = |entry: &Entry| entry.next_attempt.is_some_and(|at| at <= now);
        let keys = state.keys(self.rules, is_due).into_iter();
        let first = keys.filter_map(|(topic, key)| {
            let at = *state.claimable(self.rules, &topic, &key).first()?;
            state.entries.get(&at).map(|entry| (entry.row, entry.version))
        });
        first.collect()
    }

    /// Returns the subset of these rows that did not change since the given time, including their
    /// keys.
    pub(crate) fn untouched(&self, rows: Vec<(RowNumber, u64)>, since: Instant) -> Vec<RowNumber> {
        let state = self.state();
        let is_so = |(row, version): &(RowNumber, u64)| {
            let of_row = state.entries.values().find(|entry| entry.row == *row);
            of_row.is_some_and(|entry| {
                entry.version == *version && !state.was_held(&entry.topic, &entry.key, since)
            })
        };
        rows.into_iter().filter(is_so).map(|(row, _)| row).collect()
    }

    pub(crate) fn retry(&self, chosen: impl Fn(RowNumber, &str) -> bool) {
        let now = Instant::now();
        let mut state = self.state();
        let State { entries, versions, .. } = &mut *state;
        let mut keys = Vec::new();
        let mut retried = Vec::new();
        for entry in entries.values_mut() {
            let is_open = matches!(entry.status, Status::Retrying | Status::Dead);
            if !is_open || !chosen(entry.row, &entry.topic) {
                continue;
            }
            if entry.status == Status::Dead {
                *versions += 1;
                entry.version = *versions;
                entry.status = Status::Retrying;
                self.judge.recorded(entry.row, Status::Retrying);
            }
            entry.attempts = 0;
            entry.next_attempt = entry.key.is_empty().then_some(now);
            self.judge.retried_by_hand(entry.row, entry.key.is_empty());
            retried.push(entry.row);
            keys.push((entry.topic.clone(), entry.key.clone()));
        }
        // The first row of each key is due. The rows behind it wait for it.
        let mut headless: HashSet<_> =
            keys.into_iter().filter(|(_, key)| !key.is_empty()).collect();
        let affected = headless.clone();
        for entry in entries.values_mut().filter(|entry| entry.status == Status::Retrying) {
            let key = (entry.topic.clone(), entry.key.clone());
            if affected.contains(&key) {
                entry.next_attempt = headless.remove(&key).then_some(now);
            }
        }
    }

    pub(crate) fn discard(&self, row: RowNumber) {
        let now = Instant::now();
        let mut state = self.state();
        let State { entries, versions, .. } = &mut *state;
        let found = entries.values_mut().find(|entry| entry.row == row);
        let Some(entry) = found.filter(|entry| is_open(entry.status)) else { return };
        *versions += 1;
        entry.version = *versions;
        entry.status = Status::Discarded;
        entry.next_attempt = None;
        entry.updated = now;
        let (topic, key) = (entry.topic.clone(), entry.key.clone());
        self.judge.recorded(row, Status::Discarded);
        let mut behind = entries.values_mut().filter(|other| {
            other.status == Status::Retrying && other.topic == topic && other.key == key
        });
        if let Some(next) = behind.next().filter(|_| !key.is_empty()) {
            next.next_attempt = Some(now);
        }
    }
}

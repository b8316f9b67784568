//! Rows that were spilled because of retained WAL.

use pgoutput_parser::Lsn;
use tokio::time::Instant;
use walrelay_core::ClaimKey;

use super::{Entry, Place, Rules, State, Table};
use crate::judge::Status;

impl Table {
    /// Returns the settled position on record.
    pub(crate) fn settled(&self) -> Lsn {
        Lsn::new(self.state().settled)
    }

    /// Returns the position before which no session receives rows.
    pub(super) fn past(&self) -> u64 {
        if self.rules.before < u64::MAX {
            return 0;
        }
        self.state().settled.min(self.server.confirmed_flush())
    }

    /// Records that a new slot begins at this position.
    pub(crate) fn begin_slot(&self, at: u64) {
        self.state().settled = at;
    }

    /// Records the settled position. A spilled and stored row is deleted once the slot is confirmed
    /// past it. Until then, a session that read an older record may still receive the row.
    pub(super) fn note_settled(&self, settled: u64, generation: u64) {
        {
            let mut state = self.state();
            if state.generation != generation {
                return;
            }
            state.settled = state.settled.max(settled);
        }
        let past = self.past();
        self.state().entries.retain(|(commit_lsn, ..), entry| {
            let is_stored = entry.is_spilled && entry.status == Status::Published;
            !(is_stored && *commit_lsn < past)
        });
    }

    /// Returns whether spilled rows committed before `end` are pending only because of Pub/Sub.
    pub(crate) fn has_spilled_before(&self, end: u64) -> bool {
        self.state().has_spilled_before(self.rules, Lsn::new(end))
    }
}

impl Entry {
    /// Returns whether the row is claimed without a lease. Only its session then knows that it is
    /// in flight.
    pub(super) fn is_read_without_lease(&self) -> bool {
        self.is_spilled && !self.key.is_empty()
    }
}

impl State {
    /// Returns whether spilled rows committed before `end` are pending only because of Pub/Sub.
    pub(super) fn has_spilled_before(&self, rules: Rules, end: Lsn) -> bool {
        let rules = Rules { before: u64::MAX, ..rules };
        let is_spilled = |entry: &Entry| entry.is_spilled && entry.status == Status::Retrying;
        self.keys(rules, is_spilled).into_iter().any(|(topic, key)| {
            let waits = |(at, entry): (&Place, &Entry)| is_spilled(entry) && at.0 < end.as_u64();
            let mut rows = self.retrying(&topic, &key);
            let is_waiting = match key.is_empty() {
                true => rows.any(waits),
                false => rows.next().is_some_and(waits),
            };
            let head = self.retrying(&topic, &key).next().map(|(at, _)| *at);
            let dead = self.held_at(rules.on_dead, &topic, &key);
            let is_behind_dead = dead.is_some_and(|dead| head.is_none_or(|head| dead < head));
            is_waiting && !is_behind_dead && !self.is_held(&topic, &key)
        })
    }

    /// Claims rows of these keys, spilled rows first. Only the other rows get a lease.
    pub(super) fn lease(
        &mut self,
        rules: Rules,
        keys: &[ClaimKey],
        bytes_max: usize,
    ) -> Vec<Vec<Place>> {
        let candidates: Vec<_> =
            keys.iter().map(|key| self.claimable(rules, &key.topic, &key.ordering_key)).collect();
        let is_read = |rows: &Vec<Place>| {
            rows.first().is_some_and(|at| self.entries[at].is_read_without_lease())
        };
        let (read, leased): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .map(|rows| match is_read(&rows) {
                true => (rows, Vec::new()),
                false => (Vec::new(), rows),
            })
            .unzip();
        let (mut chosen, bytes) = self.shared(&read, bytes_max);
        if bytes < bytes_max || chosen.iter().all(Vec::is_empty) {
            let (others, _) = self.fitting(&leased, bytes_max.saturating_sub(bytes));
            others.iter().flatten().for_each(|position| self.lease_one(rules, *position));
            let of_each = chosen.iter_mut().zip(others);
            of_each.for_each(|(rows, more)| rows.extend(more));
        }
        chosen
    }

    fn lease_one(&mut self, rules: Rules, position: Place) {
        self.versions += 1;
        if let Some(entry) = self.entries.get_mut(&position) {
            entry.next_attempt = Some(Instant::now() + rules.lease);
            entry.version = self.versions;
        }
    }

    /// Chooses the rows of each key that fit into its share, and returns their bytes. A larger
    /// first row is also chosen if it fits into the rest, or is the only one.
    fn shared(&self, candidates: &[Vec<Place>], bytes_max: usize) -> (Vec<Vec<Place>>, usize) {
        let share = bytes_max / candidates.len().max(1);
        let bytes_of = |position: &Place| self.entries[position].body.len();
        let fitting = |rows: &Vec<Place>| {
            let mut bytes = 0;
            let fits = |position: &&Place| {
                bytes += bytes_of(position);
                bytes <= share
            };
            rows.iter().take_while(fits).copied().collect()
        };
        let mut chosen: Vec<Vec<Place>> = candidates.iter().map(fitting).collect();
        let mut bytes: usize = chosen.iter().flatten().map(bytes_of).sum();
        for (rows, of_key) in chosen.iter_mut().zip(candidates) {
            if let (true, Some(first)) = (rows.is_empty(), of_key.first())
                && (bytes == 0 || bytes + bytes_of(first) <= bytes_max)
            {
                rows.push(*first);
                bytes += bytes_of(first);
            }
        }
        (chosen, bytes)
    }

    /// Chooses the rows that fit, and returns their bytes. Every key's first row precedes any
    /// second row.
    fn fitting(&self, candidates: &[Vec<Place>], bytes_max: usize) -> (Vec<Vec<Place>>, usize) {
        let mut chosen = vec![Vec::new(); candidates.len()];
        let ranks = candidates.iter().map(Vec::len).max().unwrap_or(0);
        let (mut bytes, mut count) = (0, 0);
        let by_rank = (0..ranks)
            .flat_map(|rank| candidates.iter().map(move |rows| rows.get(rank)).enumerate());
        for (index, position) in by_rank.filter_map(|(index, at)| Some((index, at?))) {
            let more = bytes + self.entries[position].body.len();
            if more > bytes_max && count > 0 {
                break;
            }
            bytes = more;
            count += 1;
            chosen[index].push(*position);
        }
        (chosen, bytes)
    }
}

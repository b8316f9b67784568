//! The state that survives a process: the rows, the slots, and the record of the recovery.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;
use walrelay_outbox_replay::RecoveryCursor;

use super::bug::Bug;
use crate::world::locked;

/// A committed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Increases in commit order.
    pub(super) number: u32,
    pub(super) key: u32,
    pub(super) version: u32,
}

/// A slot that was created, and the rows that neither it nor an earlier slot of the recovery
/// streams.
#[derive(Debug, Clone)]
pub(super) struct CreatedSlot {
    /// The number of this slot, counted from 1.
    pub(super) slot: u64,
    pub(super) consistent_point: u64,
    /// In the order in which they are read.
    pub(super) rows: Vec<Row>,
    /// The number of rows that were committed before this slot.
    seen: usize,
}

impl CreatedSlot {
    /// Returns the snapshot as it is on record.
    pub(super) fn snapshot(&self) -> String {
        format!("snapshot {}", self.slot)
    }
}

#[derive(Debug, Default)]
struct State {
    rows: Vec<Row>,
    /// Rows that their producer has deleted.
    deleted: BTreeSet<u32>,
    slots: u64,
    slot: Option<u64>,
    parts: Vec<CreatedSlot>,
    place: Option<(String, RecoveryCursor)>,
    is_finished: bool,
}

#[derive(Debug, Default)]
pub(super) struct Disk(Mutex<State>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    pub(super) fn commit(&self, key: u32) -> Row {
        let mut state = self.state();
        let number = u32::try_from(state.rows.len()).expect("few rows");
        let of_key = state.rows.iter().filter(|row| row.key == key).count();
        let version = u32::try_from(of_key).expect("few rows");
        let row = Row { number, key, version };
        state.rows.push(row);
        row
    }

    /// Deletes a row that the slot streams. The table does not have it any more.
    pub(super) fn delete(&self, row: Row) {
        self.state().deleted.insert(row.number);
    }

    /// Returns whether the slot on record exists.
    pub(super) fn has_slot(&self) -> bool {
        let state = self.state();
        state.parts.last().is_some_and(|part| state.slot == Some(part.slot))
    }

    /// Returns the part whose rows are published next, and the start of the current slot.
    pub(super) fn part(&self) -> Option<(CreatedSlot, u64)> {
        let state = self.state();
        let (first, last) = (state.parts.first()?, state.parts.last()?);
        Some((first.clone(), last.consistent_point))
    }

    pub(super) fn make_slot(&self, consistent_point: u64, bug: Option<Bug>) -> CreatedSlot {
        let mut state = self.state();
        state.slots += 1;
        let slot = state.slots;
        state.slot = Some(slot);
        let earlier = state.parts.last().filter(|_| bug != Some(Bug::JoinsParts));
        let from = earlier.map_or(0, |part| part.seen);
        let is_there = |row: &&Row| !state.deleted.contains(&row.number);
        let mut rows: Vec<Row> = state.rows.iter().skip(from).filter(is_there).copied().collect();
        rows.sort_by_key(|row| (row.key, row.version));
        CreatedSlot { slot, consistent_point, rows, seen: state.rows.len() }
    }

    pub(super) fn note_made(&self, made: CreatedSlot, bug: Option<Bug>) {
        let mut state = self.state();
        if bug == Some(Bug::JoinsParts) {
            state.parts.clear();
        }
        state.parts.push(made);
    }

    /// Loses the slot again. Rows that are committed from now on are not streamed. A row that is not
    /// recorded is still in the table: if its producer had deleted it, nothing would have it.
    pub(super) fn lose_slot(&self, recorded: &BTreeSet<u32>) {
        let mut state = self.state();
        state.slot = None;
        state.deleted.retain(|number| recorded.contains(number));
    }

    pub(super) fn note_place(&self, snapshot: String, place: RecoveryCursor) {
        self.state().place = Some((snapshot, place));
    }

    pub(super) fn place(&self, snapshot: &str, bug: Option<Bug>) -> Option<RecoveryCursor> {
        let keeps = bug == Some(Bug::KeepsThePlaceOfAnotherSlot);
        let noted = self.state().place.clone();
        noted.filter(|(of, _)| keeps || of == snapshot).map(|(_, place)| place)
    }

    /// Finishes the first part, and the recovery if it was the last.
    pub(super) fn finish_part(&self) {
        let mut state = self.state();
        if state.parts.len() > 1 {
            state.parts.remove(0);
        } else {
            state.is_finished = true;
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.state().is_finished
    }
}

/// The steps of the processes, and the step at which the running process dies.
#[derive(Debug, Default)]
pub(super) struct Steps {
    done: Mutex<(u64, u64)>,
    dies_at: Mutex<Option<u64>>,
    pub(super) dies: Notify,
}

impl Steps {
    pub(super) fn arm(&self, dies_at: Option<u64>) {
        locked(&self.done).0 = 0;
        *locked(&self.dies_at) = dies_at;
    }

    pub(super) fn done(&self) -> u64 {
        locked(&self.done).1
    }

    /// Completes a step. The process dies here if this is its last step.
    pub(super) async fn pass(&self) {
        let of_process = {
            let mut done = locked(&self.done);
            *done = (done.0 + 1, done.1 + 1);
            done.0
        };
        let dies = locked(&self.dies_at).take_if(|at| *at == of_process);
        if dies.is_some() {
            self.dies.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

//! The judge of recoveries: no row is lost, the order per key is kept, no recorded row is stored
//! again, and the recovery ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{CreatedSlot, Row};
use crate::judge::Fault;
use crate::world::locked;

/// Rows that settled longer ago than this must be on record. The time covers the interval, a write,
/// and the requests that an earlier session left.
const NOTED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    made: Option<CreatedSlot>,
    /// The number of rows of that slot that are on record as settled.
    noted: u32,
    /// The same number at the start of the running process.
    noted_before: u32,
    /// The settling time of rows of that slot, by number in reading order.
    settled: BTreeMap<u32, Instant>,
    /// Rows that were stored, and the subset that was stored for that slot.
    stored: BTreeSet<u32>,
    stored_for_slot: BTreeSet<u32>,
    /// Every row, in commit order.
    committed: Vec<Row>,
    /// Rows in dispatch state, and the dead ones.
    recorded: BTreeSet<u32>,
    dead: BTreeSet<u32>,
    /// Rows that Pub/Sub refused as `INVALID_ARGUMENT` in a request of their own to the running
    /// process. With `OnDead::Continue` later rows of the key may be stored before the dead row is
    /// recorded.
    refused_alone: BTreeSet<u32>,
    repeated: usize,
    findings: Vec<(Fault, String)>,
}

#[derive(Debug, Default)]
pub(super) struct RecoveryJudge(Mutex<State>);

impl State {
    fn find(&mut self, fault: Fault, text: impl Into<String>) {
        self.findings.push((fault, text.into()));
    }

    fn index_of(&self, number: u32) -> Option<u32> {
        let rows = &self.made.as_ref()?.rows;
        u32::try_from(rows.iter().position(|row| row.number == number)?).ok()
    }

    /// Returns an earlier row of the same key that is neither stored nor dead.
    fn missing_before(&self, number: u32) -> Option<Row> {
        let row = self.committed.get(number as usize)?;
        let is_before = |other: &&Row| other.key == row.key && other.version < row.version;
        let is_there = |other: &Row| {
            let passed = [&self.stored, &self.dead, &self.refused_alone];
            passed.iter().any(|numbers| numbers.contains(&other.number))
        };
        self.committed.iter().filter(is_before).find(|other| !is_there(other)).copied()
    }
}

impl RecoveryJudge {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    pub(super) fn find(&self, fault: Fault, text: impl Into<String>) {
        self.state().find(fault, text);
    }

    /// Records a committed row.
    pub(super) fn committed(&self, row: Row) {
        self.state().committed.push(row);
    }

    /// Records that a process publishes the rows of this slot.
    pub(super) fn begins(&self, made: &CreatedSlot) {
        let mut state = self.state();
        if state.made.as_ref().is_none_or(|before| before.slot != made.slot) {
            (state.noted, state.made) = (0, Some(made.clone()));
            state.stored_for_slot.clear();
            state.settled.clear();
        }
        state.noted_before = state.noted;
    }

    /// Records that a session reads rows from this one on. The session does not know which later
    /// rows are settled.
    pub(super) fn reads_from(&self, first: u32) {
        drop(self.state().settled.split_off(&first));
    }

    /// Records that all rows before this one are on record as settled.
    pub(super) fn noted(&self, number: u32) {
        let mut state = self.state();
        state.noted = state.noted.max(number);
    }

    /// Records a stored message, with its index if it belongs to the stream of the slot.
    pub(super) fn stored(&self, number: u32, tx_index: Option<u32>) {
        let mut state = self.state();
        let index = state.index_of(number);
        let is_recorded = state.recorded.contains(&number);
        if let (Some(told), Some(index)) = (tx_index, index)
            && told != index
        {
            state.find(Fault::Altered, format!("row {index} has the number {told}"));
        }
        let is_again = !state.stored_for_slot.insert(number);
        let is_noted = index.is_some_and(|index| index < state.noted_before);
        if is_again && is_noted && !is_recorded {
            let text = format!("row {index:?}, and {} are noted", state.noted_before);
            state.find(Fault::Repeated, text);
        }
        if !state.stored.insert(number) {
            state.repeated += 1;
        } else if let Some(missing) = state.missing_before(number) {
            state.find(Fault::Reordered, format!("row {number} before {missing:?}"));
        }
    }

    /// Records that the relay learned that a row is stored or recorded.
    pub(super) fn settled(&self, number: u32) {
        let mut state = self.state();
        if let Some(index) = state.index_of(number) {
            state.settled.entry(index).or_insert_with(Instant::now);
        }
    }

    /// Records the rows that are now in dispatch state.
    pub(super) fn recorded(&self, numbers: impl IntoIterator<Item = u32>) {
        self.state().recorded.extend(numbers);
    }

    /// Records the rows that are dead now.
    pub(super) fn dead(&self, numbers: impl IntoIterator<Item = u32>) {
        self.state().dead.extend(numbers);
    }

    /// Records that Pub/Sub refused exactly this row.
    pub(super) fn refused_alone(&self, number: u32) {
        self.state().refused_alone.insert(number);
    }

    /// Records that a process is gone. Rows that settled long ago must be on record. The next
    /// process must retry a dead row that is not on record before later rows of its key.
    pub(super) fn process_gone(&self) {
        let mut state = self.state();
        state.refused_alone.clear();
        let is_old = |index: &u32| {
            let settled = state.settled.get(index);
            settled.is_some_and(|at| at.elapsed() > NOTED_WITHIN)
        };
        let old = (state.noted..).take_while(is_old).count();
        if old > 1 {
            state.find(Fault::Repeated, format!("{old} rows settled long ago come again"));
        }
    }

    /// Checks at the end that every row is stored or recorded.
    pub(super) fn end(&self) -> (Vec<(Fault, String)>, usize) {
        let mut state = self.state();
        for row in state.committed.clone() {
            if !state.stored.contains(&row.number) && !state.recorded.contains(&row.number) {
                state.find(Fault::Lost, format!("{row:?}"));
            }
        }
        (state.findings.clone(), state.repeated)
    }
}

//! The progress of a recovery: the row at which the next attempt resumes.
//!
//! Rows are read in one order and settle in any order. The place is the first unsettled row, so no
//! row before it is missing and no row after it is skipped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgoutput_parser::{Lsn, Position};
use walrelay_outbox_store::{RecordedRow, StoreFailure};

use crate::recovery_cursor::RecoveryCursor;
use crate::rows::unsettled_rows::RowCursor;

/// The progress of a recovery. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The commit position of the transaction that contains all rows.
    commit_lsn: Lsn,
    /// The number of the next row.
    next: u32,
    /// Unsettled rows that were read, by number: the rows in flight, and the rows in the socket
    /// buffer (I6).
    unsettled: BTreeMap<u32, ReadRow>,
    /// The last row that was read, settled or not.
    last: Option<ReadRow>,
    /// The rows in dispatch state, by position.
    recorded: Arc<[RecordedRow]>,
    /// The last known place.
    place: Option<RecoveryCursor>,
    /// Whether the place can no longer be recorded. Another process may continue the recovery.
    is_lost: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            commit_lsn: Lsn::ZERO,
            next: 0,
            unsettled: BTreeMap::new(),
            last: None,
            recorded: Arc::default(),
            place: None,
            is_lost: false,
        }
    }
}

#[derive(Debug, Clone)]
struct ReadRow {
    event_id: String,
    /// `None` if its values are too long to be recorded.
    place: Option<RowCursor>,
    /// The number of the first row with this place. A resumed recovery begins with that row.
    first: u32,
    in_table: Arc<SharedPlace>,
}

/// The part of a place that all rows of a table share.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedPlace {
    /// The names of the tables that were read, up to this one.
    pub(crate) tables: Vec<String>,
    /// The columns that define the order of the table.
    pub(crate) columns: Vec<String>,
}

impl Progress {
    #[must_use]
    pub fn from(place: Option<RecoveryCursor>) -> Self {
        Self(Arc::new(Mutex::new(State { place, ..State::default() })))
    }

    /// Starts a stream at this position with these recorded rows. Rows that an earlier stream read
    /// but did not settle are read again.
    pub fn begin(&self, commit_lsn: Lsn, recorded: Arc<[RecordedRow]>) {
        let mut state = self.state();
        state.update_place();
        state.unsettled.clear();
        state.last = None;
        (state.commit_lsn, state.recorded) = (commit_lsn, recorded);
        state.next = state.place.as_ref().map_or(0, |place| place.number);
    }

    /// Records the next row that was read.
    pub(crate) fn read(
        &self,
        event_id: String,
        place: Option<RowCursor>,
        in_table: &Arc<SharedPlace>,
    ) {
        let mut state = self.state();
        let number = state.next;
        state.next = number.saturating_add(1);
        let is_at_place = |last: &&ReadRow| last.place == place && last.in_table == *in_table;
        let first = state.last.as_ref().filter(is_at_place).map_or(number, |last| last.first);
        let row = ReadRow { event_id, place, first, in_table: Arc::clone(in_table) };
        if !state.is_recorded(number, &row.event_id) {
            state.unsettled.insert(number, row.clone());
        }
        state.last = Some(row);
    }

    /// Records that a row is settled. Rows of dispatch state have other positions, or are already
    /// settled.
    pub(crate) fn settled(&self, position: Position, event_id: &str) {
        let mut state = self.state();
        // A row that was deleted meanwhile shifts the numbers of later rows, so the event id is
        // compared also.
        let is_it = |row: &ReadRow| row.event_id == event_id;
        if position.commit_lsn == state.commit_lsn
            && state.unsettled.get(&position.tx_index).is_some_and(is_it)
        {
            state.unsettled.remove(&position.tx_index);
        }
    }

    /// Ends the session at its next command to dispatch state, because the place cannot be recorded
    /// any more.
    pub(crate) fn lose(&self) {
        self.state().is_lost = true;
    }

    /// Refuses a command of a session that [lost](Self::lose) the recovery.
    pub(crate) fn refuse_lost(&self) -> Result<(), StoreFailure> {
        match self.state().is_lost {
            true => Err(StoreFailure::OtherHistory("the recovery is not this process's any more")),
            false => Ok(()),
        }
    }

    pub(crate) fn recorded(&self) -> Arc<[RecordedRow]> {
        Arc::clone(&self.state().recorded)
    }

    /// Returns the row to resume at, or `None` before any row was read.
    #[must_use]
    pub fn place(&self) -> Option<RecoveryCursor> {
        let mut state = self.state();
        state.update_place();
        state.place.clone()
    }

    /// Returns the number of rows before the place.
    #[must_use]
    pub fn number(&self) -> u32 {
        let mut state = self.state();
        state.update_place();
        state.place.as_ref().map_or(0, |place| place.number)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether dispatch state has the row, which means that it is settled.
    fn is_recorded(&self, number: u32, event_id: &str) -> bool {
        let position = Position { commit_lsn: self.commit_lsn, tx_index: number };
        let found = self.recorded.binary_search_by_key(&position, |row| row.position);
        found.ok().and_then(|at| self.recorded.get(at)).is_some_and(|row| row.is_of(event_id))
    }

    fn update_place(&mut self) {
        // If all rows are settled, the last one is the place. Only the rows at that place are then
        // published again.
        let unsettled = self.unsettled.values().next();
        let Some(row) = unsettled.or(self.last.as_ref()) else { return };
        let number = row.first;
        if self.place.as_ref().is_some_and(|place| place.number == number) {
            return;
        }
        let SharedPlace { tables, columns } = &*row.in_table;
        let (tables, columns) = (tables.clone(), columns.clone());
        if let Some(row) = row.place.clone() {
            self.place = Some(RecoveryCursor { tables, columns, number, row });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rows::unsettled_rows::AggregateKey;

    use super::*;

    const COMMIT: Lsn = Lsn::new(9);

    fn at(key: &str) -> Option<RowCursor> {
        let key = AggregateKey { aggregate_id: key.to_owned(), ..AggregateKey::default() };
        Some(RowCursor { key, order: Vec::new() })
    }

    fn progress(rows: u32) -> Progress {
        let progress = Progress::default();
        progress.begin(COMMIT, Arc::default());
        let in_table = Arc::new(SharedPlace { tables: vec!["t".into()], columns: Vec::new() });
        for number in 0..rows {
            progress.read(format!("e{number}"), at(&number.to_string()), &in_table);
        }
        progress
    }

    fn settle(progress: &Progress, number: u32) {
        let position = Position { commit_lsn: COMMIT, tx_index: number };
        progress.settled(position, &format!("e{number}"));
    }

    #[test]
    fn a_recovery_continues_with_the_first_row_that_is_not_settled() {
        let progress = progress(5);
        settle(&progress, 1);
        assert_eq!(progress.number(), 0, "row 0 is not settled");
        settle(&progress, 3);
        settle(&progress, 0);
        assert_eq!(progress.number(), 2);
        settle(&progress, 2);
        assert_eq!(progress.number(), 4);
        let place = progress.place().expect("a place");
        assert_eq!((place.row.key.aggregate_id.as_str(), place.tables.len()), ("4", 1));
        // The next stream reads row 4 first, and gives it number 4.
        progress.begin(COMMIT, Arc::default());
        progress.read("e4".into(), None, &Arc::default());
        progress.read("e5".into(), None, &Arc::default());
        settle(&progress, 4);
        assert_eq!(progress.number(), 4, "a row without a place moves nothing");
    }

    #[test]
    fn a_row_that_dispatch_state_has_is_settled_once_it_is_read() {
        let (progress, in_table) = (Progress::default(), Arc::default());
        let position = Position { commit_lsn: COMMIT, tx_index: 1 };
        let recorded = RecordedRow { position, event_id: "e1".into(), parks: None };
        progress.begin(COMMIT, [recorded].into());
        for number in 0..3 {
            progress.read(format!("e{number}"), at(&number.to_string()), &in_table);
        }
        settle(&progress, 0);
        assert_eq!(progress.number(), 2);
    }

    #[test]
    fn rows_that_no_column_orders_are_read_again_together() {
        let (progress, in_table) = (Progress::default(), Arc::default());
        progress.begin(COMMIT, Arc::default());
        for (number, key) in ["a", "b", "b", "b", "c"].iter().enumerate() {
            progress.read(format!("e{number}"), at(key), &in_table);
        }
        for number in [0, 1, 2] {
            settle(&progress, number);
        }
        assert_eq!(progress.number(), 1, "e3 is at the place of e1");
        settle(&progress, 3);
        assert_eq!(progress.number(), 4);
    }

    #[test]
    fn a_row_that_moved_because_another_was_deleted_settles_no_other() {
        let progress = progress(2);
        progress.settled(Position { commit_lsn: COMMIT, tx_index: 0 }, "e1");
        progress.settled(Position { commit_lsn: Lsn::new(7), tx_index: 0 }, "e0");
        assert_eq!(progress.number(), 0);
        settle(&progress, 0);
        assert_eq!(progress.number(), 1);
    }
}

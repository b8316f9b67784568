//! Rows that dispatch state already has, and that the slot may send again after a restart.

use std::collections::VecDeque;

use pgoutput_parser::{Lsn, Position};
use walrelay_postgres::RecordedRow;

/// Rows recorded at or after the slot's `confirmed_flush` when the session began, and not come yet.
///
/// Between them may lie rows that are neither recorded nor stored, such as a batch that was out when
/// the key was parked: the slot sends those again. Until it has come past the last recorded row,
/// nothing may be claimed, or a recorded row would overtake an earlier one of its key (I4).
#[derive(Debug)]
pub struct RecordedRows {
    /// In the order of the log, in which the slot sends them.
    rows: VecDeque<RecordedRow>,
}

/// What dispatch state holds at the position of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing.
    Nothing,
    /// This very row.
    ThisRow,
    /// Only rows with other event ids: the slot is read with a publication that leaves out tables, or
    /// has others, so that the rows of a transaction are counted in another way.
    OtherRows,
}

impl RecordedRows {
    /// These, which are in the order of the log.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = RecordedRow>) -> Self {
        Self { rows: rows.into_iter().collect() }
    }

    /// What is recorded at a row's position; `event_id` tells the row's id. Asked once a row, in the
    /// order of the log: what was recorded up to there is forgotten then.
    ///
    /// # Errors
    ///
    /// Those of `event_id`.
    pub fn at<'a, E>(
        &mut self,
        position: Position,
        event_id: impl FnOnce() -> Result<&'a str, E>,
    ) -> Result<Recorded, E> {
        while self.rows.pop_front_if(|row| row.position < position).is_some() {}
        if self.rows.front().is_none_or(|row| row.position != position) {
            return Ok(Recorded::Nothing);
        }
        let event_id = event_id()?;
        let mut found = Recorded::OtherRows;
        while let Some(row) = self.rows.pop_front_if(|row| row.position == position) {
            if row.is_of(event_id) {
                found = Recorded::ThisRow;
            }
        }
        Ok(found)
    }

    /// The slot has sent every transaction that ends at `boundary` or before. Rows that have not come
    /// by then never will, because their table is not published any more.
    pub fn reached(&mut self, boundary: Lsn) {
        while self.rows.pop_front_if(|row| row.position.commit_lsn < boundary).is_some() {}
    }

    /// Whether the slot has sent all of them again, and so everything that precedes them.
    #[must_use]
    pub fn have_come(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn position(commit_lsn: u64, tx_index: u32) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
    }

    fn rows(ids: &[(u64, u32, &str)]) -> RecordedRows {
        let row = |(lsn, index, id): &(u64, u32, &str)| RecordedRow {
            position: position(*lsn, *index),
            event_id: (*id).to_owned(),
        };
        RecordedRows::new(ids.iter().map(row))
    }

    fn at(recorded: &mut RecordedRows, position: Position, id: &str) -> Recorded {
        let Ok(found) = recorded.at(position, || Ok::<_, Infallible>(id));
        found
    }

    #[test]
    fn recorded_rows_have_come_when_the_last_of_them_has() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        assert_eq!(at(&mut recorded, position(9, 7), "z"), Recorded::Nothing);
        assert_eq!(at(&mut recorded, position(10, 0), "a"), Recorded::ThisRow);
        assert_eq!(at(&mut recorded, position(20, 0), "y"), Recorded::Nothing);
        assert!(!recorded.have_come());
        assert_eq!(at(&mut recorded, position(20, 1), "b"), Recorded::ThisRow);
        assert!(recorded.have_come());
    }

    #[test]
    fn recorded_rows_that_never_come_are_not_waited_for_beyond_their_place() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        recorded.reached(Lsn::new(20));
        assert!(!recorded.have_come());
        recorded.reached(Lsn::new(21));
        assert!(recorded.have_come());
        let mut passed = rows(&[(10, 0, "a"), (10, 1, "b"), (10, 2, "c")]);
        assert_eq!(at(&mut passed, position(10, 1), "b"), Recorded::ThisRow);
        assert_eq!(at(&mut passed, position(11, 0), "d"), Recorded::Nothing);
        assert!(passed.have_come());
    }

    #[test]
    fn a_row_with_another_id_where_one_is_recorded_is_not_taken_for_it() {
        let mut recorded = rows(&[(10, 0, "a"), (10, 1, "b"), (10, 1, "c"), (10, 2, "d")]);
        assert_eq!(at(&mut recorded, position(10, 0), "b"), Recorded::OtherRows);
        assert_eq!(at(&mut recorded, position(10, 1), "c"), Recorded::ThisRow, "one of two");
        assert_eq!(at(&mut recorded, position(10, 2), "d"), Recorded::ThisRow);
    }

    #[test]
    fn a_row_whose_id_cannot_be_read_is_an_error_only_where_one_is_recorded() {
        let mut recorded = rows(&[(10, 1, "a")]);
        assert_eq!(recorded.at(position(10, 0), || Err("unreadable")), Ok(Recorded::Nothing));
        assert_eq!(recorded.at(position(10, 1), || Err("unreadable")), Err("unreadable"));
    }
}

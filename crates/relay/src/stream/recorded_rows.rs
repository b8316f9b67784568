//! Rows that dispatch state already has, and that the slot may send again after a restart.

use std::collections::HashSet;

use pgoutput_parser::{Lsn, Position};

/// Positions recorded at or after the slot's `confirmed_flush` when the session began.
///
/// Between them may lie rows that are neither recorded nor stored, such as a batch that was out when
/// the key was parked: the slot sends those again. Until it has come past the last recorded row,
/// nothing may be claimed, or a recorded row would overtake an earlier one of its key (I4).
#[derive(Debug)]
pub struct RecordedRows {
    positions: HashSet<Position>,
    /// Commit of the last of them.
    last_commit_lsn: Lsn,
}

impl RecordedRows {
    /// These positions.
    #[must_use]
    pub fn new(positions: impl IntoIterator<Item = Position>) -> Self {
        let positions: HashSet<_> = positions.into_iter().collect();
        let last = positions.iter().map(|position| position.commit_lsn).max();
        Self { positions, last_commit_lsn: last.unwrap_or(Lsn::ZERO) }
    }

    /// Whether the row at this position is recorded. Asked once a row: it is forgotten then.
    pub fn contains(&mut self, position: Position) -> bool {
        !self.positions.is_empty() && self.positions.remove(&position)
    }

    /// The slot has sent every transaction that ends at `boundary` or before. Rows that have not come
    /// by then never will, because their table is not published any more.
    pub fn reached(&mut self, boundary: Lsn) {
        if !self.positions.is_empty() && boundary > self.last_commit_lsn {
            self.positions = HashSet::new();
        }
    }

    /// Whether the slot has sent all of them again, and so everything that precedes them.
    #[must_use]
    pub fn have_come(&self) -> bool {
        self.positions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(commit_lsn: u64, tx_index: u32) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
    }

    #[test]
    fn recorded_rows_have_come_when_the_last_of_them_has() {
        let mut recorded = RecordedRows::new([position(10, 0), position(20, 1)]);
        assert!(recorded.contains(position(10, 0)) && !recorded.contains(position(10, 0)));
        assert!(!recorded.have_come());
        assert!(recorded.contains(position(20, 1)));
        assert!(recorded.have_come());
    }

    #[test]
    fn recorded_rows_that_never_come_are_not_waited_for_beyond_their_place() {
        let mut recorded = RecordedRows::new([position(10, 0), position(20, 1)]);
        recorded.reached(Lsn::new(20));
        assert!(!recorded.have_come());
        recorded.reached(Lsn::new(21));
        assert!(recorded.have_come());
    }
}

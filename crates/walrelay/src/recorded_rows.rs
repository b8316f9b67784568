//! Rows that dispatch state already has, and that the slot may send again after a restart.

use std::collections::HashSet;

use pgoutput_parser::Position;

/// Positions recorded at or after the slot's `confirmed_flush` when the session began.
#[derive(Debug, Default)]
pub struct RecordedRows {
    positions: HashSet<Position>,
}

impl RecordedRows {
    /// These positions.
    #[must_use]
    pub fn new(positions: impl IntoIterator<Item = Position>) -> Self {
        Self { positions: positions.into_iter().collect() }
    }

    /// Whether the row at this position is recorded. Asked once a row: it is forgotten then.
    pub fn contains(&mut self, position: Position) -> bool {
        !self.positions.is_empty() && self.positions.remove(&position)
    }
}

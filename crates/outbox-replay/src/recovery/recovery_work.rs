//! The rows that a lost slot may not have settled.

use pgoutput_parser::Lsn;

use crate::rows::unsettled_rows::UnsettledRows;

/// The rows that may be unsettled. They must be published before the slot is streamed.
#[derive(Debug, Clone)]
pub struct RecoveryWork {
    /// The start of the slot.
    pub consistent_point: Lsn,
    /// The selection of the rows.
    pub gap: UnsettledRows,
}

impl RecoveryWork {
    /// Returns the position of the rows: behind all settled rows, and before all streamed rows.
    #[must_use]
    pub fn commit_lsn(&self) -> Lsn {
        Lsn::new(self.consistent_point.as_u64() - 1)
    }
}

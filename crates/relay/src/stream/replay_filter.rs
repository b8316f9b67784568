//! Selects the rows of a replay from the stream, by transaction and by row.

use pgoutput_parser::{Begin, Insert};
use walrelay_core::{ReplaySelection, RouteError, Router};

/// A selection, and whether it includes the open transaction.
#[derive(Debug)]
pub struct ReplayFilter {
    selection: ReplaySelection,
    has_commit: bool,
}

impl ReplayFilter {
    #[must_use]
    pub const fn new(selection: ReplaySelection) -> Self {
        Self { selection, has_commit: false }
    }

    pub fn begin(&mut self, begin: &Begin) {
        self.has_commit = self.selection.has_commit(begin.final_lsn, begin.commit_timestamp);
    }

    /// Returns whether a row of the open transaction is published.
    pub fn has(&self, row: &Insert<'_>, router: &mut Router) -> Result<bool, RouteError> {
        Ok(self.has_commit && router.matches(row, &self.selection.matching)?)
    }
}

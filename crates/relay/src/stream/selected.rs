//! What a replay takes of the stream, asked transaction by transaction and row by row.

use pgoutput_parser::{Begin, Insert};
use walrelay_core::{RouteError, Router, Selection};

/// A selection, and what it says of the transaction that is open.
#[derive(Debug)]
pub struct Selected {
    selection: Selection,
    has_commit: bool,
}

impl Selected {
    /// No transaction is open yet.
    #[must_use]
    pub const fn new(selection: Selection) -> Self {
        Self { selection, has_commit: false }
    }

    /// A transaction begins.
    pub fn begin(&mut self, begin: &Begin) {
        self.has_commit = self.selection.has_commit(begin.final_lsn, begin.commit_timestamp);
    }

    /// Whether a row of it is published.
    ///
    /// # Errors
    ///
    /// The row cannot be read.
    pub fn has(&self, row: &Insert<'_>, router: &mut Router) -> Result<bool, RouteError> {
        Ok(self.has_commit && router.matches(row, &self.selection.matching)?)
    }
}

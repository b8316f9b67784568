//! Numbers of rows per table, as steps, questions and errors show them.

use serde::Serialize;

/// A number of rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableRows {
    /// The table.
    pub table: String,
    /// The number of rows.
    pub rows: u64,
}

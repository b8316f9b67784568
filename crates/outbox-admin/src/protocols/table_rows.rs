//! Numbers of rows per table, as steps, questions and errors show them.

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableRows {
    pub table: String,
    pub rows: u64,
}

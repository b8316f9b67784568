//! The number of rows of a table, as JSON shows it.

use serde::Serialize;
use walrelay_outbox_admin::protocols::TableRows;

#[derive(Debug, Serialize)]
pub(in crate::commands) struct TableRowsJson<'a> {
    table: &'a str,
    rows: u64,
}

impl<'a> TableRowsJson<'a> {
    pub(in crate::commands) fn list(rows: &'a [TableRows]) -> Vec<Self> {
        rows.iter().map(|TableRows { table, rows }| Self { table, rows: *rows }).collect()
    }
}

//! The objects that the relay will use, which the preflight checks.

use walrelay_core::ColumnUse;
use walrelay_outbox_store::{Definition, Outbox, ShardKey};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreflightRequest {
    pub outbox: Outbox,
    /// The same with the names of the columns, as the record has it.
    pub definition: Definition,
    /// The key that distributes rows among shards. None if all rows have the same ordering key.
    pub shard_key: Option<ShardKey>,
    /// The columns that the relay reads from each table.
    pub columns: Vec<ExpectedColumn>,
}

/// A column that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedColumn {
    /// The names that it may have. One is enough.
    pub names: Vec<String>,
    pub used_by: ColumnUse,
    pub role: ColumnRole,
}

/// The use of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnRole {
    Payload,
    Required,
    /// Read if it exists.
    Optional,
}

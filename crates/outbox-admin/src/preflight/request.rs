//! What the relay is going to use, which the server is looked at for.

use walrelay_outbox_store::{Outbox, ShardKey};

/// What the relay is going to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreflightRequest {
    /// Which slot, publication and tables.
    pub outbox: Outbox,
    /// What rows are distributed by among shards; none where all rows have the same ordering key.
    pub shard_key: Option<ShardKey>,
    /// The columns that are read from each of them.
    pub columns: Vec<ExpectedColumn>,
}

/// A column that configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedColumn {
    /// The names it may have; one of them is enough.
    pub names: Vec<String>,
    /// The option that names it, as in `--column-event-type`.
    pub option: String,
    /// What it is read for.
    pub role: ColumnRole,
}

/// What a column is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnRole {
    /// The data of the message.
    Payload,
    /// Anything else that has to be there.
    Required,
    /// Read where it is there.
    Optional,
}

//! The request of a replay: which rows it reads, from where, and where they go.

use std::num::NonZeroU32;
use std::time::SystemTime;

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::ColumnFilter;

/// The treatment of a row that Pub/Sub never accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadRows {
    /// The replay ends at the row.
    Stop,
    /// The replay logs the row and skips it.
    LeaveOut,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Another topic. No live row goes there.
    Topic {
        /// The template of the topic.
        template: String,
        /// The most rows per second.
        rate: Option<NonZeroU32>,
    },
    /// The original topics of the rows, through dispatch state.
    InPlace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplaySource {
    /// The WAL behind an anchor.
    Wal(WalRows),
    Table(TableRows),
}

impl ReplaySource {
    /// Returns the value of `--source`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Wal(_) => "wal",
            Self::Table(_) => "table",
        }
    }
}

/// A range of WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalRows {
    /// The anchor whose copy is streamed.
    pub anchor: String,
    pub from: Lsn,
    pub to: Lsn,
    /// Only commits at this time or later.
    pub since: Option<PgTimestamp>,
    /// Only commits at this time or earlier.
    pub until: Option<PgTimestamp>,
}

/// The rows that a snapshot of the tables sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRows {
    /// The snapshot (`pg_snapshot`).
    pub snapshot: String,
    /// Only events of this time or later.
    pub since: Option<PgTimestamp>,
    /// Only rows with these event ids. Empty selects all rows.
    pub event_ids: Vec<String>,
    /// The columns that order the rows of an aggregate. Empty means version, time and id.
    pub order_by: Vec<String>,
}

/// The request of a replay, with positions in place of times. A resumed replay needs no other
/// input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRequest {
    pub source: ReplaySource,
    pub destination: Destination,
    /// Only rows with these values.
    pub matching: ColumnFilter,
    pub dead_rows: DeadRows,
}

/// A new replay, as an operator orders it.
#[derive(Debug, Clone)]
pub struct ReplayOrder {
    pub source: OrderedSource,
    pub destination: Destination,
    pub matching: ColumnFilter,
    pub dead_rows: DeadRows,
}

#[derive(Debug, Clone)]
pub enum OrderedSource {
    Wal(OrderedWal),
    Table(OrderedTable),
}

/// A range of WAL of a new replay.
#[derive(Debug, Clone, Default)]
pub struct OrderedWal {
    /// Name of the anchor. None means the nearest one that reaches back far enough.
    pub anchor: Option<String>,
    /// The start. None means the anchor's position.
    pub from: Option<Lsn>,
    /// Only commits at this time or later. The start is then a position before all of them.
    pub since: Option<SystemTime>,
    /// The end. None means the end of the WAL.
    pub to: Option<Lsn>,
    /// Only commits at this time or earlier.
    pub until: Option<SystemTime>,
}

/// The rows of the tables of a new replay.
#[derive(Debug, Clone)]
pub struct OrderedTable {
    pub since: Option<SystemTime>,
    pub event_ids: Vec<String>,
    pub order_by: Vec<String>,
}

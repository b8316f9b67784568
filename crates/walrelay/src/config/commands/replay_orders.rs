//! The arguments of recover, advance, replay and backfill: plain data, checked by its constructor.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::{ColumnFilter, ColumnNames};
use walrelay_outbox_admin::replay::{DeadRows, Destination, Keeping, Rate};
use walrelay_relay::settings::Settings;

pub use walrelay_outbox_admin::protocols::{Place, ResetOrder};

/// The recovery of a lost slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoverOrder {
    /// Publish rows since this time, instead of since the recorded position.
    pub since: Option<SystemTime>,
    /// The names of the outbox columns.
    pub columns: Box<ColumnNames>,
}

/// The advance of a slot past a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvanceOrder {
    /// A position inside the transaction, or of its commit.
    pub to: Lsn,
    /// The number of rows that the user has agreed to lose.
    pub discard_rows: u64,
    /// The names of the outbox columns.
    pub columns: Box<ColumnNames>,
}

/// Configuration of `walrelay replay start --source wal`.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// The relay's settings, as far as a replay uses them.
    pub settings: Settings,
    /// The action.
    pub action: ReplayAction,
}

/// Configuration of `walrelay replay resume`.
#[derive(Debug, Clone)]
pub struct ResumeConfig {
    /// The relay's settings, as far as a replay uses them.
    pub settings: Settings,
    /// Id of the replay.
    pub id: String,
    /// The new treatment of rows that Pub/Sub would never accept, if it changes.
    pub dead_rows: Option<DeadRows>,
}

/// An action on replays.
#[derive(Debug, Clone)]
pub enum ReplayAction {
    /// Start a new replay.
    Begin(ReplayOrder),
    /// Resume an interrupted replay.
    Resume {
        /// Id of the replay.
        id: String,
        /// The new treatment of rows that Pub/Sub would never accept, if it changes.
        dead_rows: Option<DeadRows>,
    },
}

/// A new replay.
#[derive(Debug, Clone)]
pub struct ReplayOrder {
    /// Name of the anchor. None means the nearest one that reaches back far enough.
    pub anchor: Option<String>,
    /// The start. None means the anchor's position.
    pub from: Option<Place>,
    /// The end. None means the end of the WAL.
    pub to: Option<Place>,
    /// The rows.
    pub matching: ColumnFilter,
    /// The destination.
    pub destination: Destination,
    /// The rate limit.
    pub rate: Option<Rate>,
    /// The treatment of rows that Pub/Sub would never accept.
    pub dead_rows: DeadRows,
    /// Whether the replay is published and recorded, or only counted.
    pub keeping: Keeping,
}

/// Configuration of `walrelay replay start --source table`.
#[derive(Debug, Clone)]
pub struct BackfillConfig {
    /// The relay's settings, as far as a backfill uses them.
    pub settings: Settings,
    /// The action.
    pub action: BackfillAction,
}

/// An action on backfills.
#[derive(Debug, Clone)]
pub enum BackfillAction {
    /// Start a new backfill.
    Begin(BackfillOrder),
    /// Resume an interrupted backfill.
    Resume {
        /// Id of the backfill.
        id: String,
        /// The new treatment of rows that Pub/Sub would never accept, if it changes.
        dead_rows: Option<DeadRows>,
    },
}

/// A new backfill.
#[derive(Debug, Clone)]
pub struct BackfillOrder {
    /// Only events of this time or later.
    pub since: Option<SystemTime>,
    /// The rows.
    pub matching: ColumnFilter,
    /// Only rows with these event ids. Empty means all.
    pub event_ids: Vec<String>,
    /// The destination.
    pub destination: Destination,
    /// The columns that give the order within an aggregate.
    pub order_by: Vec<String>,
    /// The rate limit.
    pub rate: Option<Rate>,
    /// The treatment of rows that Pub/Sub would never accept.
    pub dead_rows: DeadRows,
    /// Whether the backfill is published and recorded, or only counted.
    pub keeping: Keeping,
}

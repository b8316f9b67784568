//! The arguments of recover, reset and replay: plain data, checked by its constructor.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::ColumnNames;
use walrelay_outbox_admin::Again;
use walrelay_outbox_admin::replay::{DeadRows, ReplayOrder};
use walrelay_relay::settings::Settings;

use crate::options::choices::ChangeMode;

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

/// The reset of a slot to an anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOrder {
    /// Name of the anchor.
    pub anchor: String,
    /// The start of the stream. None means the anchor's position.
    pub to: Option<Place>,
    /// The rows of dispatch state that are also published again.
    pub again: Again,
    /// Whether rows may be skipped.
    pub skipping: SkipConsent,
    /// The number of rows that the user has agreed to lose.
    pub discard_rows: u64,
    /// The names of the outbox columns.
    pub columns: Box<ColumnNames>,
    /// Whether the slot may be moved.
    pub mode: ChangeMode,
}

/// Whether rows may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipConsent {
    /// Refuse to skip rows.
    Refused,
    /// The user gave `--skip-events`.
    Agreed,
}

/// A place in the WAL, as an operator names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A position.
    Lsn(Lsn),
    /// A time.
    Time(SystemTime),
}

impl Place {
    /// Returns the place that one of two options names.
    pub(in crate::config) fn of(lsn: Option<Lsn>, time: Option<SystemTime>) -> Option<Self> {
        lsn.map(Self::Lsn).or(time.map(Self::Time))
    }
}

/// Configuration of `walrelay replay start` and `resume`.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// The relay's settings, as far as a replay uses them.
    pub settings: Settings,
    /// The action.
    pub action: ReplayAction,
}

/// An action that publishes rows again.
#[derive(Debug, Clone)]
pub enum ReplayAction {
    /// Start a new replay.
    Start {
        /// The rows and their destination. A start that is given as a time has no position yet.
        order: ReplayOrder,
        /// Whether the rows may be published.
        mode: ChangeMode,
    },
    /// Resume an interrupted replay.
    Resume {
        /// Id of the replay.
        id: String,
        /// The new treatment of rows that Pub/Sub would never accept, if it changes.
        dead_rows: Option<DeadRows>,
        /// Whether the rows may be published.
        mode: ChangeMode,
    },
}

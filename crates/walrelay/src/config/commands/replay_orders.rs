//! The arguments of recover, advance and replay: plain data, checked by its constructor.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::replay::{DeadRows, ReplayOrder};
use walrelay_relay::settings::Settings;

use crate::options::choices::ChangeOptions;

pub(crate) use walrelay_outbox_admin::protocols::{Place, ResetOrder};

/// The recovery of a lost slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoverOrder {
    /// Publish rows since this time, instead of since the recorded position.
    pub since: Option<SystemTime>,
    /// The names of the outbox columns.
    pub columns: Box<ColumnNames>,
}

/// The advance of a slot past a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdvanceOrder {
    /// A position inside the transaction, or of its commit.
    pub to: Lsn,
    /// The number of rows that the user has agreed to lose.
    pub discard_rows: u64,
    /// The names of the outbox columns.
    pub columns: Box<ColumnNames>,
}

/// Configuration of `walrelay replay start` and `resume`.
#[derive(Debug, Clone)]
pub(crate) struct ReplayConfig {
    /// The relay's settings, as far as a replay uses them.
    pub settings: Settings,
    /// The action.
    pub action: ReplayAction,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// An action that publishes rows again.
#[derive(Debug, Clone)]
pub(crate) enum ReplayAction {
    /// Start a new replay of these rows. A start that is given as a time has no position yet.
    Start(ReplayOrder),
    /// Resume an interrupted replay.
    Resume {
        /// Id of the replay.
        id: String,
        /// The new treatment of rows that Pub/Sub would never accept, if it changes.
        dead_rows: Option<DeadRows>,
    },
}

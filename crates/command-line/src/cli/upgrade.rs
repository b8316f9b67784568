//! The command line of `walrelay upgrade`.

use clap::{Args, Subcommand};

use super::{ARGUMENTS, ChangeArgs, ServiceOptions};
use crate::options::DatabaseOptions;

/// `walrelay upgrade`.
#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(subcommand)]
    pub action: UpgradeActionArgs,
}

/// What to do for an upgrade of Postgres.
#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeActionArgs {
    /// Publish and confirm every row, then drop the slot and its anchors.
    ///
    /// pg_upgrade refuses a server that has slots. Relays release their slot and wait. Producers need not stop.
    /// After the upgrade, `slot recover`, or a relay with --on-slot-lost recover, continues without loss.
    #[command(after_help = "Example:\n  walrelay upgrade prepare --project my-project")]
    Prepare(Box<UpgradePrepareArgs>),
    /// Take over a slot that pg_upgrade has carried over to a new server.
    ///
    /// Such a slot was confirmed completely before the upgrade, or pg_upgrade would have refused. If somebody created the
    /// slot by hand, run `slot recover` instead, which loses nothing.
    #[command(after_help = "Example:\n  walrelay upgrade finish")]
    Finish(UpgradeFinishArgs),
    /// Cancel a preparation whose slot still exists: relays continue.
    #[command(after_help = "Example:\n  walrelay upgrade cancel")]
    Cancel(UpgradeCancelArgs),
}

/// `walrelay upgrade prepare`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct UpgradePrepareArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay upgrade finish`.
#[derive(Debug, Args)]
pub(crate) struct UpgradeFinishArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay upgrade cancel`.
#[derive(Debug, Args)]
pub(crate) struct UpgradeCancelArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

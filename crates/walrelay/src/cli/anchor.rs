//! The command line of `walrelay anchor`.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pgoutput_parser::Lsn;

use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{anchor_name, lsn, time};
use crate::options::{DatabaseOptions, OutputOptions, WalBudgetOption};

/// `walrelay anchor`.
#[derive(Debug, Args)]
pub(crate) struct AnchorArgs {
    #[command(subcommand)]
    pub action: AnchorActionArgs,
}

/// What to do with anchors.
#[derive(Debug, Subcommand)]
pub(crate) enum AnchorActionArgs {
    /// Create an anchor at the position of the slot; the slot may be in use.
    ///
    /// From then on the server retains WAL for the anchor until it is advanced or dropped.
    #[command(after_help = "Example:\n  walrelay anchor create before_release")]
    Create(AnchorCreateArgs),
    /// List the anchors of the slot, their reach and the WAL that they retain.
    #[command(after_help = "Example:\n  walrelay anchor list --output json")]
    List(AnchorListArgs),
    /// Move an anchor forward, by default to the slot, and free the WAL before it.
    #[command(after_help = "Examples:\n  walrelay anchor advance daily\n  \
        walrelay anchor advance daily --to-time 6h")]
    Advance(AnchorAdvanceArgs),
    /// Drop an anchor: the WAL that it retains can no longer be replayed.
    ///
    /// Refused while an unfinished replay needs the anchor.
    #[command(after_help = "Example:\n  walrelay anchor drop before_release")]
    Drop(AnchorDropArgs),
}

/// `walrelay anchor create`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct AnchorCreateArgs {
    /// Name of the anchor: lower-case letters, digits and `_`. Its slot is called SLOT_anchor_NAME.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    pub name: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay anchor list`.
#[derive(Debug, Args)]
pub(crate) struct AnchorListArgs {
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay anchor advance`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct AnchorAdvanceArgs {
    /// Name of the anchor.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    pub name: String,
    /// Position to move to (16/B374D848), not past the slot.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    pub to_lsn: Option<Lsn>,
    /// Time to move to: 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to_time: Option<SystemTime>,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay anchor drop`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct AnchorDropArgs {
    /// Name of the anchor.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    pub name: String,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

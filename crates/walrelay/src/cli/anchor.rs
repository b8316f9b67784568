//! The command line of `walrelay anchor`.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pgoutput_parser::Lsn;

use super::ARGUMENTS;
use crate::options::values::{anchor_name, lsn, time};
use crate::options::{DatabaseOptions, OutputOptions, WalBudgetOption};

/// `walrelay anchor`.
#[derive(Debug, Args)]
pub struct AnchorArgs {
    #[command(subcommand)]
    pub action: AnchorActionArgs,
}

/// What to do with anchors.
#[derive(Debug, Subcommand)]
pub enum AnchorActionArgs {
    /// Makes an anchor where the slot stands now; the slot may be in use.
    ///
    /// From then on the server keeps the log for it until it is advanced or dropped.
    #[command(after_help = "Example:\n  walrelay anchor create before_release")]
    Create(AnchorCreateArgs),
    /// Lists the anchors of the slot: how far back each reaches, what it costs, what room is left.
    #[command(after_help = "Example:\n  walrelay anchor list --format json")]
    List(AnchorListArgs),
    /// Moves an anchor forward, to where the slot stands unless told otherwise, and frees the log before.
    #[command(after_help = "Examples:\n  walrelay anchor advance daily\n  \
        walrelay anchor advance daily --to-time 6h")]
    Advance(AnchorAdvanceArgs),
    /// Drops an anchor; the log it kept is freed, and can no longer be replayed. Refused while a replay that is
    /// not finished needs it.
    #[command(after_help = "Example:\n  walrelay anchor drop before_release")]
    Drop(AnchorDropArgs),
}

/// `walrelay anchor create`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct AnchorCreateArgs {
    /// Name of the anchor: lower-case letters, digits and `_`. Its slot is called SLOT_anchor_NAME.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    pub name: String,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay anchor list`.
#[derive(Debug, Args)]
pub struct AnchorListArgs {
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
pub struct AnchorAdvanceArgs {
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
    pub database: DatabaseOptions,
}

/// `walrelay anchor drop`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct AnchorDropArgs {
    /// Name of the anchor.
    #[arg(value_name = "NAME", value_parser = anchor_name)]
    pub name: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

//! The command line of `walrelay slot`.

use clap::{Args, Subcommand};

use super::ARGUMENTS;
use crate::options::DatabaseOptions;

/// `walrelay slot`.
#[derive(Debug, Args)]
pub struct SlotArgs {
    #[command(subcommand)]
    pub action: SlotActionArgs,
}

/// What to do with the slot.
#[derive(Debug, Subcommand)]
pub enum SlotActionArgs {
    /// Shows the slot as the server sees it.
    #[command(after_help = "Example:\n  walrelay slot show --slot walrelay")]
    Show(SlotShowArgs),
    /// Creates the slot; the publication must exist already.
    #[command(after_help = "Example:\n  walrelay slot create --slot walrelay_eu")]
    Create(SlotCreateArgs),
    /// Drops the slot: what it has not confirmed can no longer be read from the log.
    #[command(after_help = "Example:\n  walrelay slot drop --slot walrelay_old --yes")]
    Drop(SlotDropArgs),
    /// Moves the slot past one transaction, whose rows will then never be published.
    #[command(after_help = "Example:\n  walrelay slot advance --to-lsn 16/B374D848 --skip-events")]
    Advance(SlotAdvanceArgs),
}

/// `walrelay slot show`.
#[derive(Debug, Args)]
pub struct SlotShowArgs {
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = ARGUMENTS)]
    pub format: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot create`.
#[derive(Debug, Args)]
pub struct SlotCreateArgs {
    /// Make it a failover slot; Postgres 17 or newer.
    #[arg(long, help_heading = ARGUMENTS)]
    pub failover: bool,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot drop`.
#[derive(Debug, Args)]
pub struct SlotDropArgs {
    /// Confirms that the slot is meant to go.
    #[arg(long, help_heading = ARGUMENTS)]
    pub yes: bool,
    /// How many rows the slot may hold that are not confirmed, and are then never published.
    #[arg(long, value_name = "N", default_value = "0", help_heading = ARGUMENTS)]
    pub discard_rows: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot advance`.
#[derive(Debug, Args)]
pub struct SlotAdvanceArgs {
    /// Position of a change or of its commit, as an error of the relay shows it (16/B374D848): its
    /// whole transaction is skipped, and nothing behind it.
    #[arg(long, value_name = "LSN", help_heading = ARGUMENTS)]
    pub to_lsn: Option<String>,
    /// Confirms that the transaction at the position is skipped for good.
    #[arg(long, help_heading = ARGUMENTS)]
    pub skip_events: bool,
    /// How many rows of other transactions that lie before it may be skipped too.
    #[arg(long, value_name = "N", default_value = "0", help_heading = ARGUMENTS)]
    pub discard_rows: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

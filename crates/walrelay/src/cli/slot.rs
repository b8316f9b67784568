//! The command line of `walrelay slot`.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pgoutput_parser::Lsn;

use super::{ARGUMENTS, ChangeArgs, ServiceOptions};
use crate::options::DatabaseOptions;
use crate::options::values::{anchor_name, count, lsn, time, transaction};

/// `walrelay slot`.
#[derive(Debug, Args)]
pub(crate) struct SlotArgs {
    #[command(subcommand)]
    pub action: SlotActionArgs,
}

/// What to do with the slot.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotActionArgs {
    /// Drop the slot: its unconfirmed rows can no longer be read from the WAL.
    #[command(after_help = "Example:\n  walrelay slot drop --slot walrelay_old --yes")]
    Drop(SlotDropArgs),
    /// Move the slot past one transaction, whose rows are then never published.
    ///
    /// It does not decode the transaction, so it also passes a row that the server cannot send. It names the rows
    /// that it skips, and refuses until --discard-rows agrees to their number.
    #[command(
        after_help = "Example:\n  walrelay slot advance --to-lsn 16/B374D848 --discard-rows 3"
    )]
    Advance(SlotAdvanceArgs),
    /// Replace the slot by a copy of an anchor, and publish again from there.
    ///
    /// A running relay releases the slot and continues from there by itself. Interrupted, it is
    /// finished by running it again, or by the relay.
    #[command(after_help = "Examples:\n  walrelay slot reset --to-anchor before_release\n  \
        walrelay slot reset --to-anchor daily --to-time 2h")]
    Reset(SlotResetArgs),
    /// Publish every row, then drop the slot and its anchors.
    ///
    /// A slot retains WAL, and pg_upgrade refuses a server that has slots. Relays let go of the slot and wait.
    /// Producers need not stop: `slot recover` creates the slot again and publishes their rows. Relays with
    /// --on-slot-lost recover do so by themselves after an upgrade. While the slot exists, ending this command cancels
    /// the release.
    #[command(after_help = "Example:\n  walrelay slot release --project my-project")]
    Release(Box<SlotReleaseArgs>),
    /// Create a lost or released slot again, and publish the rest from the table.
    ///
    /// Rows that the lost slot may not have settled are in the outbox table. `walrelay run` publishes those rows
    /// first, in order per aggregate, and then the rows of the new slot. A few rows are published twice, and none is
    /// left out.
    #[command(after_help = "Examples:\n  walrelay slot recover --yes && walrelay run\n  \
        walrelay slot recover --from-time 2026-01-31T12:00:00Z")]
    Recover(SlotRecoverArgs),
}

/// `walrelay slot drop`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SlotDropArgs {
    /// Most unconfirmed rows that the slot may have. They are never published.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count(0, u64::MAX))]
    pub discard_rows: u64,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot advance`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SlotAdvanceArgs {
    /// Position of a change or of its commit, as an error of the relay shows it (16/B374D848): its
    /// whole transaction is skipped, and nothing behind it.
    #[arg(long, value_name = "LSN", required = true, value_parser = transaction)]
    pub to_lsn: Lsn,
    /// Exact number of rows that are skipped. Without it the command counts and names them.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count(0, u64::MAX))]
    pub discard_rows: u64,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot reset`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SlotResetArgs {
    /// Anchor that the slot becomes a copy of; the anchor itself stays.
    #[arg(long, value_name = "NAME", required = true, value_parser = anchor_name)]
    pub to_anchor: String,
    /// First position that is published again (16/B374D848); without it, the position of the anchor.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    pub to_lsn: Option<Lsn>,
    /// Time from which on everything is published again: 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to_time: Option<SystemTime>,
    /// Rows that are dead in dispatch state are published again too.
    #[arg(long)]
    pub include_dead: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot release`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SlotReleaseArgs {
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay slot recover`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SlotRecoverArgs {
    /// Publish every row of events from this time on, where nothing on record holds any more: a moment with a
    /// margin, 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from_time: Option<SystemTime>,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

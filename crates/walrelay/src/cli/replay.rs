//! The command line of `walrelay replay`.

use std::time::SystemTime;

use clap::Args;
use pgoutput_parser::Lsn;
use walrelay_core::Template;

use super::ARGUMENTS;
use crate::options::values::{anchor_name, count, lsn, replay_id, template, time};
use crate::options::{
    ColumnOptions, DatabaseOptions, MessageOptions, PubSubOptions, StreamOptions,
};

/// `walrelay replay`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ReplayArgs {
    /// Anchor whose log is replayed; without it the nearest one that reaches back far enough.
    #[arg(long, value_name = "NAME", value_parser = anchor_name)]
    pub from_anchor: Option<String>,
    /// First position (16/B374D848, as in the attribute `commit_lsn`); where the anchor stands without it.
    #[arg(long, value_name = "LSN", conflicts_with = "from_time", value_parser = lsn)]
    pub from_lsn: Option<Lsn>,
    /// Only what was committed at this time or later: 2026-01-31T12:00:00Z, or how long ago (6h).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from_time: Option<SystemTime>,
    /// Last position; the end of the log without it.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    pub to_lsn: Option<Lsn>,
    /// Only what was committed at this time or earlier.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to_time: Option<SystemTime>,
    /// Only rows of this aggregate type; may be given several times.
    #[arg(long, value_name = "TYPE")]
    pub aggregate_type: Vec<String>,
    /// Only rows of this aggregate; may be given several times.
    #[arg(long, value_name = "ID")]
    pub aggregate_id: Vec<String>,
    /// Only rows of this event type; may be given several times.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Vec<String>,
    /// Topic to publish to, which may have columns in braces; not one of the relay's own.
    #[arg(long, value_name = "TEMPLATE", value_parser = template)]
    pub to_topic: Option<Template>,
    /// Publish to the topics that the relay publishes to, through dispatch state: the rows of each key
    /// together, and its live rows behind them.
    #[arg(long, conflicts_with_all = ["to_topic", "to_lsn", "to_time", "rate"])]
    pub in_place: bool,
    /// Rows a second, at most.
    #[arg(long, value_name = "ROWS", value_parser = count(1_u32, u32::MAX))]
    pub rate: Option<u32>,
    /// Leave out rows that Pub/Sub would never take, and name them, instead of stopping there.
    #[arg(long)]
    pub skip_dead: bool,
    /// Read and count what would be published, and publish nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Go on with a replay that was interrupted, where it stopped; with --skip-dead it leaves out from
    /// then on what it stopped at.
    #[arg(long, value_name = "ID", value_parser = replay_id, conflicts_with_all = [
        "from_anchor", "from_lsn", "from_time", "to_lsn", "to_time", "aggregate_type", "aggregate_id",
        "event_type", "to_topic", "in_place", "rate", "dry_run"])]
    pub resume: Option<String>,
    /// Give up a replay that is not finished: what was published stays. After one in place its keys go on,
    /// without what is not published of it.
    #[arg(long, value_name = "ID", value_parser = replay_id, conflicts_with_all = [
        "from_anchor", "from_lsn", "from_time", "to_lsn", "to_time", "aggregate_type", "aggregate_id",
        "event_type", "to_topic", "in_place", "rate", "skip_dead", "dry_run", "resume"])]
    pub abandon: Option<String>,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
    #[command(flatten)]
    pub stream: StreamOptions,
}

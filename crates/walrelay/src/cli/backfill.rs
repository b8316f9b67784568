//! The command line of `walrelay backfill`.

use std::time::SystemTime;

use clap::Args;
use walrelay_core::Template;

use super::ARGUMENTS;
use crate::options::values::{count, replay_id, template, time};
use crate::options::{
    ColumnOptions, DatabaseOptions, MessageOptions, PubSubOptions, StreamOptions,
};

/// `walrelay backfill`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct BackfillArgs {
    /// Only events of this time or later: 2026-01-31T12:00:00Z, or how long ago (30d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since: Option<SystemTime>,
    /// Only rows of this aggregate type; may be given several times.
    #[arg(long, value_name = "TYPE")]
    pub aggregate_type: Vec<String>,
    /// Only rows of this aggregate; may be given several times.
    #[arg(long, value_name = "ID")]
    pub aggregate_id: Vec<String>,
    /// Only the row with this event id; may be given several times.
    #[arg(long, value_name = "ID")]
    pub event_id: Vec<String>,
    /// Topic to publish to, which may have columns in braces; not one of the relay's own.
    #[arg(long, value_name = "TEMPLATE", value_parser = template)]
    pub to_topic: Option<Template>,
    /// Publish to the topics that the relay publishes to, through dispatch state: the rows of each key
    /// together, and its live rows behind them.
    #[arg(long, conflicts_with_all = ["to_topic", "rate"])]
    pub in_place: bool,
    /// Columns that give the order within an aggregate, with commas; without it version, time and id.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub order_by: Vec<String>,
    /// Rows a second, at most.
    #[arg(long, value_name = "ROWS", value_parser = count(1_u32, u32::MAX))]
    pub rate: Option<u32>,
    /// Leave out rows that Pub/Sub would never take, and name them, instead of stopping there.
    #[arg(long)]
    pub skip_dead: bool,
    /// Read and count what would be published, and publish nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Go on with a backfill that was interrupted, with the aggregate where it stopped; with --skip-dead it leaves out from
    /// then on what it stopped at.
    #[arg(long, value_name = "ID", value_parser = replay_id, conflicts_with_all = [
        "since", "aggregate_type", "aggregate_id", "event_id", "to_topic", "in_place", "order_by", "rate", "dry_run"])]
    pub resume: Option<String>,
    /// Give up a backfill that is not finished: what was published stays. After one in place its keys go on,
    /// without what is not published of it.
    #[arg(long, value_name = "ID", value_parser = replay_id, conflicts_with_all = [
        "since", "aggregate_type", "aggregate_id", "event_id", "to_topic", "in_place", "order_by", "rate", "skip_dead",
        "dry_run", "resume"])]
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

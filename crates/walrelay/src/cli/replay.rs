//! The command line of `walrelay replay start`.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pgoutput_parser::Lsn;
use walrelay_core::Template;
use walrelay_pg_client::QualifiedName;

use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{anchor_name, count, lsn, replay_id, template, text_form, time, word};
use crate::options::{DatabaseOptions, OutputOptions, PublishingOptions};

/// `walrelay replay start`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(subcommand)]
    pub action: ReplayActionArgs,
}

/// What to do with replays.
#[derive(Debug, Subcommand)]
pub(crate) enum ReplayActionArgs {
    /// Publish rows again, to another topic or in place.
    ///
    /// With --source wal, the rows behind an anchor are published in their original order, with their original
    /// positions. With --source table, the rows of the outbox table are published, by version per aggregate. Every
    /// message has the attribute `replay_id`. The relay keeps running. An interrupted replay says how to resume it.
    #[command(after_help = "Examples:\n  \
        walrelay replay start --from-anchor before_release --to-topic video.again --dry-run\n  \
        walrelay replay start --from-time 6h --aggregate-id 4711 --to-topic video.again --rate 500\n  \
        walrelay replay start --source table --aggregate-type video --to-topic video.again")]
    Start(Box<ReplayStartArgs>),
    /// List the replays of the slot, newest first.
    #[command(after_help = "Example:\n  walrelay replay list --output json")]
    List(ReplayListArgs),
    /// Show one replay: its request, its progress and its end.
    #[command(after_help = "Example:\n  walrelay replay show 5f3a9c01")]
    Show(ReplayShowArgs),
    /// Resume an interrupted replay where it stopped.
    #[command(after_help = "Example:\n  walrelay replay resume 5f3a9c01")]
    Resume(Box<ReplayResumeArgs>),
    /// Cancel an unfinished replay: published rows stay published.
    ///
    /// After a replay in place, its keys continue without the rows that are not published yet.
    #[command(after_help = "Example:\n  walrelay replay cancel 5f3a9c01")]
    Cancel(ReplayCancelArgs),
}

/// The source of a replay's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplaySource {
    /// The WAL behind an anchor.
    Wal,
    /// The outbox table.
    Table,
}

const SOURCES: &[(&str, ReplaySource)] =
    &[("wal", ReplaySource::Wal), ("table", ReplaySource::Table)];

/// `walrelay replay start`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ReplayStartArgs {
    /// Where the rows are read: the WAL behind an anchor, or the outbox table.
    #[arg(long, value_name = "SOURCE", default_value = "wal", value_parser = word(SOURCES))]
    pub source: ReplaySource,
    /// Anchor whose WAL is replayed; without it the nearest one that reaches back far enough.
    #[arg(long, value_name = "NAME", value_parser = anchor_name)]
    pub from_anchor: Option<String>,
    /// First position (16/B374D848, as in the attribute `commit_lsn`); the anchor's position without it.
    #[arg(long, value_name = "LSN", conflicts_with = "from_time", value_parser = lsn)]
    pub from_lsn: Option<Lsn>,
    /// Only rows of this time or later: 2026-01-31T12:00:00Z, or how long ago (6h). It is the time of the commit, or
    /// with --source table that of the event.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from_time: Option<SystemTime>,
    /// Last position; the end of the WAL without it.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    pub to_lsn: Option<Lsn>,
    /// Only rows that were committed at this time or earlier.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to_time: Option<SystemTime>,
    /// Only rows of this aggregate type; may be given several times.
    #[arg(long, value_name = "TYPE")]
    pub aggregate_type: Vec<String>,
    /// Only rows of this aggregate; may be given several times.
    #[arg(long, value_name = "ID")]
    pub aggregate_id: Vec<String>,
    /// Only rows of this event type; may be given several times. Not with --source table.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Vec<String>,
    /// Only the row with this event id; may be given several times. Only with --source table.
    #[arg(long, value_name = "ID")]
    pub event_id: Vec<String>,
    /// Topic to publish to, which may have columns in braces; not one of the relay's own.
    #[arg(long, value_name = "TEMPLATE", value_parser = template)]
    pub to_topic: Option<Template>,
    /// Publish to the topics that the relay publishes to, through dispatch state. The rows of each key stay together,
    /// and its live rows follow them.
    #[arg(long, conflicts_with_all = ["to_topic", "to_lsn", "to_time", "rate"])]
    pub in_place: bool,
    /// Read this table instead of those on record, such as a loaded archive. Only with --source table.
    #[arg(long, value_name = "TABLE", value_parser = text_form::<QualifiedName>)]
    pub table: Option<QualifiedName>,
    /// Columns that give the order within an aggregate, with commas; without it version, time and id. Only with
    /// --source table.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub order_by: Vec<String>,
    /// Rows a second, at most.
    #[arg(long, value_name = "ROWS", value_parser = count(1_u32, u32::MAX))]
    pub rate: Option<u32>,
    /// Leave out rows that Pub/Sub would never accept, and name them, instead of stopping there.
    #[arg(long)]
    pub skip_dead: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub publishing: PublishingOptions,
}

/// `walrelay replay list`.
#[derive(Debug, Args)]
pub(crate) struct ReplayListArgs {
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay replay show`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ReplayShowArgs {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    pub id: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay replay resume`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ReplayResumeArgs {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    pub id: String,
    /// From now on leave out rows that Pub/Sub would never accept, and name them.
    #[arg(long)]
    pub skip_dead: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub publishing: PublishingOptions,
}

/// `walrelay replay cancel`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ReplayCancelArgs {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    pub id: String,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

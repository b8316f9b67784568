//! The command line of `walrelay dispatch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use pgoutput_parser::Position;
use walrelay_outbox_store::{DispatchStatus, StateFilter};

use super::ARGUMENTS;
use crate::options::values::{behind, count, duration, event_id, reason, word};
use crate::options::{DatabaseOptions, OutputOptions, ProjectOption};

/// `walrelay dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    #[command(subcommand)]
    pub action: DispatchActionArgs,
}

/// What to do with dispatch state.
#[derive(Debug, Subcommand)]
pub enum DispatchActionArgs {
    /// List rows, oldest position first; by default those that need a person.
    ///
    /// Dead rows need a person, and rows that wait for a missing topic or right.
    #[command(after_help = "Examples:\n  walrelay dispatch list\n  \
        walrelay dispatch list --status all --all --output json\n  \
        walrelay dispatch list --error NOT_FOUND --older-than 1h")]
    List(DispatchListArgs),
    /// Show one row: the decoded message and its history of errors.
    #[command(after_help = "Example:\n  walrelay dispatch show 6f1c9a9e-…")]
    Show(DispatchShowArgs),
    /// Make rows due at once; dead rows get a new round of attempts.
    ///
    /// Not rows with BAD_HEADERS or TOO_LARGE: they were recorded without a part, and edit completes them.
    ///
    /// Rows by their ids, or all dead and retrying ones that match the filters: their number is told,
    /// and whoever sits at a terminal is asked.
    #[command(after_help = "Examples:\n  walrelay dispatch retry 6f1c9a9e-…\n  \
        walrelay dispatch retry --all-dead\n  walrelay dispatch retry --topic order.events")]
    Retry(DispatchRetryArgs),
    /// Replace payload, attributes, or an invalid topic or key, and retry the row.
    ///
    /// Payload and attributes come from files.
    ///
    /// What comes of it is held to Pub/Sub's limits first. The attributes that the relay writes stay: event_id,
    /// source, commit_lsn, tx_index and replay_id always, because consumers tell events apart by them;
    /// aggregate_id, aggregate_type, event_type, version, schema_version and occurred_at unless the file has
    /// another value for them. All others are replaced by those of the file.
    #[command(after_help = "Examples:\n  \
        walrelay dispatch edit 6f1c9a9e-… --payload-file fixed.json\n  \
        walrelay dispatch edit 6f1c9a9e-… --set-key A-17\n  \
        walrelay dispatch edit 6f1c9a9e-… --attributes-file headers.json")]
    Edit(DispatchEditArgs),
    /// Discard rows for good; the reason stays in the table.
    ///
    /// Rows by their ids, or all dead ones that match the filters: their number is told and asked about.
    #[command(after_help = "Examples:\n  \
        walrelay dispatch discard 6f1c9a9e-… --reason 'test order, agreed with billing'\n  \
        walrelay dispatch discard --topic test.events --reason 'load test' --yes")]
    Discard(DispatchDiscardArgs),
}

/// The values of `dispatch --status`.
const STATES: &[(&str, StateFilter)] = &[
    ("retrying", StateFilter::Only(DispatchStatus::Retrying)),
    ("dead", StateFilter::Only(DispatchStatus::Dead)),
    ("published", StateFilter::Only(DispatchStatus::Published)),
    ("discarded", StateFilter::Only(DispatchStatus::Discarded)),
    ("all", StateFilter::Any),
];

/// Which rows of dispatch state.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchRowsArgs {
    /// Only rows in this state.
    #[arg(long, value_name = "STATUS", value_parser = word(STATES))]
    pub status: Option<StateFilter>,
    /// Only rows of this topic, short or full name.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Only rows of this ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only rows whose last failure has this code, as in NOT_FOUND.
    #[arg(long, value_name = "CODE")]
    pub error: Option<String>,
    /// Only rows parked longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration("0s", "3650d"))]
    pub older_than: Option<Duration>,
}

impl DispatchRowsArgs {
    /// Returns whether at least one filter is given.
    pub(crate) fn is_given(&self) -> bool {
        let texts = [&self.topic, &self.key, &self.error];
        self.status.is_some() || self.older_than.is_some() || texts.into_iter().any(Option::is_some)
    }
}

/// What is acted on when no ids are given.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct BulkArgs {
    #[command(flatten)]
    pub filters: DispatchRowsArgs,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
}

/// `walrelay dispatch list`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchListArgs {
    #[command(flatten)]
    pub rows: DispatchRowsArgs,
    /// How many rows at most; 1 to 100000 [default: 100].
    #[arg(long, value_name = "COUNT", value_parser = count(1_u32, 100_000))]
    pub limit: Option<u32>,
    /// Every row that matches, in place of a page.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Only rows behind this position, which the page before it names, or of later transactions than this LSN.
    #[arg(long, value_name = "POSITION", value_parser = behind)]
    pub after: Option<Position>,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch show`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchShowArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub id: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch retry`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub ids: Vec<String>,
    /// Every dead row of this slot.
    #[arg(long, conflicts_with = "status")]
    pub all_dead: bool,
    #[command(flatten)]
    pub rows: BulkArgs,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch edit`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchEditArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub id: String,
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["attributes_file", "set_topic", "set_key"])]
    pub payload_file: Option<PathBuf>,
    /// File with a JSON object of strings, which replaces the attributes that are not the relay's own.
    #[arg(long, value_name = "FILE")]
    pub attributes_file: Option<PathBuf>,
    /// Another topic, short or full name, for a row whose topic cannot exist.
    #[arg(long, value_name = "TOPIC")]
    pub set_topic: Option<String>,
    /// Another ordering key, for a row whose topic cannot exist or whose key is too long; an attribute that
    /// is too long because it has the same value gets it too.
    #[arg(long, value_name = "KEY")]
    pub set_key: Option<String>,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch discard`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct DispatchDiscardArgs {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub ids: Vec<String>,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    pub reason: String,
    #[command(flatten)]
    pub rows: BulkArgs,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

//! The command line of `walrelay dispatch`.

use clap::{Args, Subcommand};
use walrelay_outbox_store::{DispatchStatus, StateFilter};

use super::failed_events::{EditFiles, EventFilterArgs, PageArgs};
use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{event_id, reason, word};
use crate::options::{DatabaseOptions, OutputOptions, ProjectOption};

/// `walrelay dispatch`.
#[derive(Debug, Args)]
pub(crate) struct DispatchArgs {
    #[command(subcommand)]
    pub action: DispatchActionArgs,
}

/// What to do with dispatch state.
#[derive(Debug, Subcommand)]
pub(crate) enum DispatchActionArgs {
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
    /// Name rows by their ids, or select all dead and retrying rows that match filters. A selection asks first.
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
    /// Name rows by their ids, or select all dead rows that match filters. The command asks first.
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
pub(crate) struct DispatchRowsArgs {
    /// Only rows in this state.
    #[arg(long, value_name = "STATUS", value_parser = word(STATES))]
    pub status: Option<StateFilter>,
    /// Only rows of this topic, short or full name.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    #[command(flatten)]
    pub filters: EventFilterArgs,
}

impl DispatchRowsArgs {
    /// Returns whether at least one filter is given.
    pub(crate) fn is_given(&self) -> bool {
        self.status.is_some() || self.topic.is_some() || self.filters.is_given()
    }
}

/// `walrelay dispatch list`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct DispatchListArgs {
    #[command(flatten)]
    pub rows: DispatchRowsArgs,
    #[command(flatten)]
    pub page: PageArgs,
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
pub(crate) struct DispatchShowArgs {
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
pub(crate) struct DispatchRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub ids: Vec<String>,
    /// Every dead row of this slot.
    #[arg(long, conflicts_with = "status")]
    pub all_dead: bool,
    #[command(flatten)]
    pub rows: DispatchRowsArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch edit`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct DispatchEditArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub id: String,
    #[command(flatten)]
    pub files: EditFiles,
    #[command(flatten)]
    pub change: ChangeArgs,
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
pub(crate) struct DispatchDiscardArgs {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    pub ids: Vec<String>,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    pub reason: String,
    #[command(flatten)]
    pub rows: DispatchRowsArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

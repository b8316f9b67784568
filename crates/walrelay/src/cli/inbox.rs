//! The command line of `inbox`.

use clap::{Args, Subcommand};
use walrelay_inbox_admin::event_commands::InboxState;

use super::failed_events::{EditFiles, EventFilterArgs, PageArgs};
use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{reason, word};
use crate::options::{ConnectionOptions, OutputOptions};

/// `walrelay inbox`.
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    #[command(subcommand)]
    pub action: InboxActionArgs,
}

/// Which consumer, and where it is.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxPlace {
    /// Name of the consumer; needed where the database has several.
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// What to do with events that failed.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxActionArgs {
    /// List events in the order in which keys drain; by default waiting and dead ones.
    #[command(after_help = "Example:\n  walrelay inbox list --status dead --older-than 1h")]
    List(InboxListArgs),
    /// Show one event: the message as it came and its history of errors.
    #[command(after_help = "Example:\n  walrelay inbox show 6f1c9a9e-…")]
    Show(InboxShowArgs),
    /// Make events due at once; dead ones get a new round of attempts.
    ///
    /// Name events by their ids, or select all dead and retrying events that match filters. A selection asks first.
    #[command(after_help = "Examples:\n  walrelay inbox retry 6f1c9a9e-…\n  \
        walrelay inbox retry --all-dead")]
    Retry(InboxRetryArgs),
    /// Replace payload or attributes of the stored copy from files, and retry the event.
    #[command(after_help = "Example:\n  \
        walrelay inbox edit 6f1c9a9e-… --payload-file fixed.json")]
    Edit(InboxEditArgs),
    /// Discard events for good: their keys continue, the reason stays in the table.
    ///
    /// Name events by their ids, or select all dead events that match filters. The command asks first.
    #[command(after_help = "Example:\n  \
        walrelay inbox discard 6f1c9a9e-… --reason 'test order, agreed with billing'")]
    Discard(InboxDiscardArgs),
}

/// The values of `inbox --status`.
const STATES: &[(&str, InboxState)] = &[
    ("done", InboxState::Only("done")),
    ("late", InboxState::Only("late")),
    ("retrying", InboxState::Only("retrying")),
    ("dead", InboxState::Only("dead")),
    ("discarded", InboxState::Only("discarded")),
    ("all", InboxState::Any),
];

/// Which events of the inbox.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxEventsArgs {
    /// Only events in this state.
    #[arg(long, value_name = "STATUS", value_parser = word(STATES))]
    pub status: Option<InboxState>,
    #[command(flatten)]
    pub filters: EventFilterArgs,
}

impl InboxEventsArgs {
    /// Returns whether at least one filter is given.
    pub(crate) fn is_given(&self) -> bool {
        self.status.is_some() || self.filters.is_given()
    }
}

/// `walrelay inbox list`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxListArgs {
    #[command(flatten)]
    pub events: InboxEventsArgs,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox show`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxShowArgs {
    /// Event id.
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox retry`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Every dead event of this consumer.
    #[arg(long, conflicts_with = "status")]
    pub all_dead: bool,
    #[command(flatten)]
    pub events: InboxEventsArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox edit`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxEditArgs {
    /// Event id.
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub files: EditFiles,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox discard`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxDiscardArgs {
    /// Event ids.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    pub reason: String,
    #[command(flatten)]
    pub events: InboxEventsArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub place: InboxPlace,
}

//! The command line of `inbox`.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

use clap::{Args, Subcommand};

use super::ARGUMENTS;
use crate::options::ConsumerDatabaseOptions;

/// `walrelay inbox`.
#[derive(Debug, Args)]
pub struct InboxArgs {
    #[command(subcommand)]
    pub action: InboxActionArgs,
}

/// Which consumer, and where it is.
#[derive(Debug, Args)]
pub struct InboxPlace {
    /// Name of the consumer; needed where the database has several.
    #[arg(long, value_name = "NAME", help_heading = ARGUMENTS)]
    pub consumer: Option<String>,
    #[command(flatten)]
    pub database: ConsumerDatabaseOptions,
}

/// What to do with events that failed.
#[derive(Debug, Subcommand)]
pub enum InboxActionArgs {
    /// Lists events in the order in which keys drain; those that wait or are dead, unless told otherwise.
    #[command(after_help = "Example:\n  walrelay inbox list --status dead --older-than 1h")]
    List(InboxListArgs),
    /// Shows one event: the message as it came and its history of errors.
    #[command(after_help = "Example:\n  walrelay inbox show 6f1c9a9e-…")]
    Show(InboxShowArgs),
    /// Makes events due at once; dead ones get a new round of attempts.
    #[command(after_help = "Examples:\n  walrelay inbox retry 6f1c9a9e-…\n  \
        walrelay inbox retry --all-dead")]
    Retry(InboxRetryArgs),
    /// Replaces payload or attributes of the stored copy from files, then retries.
    #[command(after_help = "Example:\n  \
        walrelay inbox edit 6f1c9a9e-… --payload-file fixed.json")]
    Edit(InboxEditArgs),
    /// Gives an event up for good; its key goes on, the reason stays in the table.
    #[command(after_help = "Example:\n  \
        walrelay inbox discard 6f1c9a9e-… --reason 'test order, agreed with billing'")]
    Discard(InboxDiscardArgs),
}

/// `walrelay inbox list`.
#[derive(Debug, Args)]
pub struct InboxListArgs {
    /// Only events in this state: done, late, retrying, dead or discarded.
    #[arg(long, value_name = "STATUS", help_heading = ARGUMENTS)]
    pub status: Option<String>,
    /// Only events of this ordering key.
    #[arg(long, value_name = "KEY", help_heading = ARGUMENTS)]
    pub key: Option<String>,
    /// Only events received longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", help_heading = ARGUMENTS)]
    pub older_than: Option<String>,
    /// How many events at most; 1 to 100000.
    #[arg(long, value_name = "COUNT", default_value = "100", help_heading = ARGUMENTS)]
    pub limit: String,
    /// `table` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = ARGUMENTS)]
    pub format: String,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox show`.
#[derive(Debug, Args)]
pub struct InboxShowArgs {
    /// Event id.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = ARGUMENTS)]
    pub format: String,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox retry`.
#[derive(Debug, Args)]
pub struct InboxRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub ids: Vec<String>,
    /// Every dead event of this consumer.
    #[arg(long, help_heading = ARGUMENTS)]
    pub all_dead: bool,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox edit`.
#[derive(Debug, Args)]
pub struct InboxEditArgs {
    /// Event id.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE", help_heading = ARGUMENTS)]
    pub payload_file: Option<String>,
    /// File with a JSON object of strings, which becomes all the attributes.
    #[arg(long, value_name = "FILE", help_heading = ARGUMENTS)]
    pub attributes_file: Option<String>,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox discard`.
#[derive(Debug, Args)]
pub struct InboxDiscardArgs {
    /// Event id.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", help_heading = ARGUMENTS)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub place: InboxPlace,
}

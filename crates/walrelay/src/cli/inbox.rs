//! The command line of `inbox`.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::ARGUMENTS;
use crate::options::values::{count, duration, reason};
use crate::options::{ConnectionOptions, OutputOptions};

/// `walrelay inbox`.
#[derive(Debug, Args)]
pub struct InboxArgs {
    #[command(subcommand)]
    pub action: InboxActionArgs,
}

/// Which consumer, and where it is.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct InboxPlace {
    /// Name of the consumer; needed where the database has several.
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// What to do with events that failed.
#[derive(Debug, Subcommand)]
pub enum InboxActionArgs {
    /// List events in the order in which keys drain; by default waiting and dead ones.
    #[command(after_help = "Example:\n  walrelay inbox list --status dead --older-than 1h")]
    List(InboxListArgs),
    /// Show one event: the message as it came and its history of errors.
    #[command(after_help = "Example:\n  walrelay inbox show 6f1c9a9e-…")]
    Show(InboxShowArgs),
    /// Make events due at once; dead ones get a new round of attempts.
    #[command(after_help = "Examples:\n  walrelay inbox retry 6f1c9a9e-…\n  \
        walrelay inbox retry --all-dead")]
    Retry(InboxRetryArgs),
    /// Replace payload or attributes of the stored copy from files, and retry the event.
    #[command(after_help = "Example:\n  \
        walrelay inbox edit 6f1c9a9e-… --payload-file fixed.json")]
    Edit(InboxEditArgs),
    /// Discard an event for good: its key continues, the reason stays in the table.
    #[command(after_help = "Example:\n  \
        walrelay inbox discard 6f1c9a9e-… --reason 'test order, agreed with billing'")]
    Discard(InboxDiscardArgs),
}

/// `walrelay inbox list`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct InboxListArgs {
    /// Only events in this state.
    #[arg(long, value_name = "STATUS", value_parser = ["done", "late", "retrying", "dead", "discarded"])]
    pub status: Option<String>,
    /// Only events of this ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only events received longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration("0s", "3650d"))]
    pub older_than: Option<Duration>,
    /// How many events at most; 1 to 100000.
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count(1_u32, 100_000))]
    pub limit: u32,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox show`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct InboxShowArgs {
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
#[command(group = ArgGroup::new("events").required(true).args(["ids", "all_dead"]))]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct InboxRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Every dead event of this consumer.
    #[arg(long)]
    pub all_dead: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox edit`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct InboxEditArgs {
    /// Event id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE", required_unless_present = "attributes_file")]
    pub payload_file: Option<PathBuf>,
    /// File with a JSON object of strings, which becomes all the attributes.
    #[arg(long, value_name = "FILE")]
    pub attributes_file: Option<PathBuf>,
    #[command(flatten)]
    pub place: InboxPlace,
}

/// `walrelay inbox discard`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct InboxDiscardArgs {
    /// Event id.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    pub reason: String,
    #[command(flatten)]
    pub place: InboxPlace,
}

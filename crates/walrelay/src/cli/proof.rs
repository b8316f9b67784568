//! The command lines of `audit` and `trace`.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

use clap::Args;

use super::ARGUMENTS;
use crate::options::{
    ColumnOptions, DatabaseOptions, EndpointOption, OutputOptions, ProjectOption,
};

/// Where inboxes are.
#[derive(Debug, Args)]
pub struct InboxPlaces {
    /// Consumer in another database, as NAME=URL; may be given several times. Without it: every consumer
    /// of the outbox's own database. The password belongs in PGPASSWORD or a passfile.
    #[arg(long, value_name = "NAME=URL", help_heading = ARGUMENTS)]
    pub inbox: Vec<String>,
}

/// `walrelay audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only events that occurred at this time or later: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", help_heading = ARGUMENTS)]
    pub since: Option<String>,
    /// Events younger than this may be on their way, and are left out.
    #[arg(long, value_name = "DURATION", default_value = "1m", help_heading = ARGUMENTS)]
    pub grace: String,
    /// Only events of this aggregate type, where a consumer does not read all of them; may be given
    /// several times.
    #[arg(long, value_name = "TYPE", help_heading = ARGUMENTS)]
    pub aggregate_type: Vec<String>,
    /// Compare with what this subscription holds, short or full name, instead of with inboxes: it is read and
    /// handed back, and nothing of it is acknowledged. What is published meanwhile is not waited for. For
    /// consumers without an inbox, a subscription that nobody else reads.
    #[arg(long, value_name = "SUBSCRIPTION", conflicts_with = "inbox", help_heading = ARGUMENTS)]
    pub subscription: Option<String>,
    /// Name every event that is missing: without it the first 20, with --format json the first thousand.
    #[arg(long, help_heading = ARGUMENTS)]
    pub all: bool,
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOption,
}

/// `walrelay trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Event id.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
}

//! The command lines of `audit` and `trace`.

use std::time::{Duration, SystemTime};

use clap::Args;

use super::ARGUMENTS;
use crate::options::values::{NamedDatabase, duration, named_database, time};
use crate::options::{DatabaseOptions, EndpointOptions, OutputOptions, ProjectOption};

/// Where inboxes are.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxPlaces {
    /// Consumer in another database, as NAME=URL; may be given several times. Without it: every consumer
    /// of the outbox's own database. The password belongs in PGPASSWORD or a passfile.
    #[arg(long, value_name = "NAME=URL", value_parser = named_database)]
    pub inbox: Vec<NamedDatabase>,
}

/// `walrelay audit`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct AuditArgs {
    /// Only events that occurred at this time or later: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from_time: Option<SystemTime>,
    /// Events younger than this may be on their way, and are left out.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration("0s", "7d"))]
    pub grace: Duration,
    /// Only events of this aggregate type, where a consumer does not read all of them; may be given
    /// several times.
    #[arg(long, value_name = "TYPE")]
    pub aggregate_type: Vec<String>,
    /// Compare with what this subscription holds, short or full name, instead of with inboxes: it is read and
    /// handed back, and nothing of it is acknowledged. What is published meanwhile is not waited for. For
    /// consumers without an inbox, a subscription that nobody else reads.
    #[arg(long, value_name = "SUBSCRIPTION", conflicts_with = "inbox")]
    pub subscription: Option<String>,
    /// Name every event that is missing: without it the first 20, with --output json the first thousand.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

/// `walrelay trace`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct TraceArgs {
    /// Event id.
    #[arg(value_name = "ID")]
    pub id: String,
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

//! The command lines of `walrelay emit`, `walrelay forget` and `walrelay tail`.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{ARGUMENTS, ChangeArgs};
use crate::options::values::{count, json, time};
use crate::options::{ConnectionOptions, EndpointOptions, OutputOptions, ProjectOption};

/// `walrelay emit`.
#[derive(Debug, Args)]
pub(crate) struct EmitArgs {
    #[command(flatten)]
    pub event: EmittedEventArgs,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// The event of `emit`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct EmittedEventArgs {
    /// Aggregate type, as in `order`.
    #[arg(value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub aggregate_type: String,
    /// Aggregate id, which is the ordering key, as in `A-1`.
    #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub aggregate_id: String,
    /// Event type, as in `OrderPlaced`.
    #[arg(value_name = "EVENT_TYPE")]
    pub event_type: String,
    /// Payload as JSON.
    #[arg(value_name = "JSON", default_value = "{}", value_parser = json)]
    pub payload: String,
    /// Write the event only if no event has this key. If one has, print that event.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// `walrelay forget`.
#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub aggregates: ForgottenArgs,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// The aggregates that `forget` forgets.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ForgottenArgs {
    /// Aggregate type, as in `order`.
    #[arg(value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub aggregate_type: String,
    /// Aggregate ids, as in `A-1`.
    #[arg(value_name = "ID", required_unless_present = "from_file", value_parser = NonEmptyStringValueParser::new())]
    pub ids: Vec<String>,
    /// Read aggregate ids from this file, one per line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
}

/// `walrelay tail`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct TailArgs {
    /// Topic, short or full name.
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// Stop after this many messages; 1 to 1000000000.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = count(1_u64, 1_000_000_000))]
    pub count: Option<u64>,
    /// Begin with messages published at this time or later: 2026-01-31T12:00:00Z, or how long ago (6h). The topic must
    /// retain them.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since: Option<SystemTime>,
    /// Print only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

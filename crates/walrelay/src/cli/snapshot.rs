//! The command line of `walrelay snapshot`.

use clap::Args;

use super::{ARGUMENTS, ChangeArgs};
use crate::options::ConnectionOptions;
use crate::options::values::count;

/// `walrelay snapshot`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub request: SnapshotRequest,
    /// Begin again with the first row, even if this snapshot is finished or was interrupted.
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// The rows of a snapshot, and the events that are written for them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct SnapshotRequest {
    /// Table, with or without its schema.
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// Aggregate type of the events, as in `customer`.
    #[arg(long, value_name = "TYPE", required = true)]
    pub aggregate_type: String,
    /// Column of the aggregate id. It needs NOT NULL and a unique index of its own.
    #[arg(long, value_name = "COLUMN", required = true)]
    pub aggregate_id: String,
    /// Event type of the events.
    #[arg(long, value_name = "TYPE", default_value = "snapshot")]
    pub event_type: String,
    /// Other columns to publish, with commas. Without them, all columns are published.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// SQL condition on the rows, as in `status <> 'deleted'`.
    #[arg(long = "where", value_name = "CONDITION", default_value = "true")]
    pub condition: String,
    /// Events a second, at most; 1 to 1000000.
    #[arg(long, value_name = "EVENTS", value_parser = count(1_u32, 1_000_000))]
    pub rate: Option<u32>,
    /// Write an event also if the aggregate has events already.
    #[arg(long)]
    pub include_versioned: bool,
}

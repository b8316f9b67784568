//! The settings of `walrelay snapshot`.

use walrelay_pg_client::ConnectConfig;

use super::super::builder::ConfigBuilder;
use crate::cli::SnapshotArgs;
use crate::options::choices::{ChangeMode, OutputFormat};

/// Configuration of `walrelay snapshot`.
#[derive(Debug, Clone)]
pub struct SnapshotConfig {
    /// The database of the outbox and of the business table.
    pub connect: ConnectConfig,
    /// The rows, and the events that are written for them.
    pub request: SnapshotRequest,
    /// Most events per second.
    pub rate: Option<u32>,
    /// Where the snapshot begins.
    pub start: SnapshotStart,
    /// Whether to write the events.
    pub mode: ChangeMode,
    /// Output format.
    pub format: OutputFormat,
}

/// The rows of a snapshot, and the events that are written for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// The business table, as the user named it.
    pub table: String,
    /// Aggregate type of the events.
    pub aggregate_type: String,
    /// Column of the aggregate id.
    pub id_column: String,
    /// Event type of the events.
    pub event_type: String,
    /// The published columns. Empty means all columns.
    pub columns: Vec<String>,
    /// SQL condition on the rows.
    pub condition: String,
    /// Rows whose aggregate has events already.
    pub versioned: VersionedRows,
}

/// The treatment of rows whose aggregate has events already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionedRows {
    /// No event is written.
    Skipped,
    /// An event is written.
    Included,
}

/// Where a snapshot begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotStart {
    /// After the last row of an interrupted run of the same snapshot.
    Resumed,
    /// With the first row.
    FirstRow,
}

impl ConfigBuilder<'_> {
    pub(in crate::config) fn snapshot(&mut self, args: SnapshotArgs) -> Option<SnapshotConfig> {
        let connect = self.connect(&args.connection)?;
        let request = SnapshotRequest {
            table: args.table,
            aggregate_type: args.aggregate_type,
            id_column: args.aggregate_id,
            event_type: args.event_type,
            columns: args.columns,
            condition: args.condition,
            versioned: match args.include_versioned {
                true => VersionedRows::Included,
                false => VersionedRows::Skipped,
            },
        };
        let start = match args.restart {
            true => SnapshotStart::FirstRow,
            false => SnapshotStart::Resumed,
        };
        let (mode, format) = (args.confirm.mode(), args.output.output);
        Some(SnapshotConfig { connect, request, rate: args.rate, start, mode, format })
    }
}

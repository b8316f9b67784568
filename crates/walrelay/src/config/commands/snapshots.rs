//! The settings of `walrelay snapshot`.

use walrelay_pg_client::ConnectConfig;

use super::super::builder::ConfigBuilder;
use crate::cli::{SnapshotArgs, SnapshotRequest};
use crate::options::choices::ChangeOptions;

/// Configuration of `walrelay snapshot`.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotConfig {
    /// The database of the outbox and of the business table.
    pub connect: ConnectConfig,
    /// The rows, and the events that are written for them.
    pub request: SnapshotRequest,
    /// Where the snapshot begins.
    pub start: SnapshotStart,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// Where a snapshot begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotStart {
    /// After the last row of an interrupted run of the same snapshot.
    Resumed,
    /// With the first row.
    FirstRow,
}

impl ConfigBuilder<'_> {
    pub(in crate::config) fn snapshot(&mut self, args: SnapshotArgs) -> Option<SnapshotConfig> {
        let connect = self.connect(&args.connection)?;
        let start = match args.restart {
            true => SnapshotStart::FirstRow,
            false => SnapshotStart::Resumed,
        };
        let options = args.change.options();
        Some(SnapshotConfig { connect, request: args.request, start, options })
    }
}

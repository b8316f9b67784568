//! Maintains the outbox while the relay streams: creates partitions ahead, and with
//! `run --prune-older-than` deletes old rows in steps.
//!
//! A run is a sequence of short transactions. The preconditions are checked before each of them,
//! so an operation that begins during a run stops it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep};
use walrelay_core::ColumnNames;
use walrelay_errors::{Chain, Code, Coded as _};
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{ConnectConfig, QualifiedName, SqlClient, TableAccess, connect_outbox};
use walrelay_relay::observe::health::{Health, Phase};
use walrelay_relay::observe::metrics::Metrics;

use crate::archive::Archive;
use crate::partitions::{PartitionState, add_partitions, is_partitioned, read_partition_state};
use crate::protocols::{ProtocolError, PruneOrder, PruneRun};

/// The interval at which the task checks whether the relay has started to stream.
const PHASE_CHECK: Duration = Duration::from_millis(250);

/// The longest pause between two steps.
const STEP_PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// Minimum age of rows to delete. None deletes no rows.
    pub older_than: Option<Duration>,
    /// The time between two runs.
    pub every: Duration,
    /// Where rows are written before they are deleted.
    pub archive: Option<Archive>,
}

/// What a run of the maintenance did.
enum Maintained {
    /// No table has partitions, and rows are not deleted.
    Nothing,
    /// Only partitions were checked.
    Partitions,
    Rows(u64),
}

#[derive(Debug, Clone)]
pub struct MaintenanceTask {
    pub connect: ConnectConfig,
    pub outbox: Outbox,
    pub columns: ColumnNames,
    pub maintenance: Maintenance,
}

impl MaintenanceTask {
    /// Deletes old rows for as long as this future runs. Errors are logged, and the next run tries
    /// again: the relay works without retention. Ends if there is nothing to maintain: a plain table
    /// becomes a partitioned one only while the relay is stopped.
    pub async fn run(self, health: Health, metrics: Metrics) {
        loop {
            // A standby must not delete: it would compete with the relay that holds the slot.
            if !matches!(health.phase(), Phase::Streaming) {
                sleep(PHASE_CHECK).await;
                continue;
            }
            match self.run_once(&metrics).await {
                Ok(Maintained::Nothing) => return,
                Ok(Maintained::Partitions) => {}
                Ok(Maintained::Rows(rows)) => {
                    let since_1970 =
                        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    metrics.last_prune_timestamp_seconds.set(since_1970.as_secs_f64());
                    tracing::info!(rows, "old rows are deleted from the outbox");
                }
                Err(error) => self.log_failure(&error, &metrics),
            }
            sleep(self.maintenance.every).await;
        }
    }

    fn log_failure(&self, error: &ProtocolError, metrics: &Metrics) {
        let (error_code, next_in) = (error.code().name(), self.maintenance.every);
        let error = Chain(error);
        if self.maintenance.older_than.is_some() {
            metrics.prune_failures.inc();
            tracing::warn!(error_code, %error, ?next_in, "old rows stay in the outbox");
        } else {
            tracing::warn!(error_code, %error, ?next_in, "the partitions of the outbox are not checked");
        }
    }

    async fn run_once(&self, metrics: &Metrics) -> Result<Maintained, ProtocolError> {
        let client = connect_outbox(&self.connect).await?;
        let has_partitions = self.keep_partitions(&client, metrics).await;
        let maintained = match self.maintenance.older_than {
            Some(age) => self.steps_on(&client, age, metrics).await.map(Maintained::Rows),
            None if has_partitions => Ok(Maintained::Partitions),
            None => Ok(Maintained::Nothing),
        };
        client.close().await;
        maintained
    }

    /// Creates the partitions that are needed soon, and reports the state of all tables together.
    /// Returns whether a table may have partitions.
    async fn keep_partitions(&self, client: &SqlClient, metrics: &Metrics) -> bool {
        let mut has_partitions = false;
        let mut default_rows = 0;
        let mut ready_until: Option<f64> = None;
        for table in &self.outbox.tables {
            match keep_partitions_of(client, table).await {
                Ok(None) => {}
                Ok(Some(state)) => {
                    has_partitions = true;
                    default_rows += state.default_rows;
                    let until = state.span.and(state.ready_until_seconds);
                    ready_until = match (ready_until, until) {
                        (Some(first), Some(until)) => Some(first.min(until)),
                        (first, until) => first.or(until),
                    };
                }
                Err(error) => {
                    has_partitions = true;
                    metrics.partition_failures.inc();
                    let error_code = error.code().name();
                    tracing::warn!(error_code, error = %Chain(&error), "partitions are not created");
                }
            }
        }
        metrics.default_partition_rows.set(default_rows);
        if let Some(until) = ready_until {
            metrics.partitions_end_timestamp_seconds.set(until);
        }
        has_partitions
    }

    async fn steps_on(
        &self,
        client: &SqlClient,
        older_than: Duration,
        metrics: &Metrics,
    ) -> Result<u64, ProtocolError> {
        let order = PruneOrder {
            outbox: &self.outbox,
            columns: &self.columns,
            older_than,
            access: TableAccess::Delete,
            archive: self.maintenance.archive.as_ref(),
        };
        let (mut run, mut rows) = (PruneRun::new(order), 0);
        loop {
            let began = Instant::now();
            let step = run.step(client).await?;
            rows += step.rows;
            metrics.rows_pruned.inc_by(step.rows);
            metrics.partitions_dropped.inc_by(step.partitions);
            metrics.rows_archived.inc_by(step.archived_rows);
            if !step.has_more {
                return Ok(rows);
            }
            sleep(pause_after(began.elapsed())).await;
        }
    }
}

/// Creates the partitions that a table needs soon. Returns None if the table is not partitioned.
async fn keep_partitions_of(
    client: &SqlClient,
    table: &QualifiedName,
) -> Result<Option<PartitionState>, AdminError> {
    if !is_partitioned(client, table).await? {
        return Ok(None);
    }
    let added = add_partitions(client, table).await?;
    if added.added > 0 {
        let (partitions, table) = (added.added, table.to_string());
        tracing::info!(partitions, table, "partitions are created");
    }
    if added.blocked > 0 {
        let (error_code, ranges) = (Code::DefaultPartitionUsed.name(), added.blocked);
        let table = table.to_string();
        tracing::warn!(error_code, ranges, table, "the DEFAULT partition blocks a new partition");
    }
    read_partition_state(client, table).await.map(Some)
}

/// Returns the pause after a step. Retention uses at most half of the time, so that producers and
/// autovacuum get the other half.
fn pause_after(step: Duration) -> Duration {
    step.min(STEP_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_pauses_as_long_as_a_step_took_and_never_for_long() {
        for millis in [0, 7, 4_999, 5_000, 60_000] {
            let step = Duration::from_millis(millis);
            let pause = pause_after(step);
            assert!(pause == step || (step > STEP_PAUSE_MAX && pause == STEP_PAUSE_MAX));
        }
    }
}

//! `run --prune-older-than`: deletes old rows of the outbox while the relay streams, in steps.
//!
//! A run is a sequence of short transactions. The preconditions are checked before each of them,
//! so an operation that begins during a run stops it.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use walrelay_core::ColumnNames;
use walrelay_errors::{Chain, Coded as _};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{ConnectConfig, SqlClient, TableAccess, connect_sql};
use walrelay_relay::observe::health::{Health, Phase};
use walrelay_relay::observe::retention_metrics::RetentionMetrics;

use crate::protocols::{ProtocolError, PruneOrder, prune_step};

/// The interval at which the task checks whether the relay has started to stream.
const PHASE_CHECK: Duration = Duration::from_millis(250);

/// The longest pause between two steps.
const STEP_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The age of rows to delete, and how often to delete them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// The time between two runs.
    pub every: Duration,
}

/// The periodic deletion of old rows.
#[derive(Debug, Clone)]
pub struct RetentionTask {
    /// How to connect.
    pub connect: ConnectConfig,
    /// The outbox.
    pub outbox: Outbox,
    /// The names of its columns.
    pub columns: ColumnNames,
    /// The age and the interval.
    pub retention: Retention,
}

impl RetentionTask {
    /// Deletes old rows for as long as this future runs. Errors are logged, and the next run tries
    /// again: the relay works without retention.
    pub async fn run(self, health: Health, metrics: RetentionMetrics) {
        loop {
            // A standby must not delete: it would compete with the relay that holds the slot.
            if !matches!(health.phase(), Phase::Streaming) {
                sleep(PHASE_CHECK).await;
                continue;
            }
            match self.run_once(&metrics).await {
                Ok(rows) => {
                    metrics.completed(SystemTime::now());
                    tracing::info!(rows, "old rows are deleted from the outbox");
                }
                Err(error) => {
                    metrics.prune_failures.inc();
                    let (error_code, next_in) = (error.code().name(), self.retention.every);
                    let error = Chain(&error);
                    tracing::warn!(error_code, %error, ?next_in, "old rows stay in the outbox");
                }
            }
            sleep(self.retention.every).await;
        }
    }

    async fn run_once(&self, metrics: &RetentionMetrics) -> Result<u64, ProtocolError> {
        let client = connect_sql(&self.connect).await?;
        let deleted = self.steps_on(&client, metrics).await;
        client.close().await;
        deleted
    }

    async fn steps_on(
        &self,
        client: &SqlClient,
        metrics: &RetentionMetrics,
    ) -> Result<u64, ProtocolError> {
        let order = PruneOrder {
            outbox: &self.outbox,
            columns: &self.columns,
            older_than: self.retention.older_than,
            access: TableAccess::Delete,
        };
        let mut rows = 0;
        loop {
            let began = Instant::now();
            let step = prune_step(client, order).await?;
            rows += step.rows;
            metrics.rows_pruned.inc_by(step.rows);
            metrics.partitions_dropped.inc_by(step.partitions);
            if !step.has_more {
                return Ok(rows);
            }
            sleep(pause_after(began.elapsed())).await;
        }
    }
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

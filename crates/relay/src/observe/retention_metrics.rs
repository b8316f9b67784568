//! The metrics of the maintenance of the outbox: retention and partitions.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The work of retention. Clones share the values.
#[derive(Debug, Clone, Default)]
pub struct RetentionMetrics {
    /// Rows deleted from the outbox, without those of dropped partitions.
    pub rows_pruned: Counter,
    /// Partitions dropped from the outbox.
    pub partitions_dropped: Counter,
    /// Rows written to the archive.
    pub rows_archived: Counter,
    /// Runs in which partitions could not be created.
    pub partition_failures: Counter,
    /// Rows in the DEFAULT partition, at most 10,000.
    pub default_partition_rows: Gauge,
    /// The Unix time until which partitions exist. 0 if the relay creates none.
    pub partitions_end_seconds: Gauge<f64, AtomicU64>,
    /// Runs that ended early: an operation needs the rows, or the server refused.
    pub prune_failures: Counter,
    /// The Unix time at which the last complete run ended. 0 before the first.
    pub last_prune_seconds: Gauge<f64, AtomicU64>,
}

impl RetentionMetrics {
    /// Notes that a run is complete.
    pub fn completed(&self, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_prune_seconds.set(since.as_secs_f64());
    }

    /// Registers names and descriptions.
    pub(crate) fn describe(&self, registry: &mut Registry) {
        let mut counter = |name, help, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter("rows_pruned", "Outbox rows deleted by retention", &self.rows_pruned);
        counter(
            "partitions_dropped",
            "Outbox partitions dropped by retention",
            &self.partitions_dropped,
        );
        counter("rows_archived", "Outbox rows archived by retention", &self.rows_archived);
        counter(
            "partition_failures",
            "Runs in which partitions could not be created",
            &self.partition_failures,
        );
        counter("prune_failures", "Runs of retention that ended early", &self.prune_failures);
        registry.register(
            "default_partition_rows",
            "Rows in the DEFAULT partition of the outbox, at most 10000",
            self.default_partition_rows.clone(),
        );
        registry.register(
            "partitions_end_timestamp_seconds",
            "Unix time until which partitions exist, 0 if the relay creates none",
            self.partitions_end_seconds.clone(),
        );
        registry.register(
            "last_prune_timestamp_seconds",
            "Unix time of the last complete run of retention, 0 before the first",
            self.last_prune_seconds.clone(),
        );
    }
}

//! The metrics of `consumer run --prune-older-than`.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::prune::PruneStep;

/// The work of retention. Clones share the values.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetentionMetrics {
    pub(crate) rows: Counter,
    pub(crate) keys: Counter,
    pub(crate) failures: Counter,
    pub(crate) last_seconds: Gauge<f64, AtomicU64>,
}

impl RetentionMetrics {
    /// Counts a step, and notes the time if it completes a run.
    pub(crate) fn step(&self, step: &PruneStep) {
        self.rows.inc_by(step.rows);
        self.keys.inc_by(step.keys);
        if !step.has_more {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_seconds.set(since.as_secs_f64());
        }
    }

    pub(crate) fn describe(&self, registry: &mut Registry) {
        let rows = self.rows.clone();
        registry.register("rows_pruned", "Inbox rows deleted by retention", rows);
        let keys = self.keys.clone();
        registry.register("keys_pruned", "Positions of idle keys deleted by retention", keys);
        registry.register(
            "prune_failures",
            "Runs of retention that ended early",
            self.failures.clone(),
        );
        registry.register(
            "last_prune_timestamp_seconds",
            "Unix time of the last complete run of retention, 0 before the first",
            self.last_seconds.clone(),
        );
    }
}

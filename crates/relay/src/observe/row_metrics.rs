//! The metrics of rows: the age of the oldest one, attempts, and the rows of each event type.
//!
//! Nothing here costs a row more than a comparison. Ages are computed when the metrics are read, so
//! they grow also while no session runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The upper bounds of [`AttemptsHistogram`]. Most rows need one attempt, and `--max-attempts` is 20
/// by default.
const ATTEMPTS: [u32; 7] = [1, 2, 3, 5, 10, 20, 50];

/// The time since which rows wait, in microseconds since 1970. Zero: no row waits.
#[derive(Debug, Default)]
pub struct OldestRow {
    /// The commit of the oldest row that was read and is not settled. Without a session, the time
    /// until which the relay had settled everything that it had read.
    unsettled: AtomicU64,
    /// The time at which the oldest retrying row was recorded in dispatch state.
    recorded: AtomicU64,
}

impl OldestRow {
    pub fn set_unsettled(&self, since: Option<SystemTime>) {
        self.unsettled.store(micros(since), Relaxed);
    }

    pub fn set_recorded(&self, since: Option<SystemTime>) {
        self.recorded.store(micros(since), Relaxed);
    }

    /// Notes that a session ended at this time. Later commits wait for the next session.
    pub fn session_ended(&self, at: SystemTime) {
        let ended = micros(Some(at));
        // A row that already waits is older than the end of the session.
        let _row_waits = self.unsettled.compare_exchange(0, ended, Relaxed, Relaxed).is_err();
    }

    /// Forgets all rows, because another relay publishes them.
    pub fn clear(&self) {
        self.set_unsettled(None);
        self.set_recorded(None);
    }

    /// The age of the oldest unsettled row, and of the oldest unpublished row, in seconds.
    fn ages(&self, now: SystemTime) -> (f64, f64) {
        let age = |since: u64| match since {
            0 => 0.0,
            since => {
                let at = UNIX_EPOCH + Duration::from_micros(since);
                now.duration_since(at).unwrap_or_default().as_secs_f64()
            }
        };
        let unsettled = age(self.unsettled.load(Relaxed));
        (unsettled, age(self.recorded.load(Relaxed)).max(unsettled))
    }
}

fn micros(at: Option<SystemTime>) -> u64 {
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or_default()
}

impl Collector for OldestRow {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (lag, oldest) = self.ages(SystemTime::now());
        let gauges = [
            ("lag_seconds", "Age of the oldest row that is neither stored nor recorded", lag),
            (
                "oldest_unpublished_seconds",
                "Age of the oldest row that is not published, rows in dispatch state included",
                oldest,
            ),
        ];
        for (name, help, seconds) in gauges {
            let gauge = ConstGauge::new(seconds);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// A histogram that counts all rows of a batch at once. Clones share the values.
#[derive(Debug, Clone, Default)]
pub struct AttemptsHistogram(Arc<AttemptCounts>);

#[derive(Debug, Default)]
struct AttemptCounts {
    /// One for each bound, and one for more attempts.
    buckets: [AtomicU64; ATTEMPTS.len() + 1],
    sum: AtomicU64,
}

impl AttemptsHistogram {
    pub fn observe(&self, attempts: u32, rows: usize) {
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        let bucket = ATTEMPTS.iter().position(|bound| attempts <= *bound);
        self.0.buckets[bucket.unwrap_or(ATTEMPTS.len())].fetch_add(rows, Relaxed);
        self.0.sum.fetch_add(u64::from(attempts).saturating_mul(rows), Relaxed);
    }
}

impl TypedMetric for AttemptsHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for AttemptsHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds = ATTEMPTS.iter().map(|bound| f64::from(*bound)).chain([f64::INFINITY]);
        let counts = self.0.buckets.iter().map(|rows| rows.load(Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, rows)| rows).sum();
        #[expect(clippy::cast_precision_loss, reason = "the sum of a histogram is a float")]
        let sum = self.0.sum.load(Relaxed) as f64;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::Metrics;

    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }

    #[test]
    fn the_oldest_row_is_one_that_waits_in_memory_or_in_dispatch_state() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let oldest = OldestRow::default();
        assert_eq!(oldest.ages(at(100)), (0.0, 0.0));
        oldest.set_unsettled(Some(at(90)));
        assert_eq!(oldest.ages(at(100)), (10.0, 10.0));
        oldest.set_recorded(Some(at(40)));
        assert_eq!(oldest.ages(at(100)), (10.0, 60.0));
        oldest.clear();
        assert_eq!(oldest.ages(at(100)), (0.0, 0.0));
    }

    #[test]
    fn the_lag_grows_while_no_session_runs() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let oldest = OldestRow::default();
        oldest.session_ended(at(100));
        assert_eq!(oldest.ages(at(130)), (30.0, 30.0));
        // The rows of an earlier session are older than its end.
        oldest.set_unsettled(Some(at(50)));
        oldest.session_ended(at(100));
        assert_eq!(oldest.ages(at(130)), (80.0, 80.0));
    }

    #[test]
    fn attempts_are_counted_by_row() {
        let metrics = Metrics::new();
        metrics.attempts_per_row.observe(1, 1_000);
        metrics.attempts_per_row.observe(4, 2);
        metrics.attempts_per_row.observe(60, 1);
        let text = metrics.encode().unwrap();
        for line in [
            "walrelay_attempts_per_row_bucket{le=\"1.0\"} 1000",
            "walrelay_attempts_per_row_bucket{le=\"5.0\"} 1002",
            "walrelay_attempts_per_row_bucket{le=\"+Inf\"} 1003",
            "walrelay_attempts_per_row_count 1003",
            "walrelay_attempts_per_row_sum 1068.0",
            "walrelay_lag_seconds 0.0",
            "walrelay_oldest_unpublished_seconds 0.0",
            "walrelay_next_attempt_seconds_count 0",
        ] {
            assert_line(&text, line);
        }
    }
}

//! The metrics of a consumer, each name once with its description.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::apply::apply_batch::RESULTS;
use crate::health::Phase;
use crate::retention_metrics::RetentionMetrics;

type Level = Gauge<u64, AtomicU64>;

const BATCH_SECONDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0, 60.0];

/// The buckets for batches, extended to six hours, because an event may also wait for the end of an
/// outage.
const STORED_TO_COMMIT_SECONDS: [f64; 15] = [
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1800.0, 21600.0,
];

const OUTCOMES: [&str; 7] =
    ["committed", "conflict", "outage", "operator", "paused", "rebuilt", "unregistered"];

/// The statuses of unfinished rows.
pub(crate) const ROWS_RETRYING: &str = "retrying";
pub(crate) const ROWS_DEAD: &str = "dead";

/// All metrics. A copy shares its values.
#[derive(Clone)]
pub struct Metrics {
    pub(crate) messages_received: Counter,
    pub(crate) events: Family<ResultLabel, Counter>,
    /// The first event types, each with its series, so that a sum over types is complete.
    types: Arc<Mutex<BTreeSet<String>>>,
    events_by_type: Family<TypeResultLabels, Counter>,
    stored_to_commit_by_type_seconds: Family<TypeLabel, Histogram, fn() -> Histogram>,
    pub(crate) batches: Family<OutcomeLabel, Counter>,
    pub(crate) batch_seconds: Histogram,
    pub(crate) stored_to_commit_seconds: Histogram,
    pub(crate) acknowledged: Counter,
    pub(crate) leases_renewed: Counter,
    pub(crate) held_messages: Level,
    pub(crate) held_bytes: Level,
    pub(crate) held_keys: Level,
    pub(crate) rows: Family<StatusLabel, Level>,
    pub(crate) keys_held: Level,
    pub(crate) implausible_positions: Level,
    pub(crate) oldest_waiting_seconds: Gauge<f64, AtomicU64>,
    pub(crate) versions_missing: Counter,
    pub(crate) rebuild_seconds: Gauge<f64, AtomicU64>,
    pub(crate) streams_ended: Family<ReasonLabel, Counter>,
    /// The spans that were dropped, because the buffer was full or no collector answered.
    pub spans_dropped: Counter,
    /// The consumer's activity: 1 for the current phase, 0 for the others.
    pub(crate) phase: Family<PhaseLabel, Level>,
    pub(crate) seconds_since_progress: Gauge<f64, AtomicU64>,
    pub(crate) retention: RetentionMetrics,
    registry: Arc<Registry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    /// A status of the inbox, `duplicate` or `deferred`.
    pub(crate) result: &'static str,
}

/// An event type, or [`OTHER_TYPES`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabel {
    event_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeResultLabels {
    event_type: String,
    /// A status of the inbox, `duplicate` or `deferred`.
    result: &'static str,
}

/// Most event types with series of their own, and the longest of them in bytes.
const TYPES_MAX: usize = 100;
const TYPE_LEN_MAX: usize = 128;

/// The label that the other event types share.
const OTHER_TYPES: &str = "other";

/// The status of an unfinished row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StatusLabel {
    pub(crate) status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    /// `committed`, or a kind of failure.
    pub(crate) outcome: &'static str,
}

/// The reason why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    /// The gRPC code.
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PhaseLabel {
    /// One of [`Phase::NAMES`].
    pub(crate) phase: &'static str,
}

impl Metrics {
    /// Creates all metrics of a consumer at zero. Each has the consumer's name as a label.
    #[must_use]
    pub fn new(consumer: &str) -> Self {
        let mut metrics = Self {
            messages_received: Counter::default(),
            events: Family::default(),
            types: Arc::default(),
            events_by_type: Family::default(),
            stored_to_commit_by_type_seconds: Family::new_with_constructor(|| {
                Histogram::new(STORED_TO_COMMIT_SECONDS)
            }),
            batches: Family::default(),
            batch_seconds: Histogram::new(BATCH_SECONDS),
            stored_to_commit_seconds: Histogram::new(STORED_TO_COMMIT_SECONDS),
            acknowledged: Counter::default(),
            leases_renewed: Counter::default(),
            held_messages: Level::default(),
            held_bytes: Level::default(),
            held_keys: Level::default(),
            rows: Family::default(),
            keys_held: Level::default(),
            implausible_positions: Level::default(),
            oldest_waiting_seconds: Gauge::default(),
            versions_missing: Counter::default(),
            rebuild_seconds: Gauge::default(),
            streams_ended: Family::default(),
            spans_dropped: Counter::default(),
            phase: Family::default(),
            seconds_since_progress: Gauge::default(),
            retention: RetentionMetrics::default(),
            registry: Arc::default(),
        };
        // An alert on an increase needs a value before the increase.
        for result in RESULTS {
            drop(metrics.events.get_or_create(&ResultLabel { result }));
        }
        for outcome in OUTCOMES {
            drop(metrics.batches.get_or_create(&OutcomeLabel { outcome }));
        }
        // Google ends every stream with this code, after half an hour.
        drop(metrics.streams_ended.get_or_create(&ReasonLabel { reason: "UNAVAILABLE" }));
        for status in [ROWS_RETRYING, ROWS_DEAD] {
            drop(metrics.row(status));
        }
        let event_type = metrics.type_label(OTHER_TYPES);
        drop(metrics.stored_to_commit_by_type_seconds.get_or_create(&TypeLabel { event_type }));
        metrics.registry = Arc::new(metrics.describe(consumer));
        metrics
    }

    /// Returns the registry of all metrics.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Updates the computed metrics, before [`encode`](Self::encode).
    pub fn observe(&self, phase: Phase, seconds_since_progress: f64) {
        self.seconds_since_progress.set(seconds_since_progress);
        for name in Phase::NAMES {
            let is_it = u64::from(name == phase.name());
            self.phase.get_or_create(&PhaseLabel { phase: name }).set(is_it);
        }
    }

    pub(crate) fn row(&self, status: &'static str) -> Level {
        self.rows.get_or_create_owned(&StatusLabel { status })
    }

    pub(crate) fn event(&self, result: &'static str) {
        self.events.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts an event by its type, and the time from Pub/Sub to its commit.
    pub(crate) fn event_of_type(
        &self,
        event_type: Option<&str>,
        result: &'static str,
        seconds: Option<f64>,
    ) {
        let event_type = self.type_label(event_type.unwrap_or_default());
        if let Some(seconds) = seconds {
            let label = TypeLabel { event_type: event_type.clone() };
            self.stored_to_commit_by_type_seconds.get_or_create(&label).observe(seconds);
        }
        self.events_by_type.get_or_create(&TypeResultLabels { event_type, result }).inc();
    }

    /// Returns the label of an event type. The types after the hundredth share one.
    fn type_label(&self, event_type: &str) -> String {
        let mut types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        if types.contains(event_type) {
            return event_type.to_owned();
        }
        // One more for the label of all others.
        let has_place = types.len() <= TYPES_MAX && event_type.len() <= TYPE_LEN_MAX;
        let label = if has_place { event_type } else { OTHER_TYPES }.to_owned();
        if types.insert(label.clone()) {
            // An alert on an increase needs a value before the increase.
            for result in ["retrying", "dead"] {
                let labels = TypeResultLabels { event_type: label.clone(), result };
                drop(self.events_by_type.get_or_create(&labels));
            }
        }
        label
    }

    /// Registers names and descriptions. The library appends `_total` to counters and the unit's
    /// name.
    fn describe(&self, consumer: &str) -> Registry {
        let label = ("consumer".into(), consumer.to_owned().into());
        let mut registry = Registry::with_prefix_and_labels("walrelay_inbox", [label].into_iter());
        let r = &mut registry;
        let received = self.messages_received.clone();
        r.register("messages_received", "Messages delivered, copies included", received);
        r.register("events", "Events committed, by what became of them", self.events.clone());
        let by_type = self.events_by_type.clone();
        r.register("events_by_type", "Events committed, by type and what became of them", by_type);
        let of_types = self.stored_to_commit_by_type_seconds.clone();
        let what = "Time from Pub/Sub to the commit of the event, by event type";
        r.register_with_unit("stored_to_commit_by_type", what, Unit::Seconds, of_types);
        r.register("batches", "Batches, by how they ended", self.batches.clone());
        let seconds = self.batch_seconds.clone();
        r.register_with_unit("batch", "Duration of a batch's transaction", Unit::Seconds, seconds);
        r.register_with_unit(
            "stored_to_commit",
            "From Pub/Sub's storing to the commit of the effect",
            Unit::Seconds,
            self.stored_to_commit_seconds.clone(),
        );
        let acknowledged = self.acknowledged.clone();
        r.register("acknowledgements", "Acknowledgements sent", acknowledged);
        r.register("leases_renewed", "Leases renewed", self.leases_renewed.clone());
        r.register("held_messages", "Messages held", self.held_messages.clone());
        r.register("held_bytes", "Bytes held, of the budget", self.held_bytes.clone());
        r.register("held_keys", "Ordering keys held", self.held_keys.clone());
        r.register(
            "rows",
            "Events of the inbox that wait or are dead, at most 10000 counted",
            self.rows.clone(),
        );
        let keys_held = self.keys_held.clone();
        r.register("keys_held", "Ordering keys whose first event waits or is dead", keys_held);
        r.register(
            "implausible_positions",
            "Ordering keys whose position cannot be right, because newer events are behind it",
            self.implausible_positions.clone(),
        );
        r.register(
            "oldest_waiting_seconds",
            "Since the oldest event was received that waits, or is dead and holds its key",
            self.oldest_waiting_seconds.clone(),
        );
        r.register(
            "versions_missing",
            "Versions that were missing between two events of an ordering key",
            self.versions_missing.clone(),
        );
        r.register(
            "rebuild_seconds",
            "Since a rebuild began that is not finished; 0 where there is none",
            self.rebuild_seconds.clone(),
        );
        r.register("streams_ended", "Streams that ended, by gRPC code", self.streams_ended.clone());
        r.register(
            "spans_dropped",
            "Spans that were dropped: the queue was full, or no collector answered",
            self.spans_dropped.clone(),
        );
        r.register("phase", "1 for what the consumer is doing", self.phase.clone());
        r.register(
            "seconds_since_progress",
            "Since something was committed or nothing was held",
            self.seconds_since_progress.clone(),
        );
        self.retention.describe(&mut registry);
        registry
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the label that every series has.
    fn labelled(line: &str) -> String {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        match name.split_once('{') {
            Some((name, labels)) => format!("{name}{{consumer=\"billing\",{labels} {value}"),
            None => format!("{name}{{consumer=\"billing\"}} {value}"),
        }
    }

    #[test]
    fn the_names_are_those_of_the_manual() {
        let metrics = Metrics::new("billing");
        metrics.event("done");
        metrics.observe(Phase::Paused, 1.5);
        let text = metrics.encode().expect("the metrics can be written");
        for line in [
            "walrelay_inbox_messages_received_total 0",
            "walrelay_inbox_events_total{result=\"done\"} 1",
            "walrelay_inbox_events_total{result=\"dead\"} 0",
            "walrelay_inbox_batches_total{outcome=\"conflict\"} 0",
            "walrelay_inbox_batch_seconds_count 0",
            "walrelay_inbox_stored_to_commit_seconds_count 0",
            "walrelay_inbox_held_bytes 0",
            "walrelay_inbox_rows{status=\"dead\"} 0",
            "walrelay_inbox_keys_held 0",
            "walrelay_inbox_implausible_positions 0",
            "walrelay_inbox_oldest_waiting_seconds 0.0",
            "walrelay_inbox_versions_missing_total 0",
            "walrelay_inbox_rebuild_seconds 0.0",
            "walrelay_inbox_streams_ended_total{reason=\"UNAVAILABLE\"} 0",
            "walrelay_inbox_spans_dropped_total 0",
            "walrelay_inbox_phase{phase=\"paused\"} 1",
            "walrelay_inbox_phase{phase=\"consuming\"} 0",
            "walrelay_inbox_seconds_since_progress 1.5",
        ] {
            let line = labelled(line);
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn event_types_after_the_hundredth_share_a_label_and_no_event_is_left_out() {
        let metrics = Metrics::new("billing");
        for number in 0..TYPES_MAX + 50 {
            metrics.event_of_type(Some(&format!("type-{number}")), "done", Some(0.5));
        }
        metrics.event_of_type(Some("type-0"), "dead", None);
        metrics.event_of_type(None, "done", Some(0.5));
        let text = metrics.encode().expect("the metrics can be written");
        let value = |line: &str| {
            let line = labelled(line);
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        };
        value("walrelay_inbox_events_by_type_total{event_type=\"other\",result=\"done\"} 51");
        value("walrelay_inbox_events_by_type_total{event_type=\"type-0\",result=\"dead\"} 1");
        value("walrelay_inbox_events_by_type_total{event_type=\"type-1\",result=\"dead\"} 0");
        value("walrelay_inbox_stored_to_commit_by_type_seconds_count{event_type=\"type-1\"} 1");
    }
}

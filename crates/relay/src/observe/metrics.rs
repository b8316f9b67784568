//! The metrics of the relay: one table of names, types and help texts.
//!
//! Handles are cheap clones. Code that counts per topic fetches its handle once and stores it. No
//! metric is labelled by ordering key, because keys are unbounded. Topics are unbounded also, so
//! only some of them have labels (`TopicLabels`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use walrelay_core::{FailureCode, Message, Topic};
use walrelay_outbox_store::{AnchorStatus, Outbox};

use crate::error::RECONNECT_REASONS;
use crate::observe::health::Phase;
use crate::observe::ignored_changes::{OperationLabel, OtherChange};
use crate::observe::row_metrics::{AttemptsHistogram, OldestRow};
use crate::observe::topic_labels::{
    DEAD, FailureLabels, PARKED, TopicAnswer, TopicLabels, TypeLabels,
};

/// A gauge of bytes or rows.
pub type Level = Gauge<u64, AtomicU64>;

/// A gauge of bytes, -1 if they are unknown or without limit.
pub type SignedLevel = Gauge<i64, AtomicI64>;

pub type Seconds = Gauge<f64, AtomicU64>;

/// From a reply of the same machine (1 ms) to the default publish timeout (60 s). Bounds are a
/// factor of about 2.5 apart, which is precise enough to distinguish a slow day from a bad one.
const PUBLISH_SECONDS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// From the first retry to the longest back-off of a parked row.
const NEXT_ATTEMPT_SECONDS: [f64; 8] = [1.0, 5.0, 15.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// Like the publish durations, but up to six hours: a row also waits during an outage.
const COMMIT_TO_ACK_SECONDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1800.0, 7200.0, 21600.0,
];

/// Declares the metrics: name, type and help text. A unit in brackets is one that the library
/// appends to the name. A value is given if it is not the default.
macro_rules! metrics {
    ($($field:ident $([$unit:ident])?: $type:ty $(= $new:expr)?, $help:literal;)*) => {
        #[derive(Debug)]
        pub struct MetricTable {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl MetricTable {
            fn new() -> Self {
                Self { $($field: metrics!(@new $($new)?),)* }
            }

            fn register(&self, registry: &mut Registry) {
                $(metrics!(@register registry, self.$field, $field, $help $(, $unit)?);)*
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
    (@register $registry:ident, $metric:expr, $field:ident, $help:literal) => {
        $registry.register(stringify!($field), $help, $metric.clone())
    };
    (@register $registry:ident, $metric:expr, $field:ident, $help:literal, $unit:ident) => {
        $registry.register_with_unit(stringify!($field), $help, Unit::$unit, $metric.clone())
    };
}

metrics! {
    // Rows on their way to Pub/Sub.
    spilled: Counter, "Rows moved to dispatch state because too much log waited for them";
    rows_read: Counter, "Outbox rows read from the slot";
    headers_left_out: Counter,
        "Headers of rows that were left out, because only the relay writes attributes of that name";
    messages_published: Family<TopicLabel, Counter>, "Messages stored by Pub/Sub";
    publish_requests: Family<RequestLabels, Counter>, "Publish calls answered, by gRPC code";
    publish_refused: Family<RequestLabels, Level>,
        "1 while Pub/Sub refuses a topic with a code that only an operator ends";
    publish_duration[Seconds]: Histogram = Histogram::new(PUBLISH_SECONDS),
        "Duration of a Publish call";
    commit_to_ack[Seconds]: Family<TopicLabel, Histogram, fn() -> Histogram>
        = Family::new_with_constructor(|| Histogram::new(COMMIT_TO_ACK_SECONDS)),
        "From a row's commit to Pub/Sub's reply, by topic";

    // Levels.
    in_flight_messages: Level, "Rows read and not settled";
    in_flight_bytes: Level, "Budget in use";
    lanes: Level, "Lanes that hold something";
    heaviest_key_bytes_per_second: Level,
        "Bytes stored of the heaviest ordering key, a second; Pub/Sub takes about 1 MB";
    hot_keys: Level, "Ordering keys above 70 % of what Pub/Sub takes of one key";
    confirmed_lsn_bytes: Level, "Position confirmed to Postgres";
    slot_lag_bytes: Level, "Log written and not confirmed";
    unsent_wal_age_seconds: Seconds,
        "Age of log that the server has not sent although the relay reads";
    slot_safe_wal_bytes: SignedLevel,
        "Log that may still be written before the slot is lost, -1 without limit or where it is not known";
    wal_budget_bytes: SignedLevel,
        "WAL that may wait before rows are spilled, -1 without budget";
    dispatch_rows: Family<StatusLabel, Level>, "Rows in dispatch state, by status";
    info: Family<InfoLabels, Level>, "Which relay this is: slot and shard";
    phase: Family<PhaseLabel, Level>, "1 for what the relay is doing";
    seconds_since_progress: Seconds, "Since the watermark moved or nothing was outstanding";

    // Anchors.
    anchor_retained_bytes: Family<AnchorLabel, Level>, "WAL that the server keeps for an anchor";
    anchor_safe_wal_bytes: Family<AnchorLabel, SignedLevel>,
        "WAL that may still be written before the anchor is lost, -1 without limit";
    anchor_age_seconds: Family<AnchorLabel, Seconds>,
        "How far back the anchor reaches, where times are on record";

    // The work of `--prune-older-than`.
    rows_pruned: Counter, "Outbox rows deleted by retention";
    partitions_dropped: Counter, "Outbox partitions dropped by retention";
    rows_archived: Counter, "Outbox rows archived by retention";
    partition_failures: Counter, "Runs in which partitions could not be created";
    prune_failures: Counter, "Runs of retention that ended early";
    default_partition_rows: Gauge, "Rows in the DEFAULT partition of the outbox, at most 10000";
    partitions_end_timestamp_seconds: Seconds,
        "Unix time until which partitions exist, 0 if the relay creates none";
    last_prune_timestamp_seconds: Seconds,
        "Unix time of the last complete run of retention, 0 before the first";

    // Rows.
    attempts_per_row: AttemptsHistogram, "Attempts of rows that are published or dead";
    next_attempt_seconds: Histogram = Histogram::new(NEXT_ATTEMPT_SECONDS),
        "Delay to the next attempt, of rows in dispatch state";
    rows_by_type: Family<TypeLabels, Counter>,
        "Outbox rows read from the slot, by topic and event type";
    failures_by_type: Family<FailureLabels, Counter>,
        "Rows moved to dispatch state, and rows that are dead, by topic and event type";

    // Events, by reason.
    dead: Family<ReasonLabel, Counter>, "Rows that will not be tried again";
    parked: Family<ReasonLabel, Counter>, "Rows moved to dispatch state";
    reconnects: Family<ReasonLabel, Counter>, "Replication sessions begun again";
    ignored_changes: Family<OperationLabel, Counter>,
        "Updates, deletes and truncates that the publication sent, which publish nothing";
    spans_dropped: Counter,
        "Spans that were dropped: the queue was full, or no collector answered";
}

/// Every metric. Clones share the values.
#[derive(Clone)]
pub struct Metrics {
    table: Arc<MetricTable>,
    /// The oldest row that is not published.
    pub oldest: Arc<OldestRow>,
    topic_labels: Arc<TopicLabels>,
    registry: Arc<Registry>,
}

impl Deref for Metrics {
    type Target = MetricTable;

    fn deref(&self) -> &MetricTable {
        &self.table
    }
}

/// A full topic name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TopicLabel {
    /// `projects/P/topics/T`, or `other`.
    pub topic: String,
}

/// The metrics of a topic that stores messages.
#[derive(Debug)]
pub struct TopicMetrics {
    pub messages: Counter,
    /// Successful calls.
    pub stored: Counter,
    /// The time from the commit to Pub/Sub's reply.
    pub commit_to_ack: Histogram,
}

/// A topic and the result of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub topic: String,
    /// `OK`, or the name of the gRPC code, such as `UNAVAILABLE`.
    pub code: &'static str,
}

/// The reason for an event: a constant of the code, never external text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    pub reason: &'static str,
}

/// The identity of one relay among several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InfoLabels {
    pub slot: String,
    /// Its shard, such as `0/4`. `0/1` is the whole outbox.
    pub shard: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PhaseLabel {
    /// One of [`Phase::NAMES`].
    pub phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AnchorLabel {
    /// The operator's name for the anchor. The number of anchors is limited by the server's slots.
    pub anchor: String,
}

/// A status of dispatch rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabel {
    /// `retrying`, `dead`, `published` or `discarded`.
    pub status: &'static str,
}

/// The expected causes of dead rows: errors of a row, and codes that persisted through all
/// attempts. Other causes get a series at their first row.
const DEAD_REASONS: [&str; 8] = [
    "BAD_HEADERS",
    "INVALID_ARGUMENT",
    "LOCAL_LIMIT",
    "TOO_LARGE",
    "UNAVAILABLE",
    "UNREADABLE",
    "UNROUTABLE",
    "DEADLINE_EXCEEDED",
];

/// The expected causes of parked rows.
const PARKED_REASONS: [&str; 9] = [
    "BEHIND_PARKED",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
];

/// The value for unknown remaining WAL of the slot. Zero would be an alarm.
const UNKNOWN: i64 = -1;

impl Metrics {
    /// Creates all metrics at zero.
    #[must_use]
    pub fn new() -> Self {
        let (table, oldest) = (MetricTable::new(), Arc::<OldestRow>::default());
        let mut registry = Registry::with_prefix("walrelay");
        table.register(&mut registry);
        registry.register_collector(Box::new(Arc::clone(&oldest)));
        let metrics = Self {
            table: Arc::new(table),
            oldest,
            topic_labels: Arc::default(),
            registry: Arc::new(registry),
        };
        metrics.slot_safe_wal_bytes.set(UNKNOWN);
        metrics.initialize_counters();
        metrics
    }

    /// Creates the expected series at zero. A series that starts with its first event shows no
    /// increase at that event, so an alert would miss the event.
    fn initialize_counters(&self) {
        let begin = |family: &Family<ReasonLabel, Counter>, reasons: &[&'static str]| {
            for reason in reasons {
                drop(family.get_or_create(&ReasonLabel { reason }));
            }
        };
        begin(&self.dead, &DEAD_REASONS);
        begin(&self.parked, &PARKED_REASONS);
        begin(&self.reconnects, &RECONNECT_REASONS);
        for change in OtherChange::ALL {
            let label = OperationLabel { operation: change.name() };
            drop(self.ignored_changes.get_or_create(&label));
        }
    }

    /// Returns separate metrics for the session that holds the new slot of a recovery. Its recorded
    /// rows count here.
    #[must_use]
    pub fn of_slot_holder(&self) -> Self {
        let table = MetricTable { spilled: self.spilled.clone(), ..MetricTable::new() };
        Self { table: Arc::new(table), ..Self::new() }
    }

    #[must_use]
    pub fn of_topic(&self, topic: &Topic) -> TopicMetrics {
        let topic = self.topic_labels.of(topic, TopicAnswer::Stored);
        let request = RequestLabels { topic: topic.clone(), code: "OK" };
        let label = TopicLabel { topic };
        TopicMetrics {
            messages: self.messages_published.get_or_create_owned(&label),
            stored: self.publish_requests.get_or_create_owned(&request),
            commit_to_ack: self.commit_to_ack.get_or_create_owned(&label),
        }
    }

    pub(super) fn count_rows(&self, topic: &Topic, event_type: &str, rows: u64) {
        let labels = self.topic_labels.with_type(topic, event_type);
        self.rows_by_type.get_or_create(&labels).inc_by(rows);
        for state in [PARKED, DEAD] {
            drop(self.failures_by_type.get_or_create(&labels.failed(state)));
        }
    }

    /// Counts a row that was parked or is dead, for this reason.
    pub(super) fn count_failed(
        &self,
        message: &Message,
        state: &'static str,
        reason: &'static str,
    ) {
        let family = if state == DEAD { &self.dead } else { &self.parked };
        family.get_or_create(&ReasonLabel { reason }).inc();
        let event_type = message.event_type().unwrap_or_default();
        let labels = self.topic_labels.with_type(message.topic(), event_type);
        self.failures_by_type.get_or_create(&labels.failed(state)).inc();
    }

    /// Counts a Publish call that failed with this code.
    pub fn request_failed(&self, topic: &Topic, code: FailureCode) {
        let topic = self.topic_labels.of(topic, TopicAnswer::Refused);
        let code = code.as_str();
        self.publish_requests.get_or_create(&RequestLabels { topic, code }).inc();
    }

    /// Sets the topics that currently refuse until an operator acts, with the code.
    pub fn set_refused(&self, topics: &[(Topic, FailureCode)]) {
        let mut refused: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        for (topic, code) in topics {
            let topic = self.topic_labels.of(topic, TopicAnswer::Refused);
            *refused.entry((topic, code.as_str())).or_default() += 1;
        }
        self.publish_refused.clear();
        for ((topic, code), count) in refused {
            self.publish_refused.get_or_create(&RequestLabels { topic, code }).set(count);
        }
    }

    /// Sets the anchors of the slot. Dropped or lost anchors have no series.
    pub fn set_anchors(&self, anchors: &[AnchorStatus]) {
        self.anchor_retained_bytes.clear();
        self.anchor_safe_wal_bytes.clear();
        self.anchor_age_seconds.clear();
        for AnchorStatus { name, slot, age } in anchors.iter().filter(|it| !it.slot.is_lost()) {
            let label = AnchorLabel { anchor: name.clone() };
            let retained = slot.retained_bytes().unwrap_or(0);
            self.anchor_retained_bytes.get_or_create(&label).set(retained);
            let safe = slot.safe_wal_size.unwrap_or(UNKNOWN);
            self.anchor_safe_wal_bytes.get_or_create(&label).set(safe);
            if let Some(age) = age {
                self.anchor_age_seconds.get_or_create(&label).set(age.as_secs_f64());
            }
        }
    }

    /// Sets the identity of this relay, in place of an earlier one.
    pub fn set_info(&self, outbox: &Outbox) {
        let labels = InfoLabels { slot: outbox.slot.clone(), shard: outbox.shard.to_string() };
        self.info.clear();
        self.info.get_or_create(&labels).set(1);
    }

    /// Sets `--wal-budget` in bytes. `None` means no budget.
    pub fn set_wal_budget(&self, bytes: Option<u64>) {
        let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
        self.wal_budget_bytes.set(bytes.unwrap_or(-1));
    }

    pub fn set_phase(&self, current: &Phase) {
        for phase in Phase::NAMES {
            let is_it = u64::from(phase == current.name());
            self.phase.get_or_create(&PhaseLabel { phase }).set(is_it);
        }
    }

    /// Clears the metrics of the slot, because another relay holds and reports it. Old values of
    /// this relay would raise alarms for ever.
    pub fn stand_by(&self) {
        self.slot_lag_bytes.set(0);
        self.unsent_wal_age_seconds.set(0.0);
        self.slot_safe_wal_bytes.set(UNKNOWN);
        self.set_anchors(&[]);
        self.dispatch_rows.clear();
        self.publish_refused.clear();
        self.in_flight_messages.set(0);
        self.in_flight_bytes.set(0);
        self.lanes.set(0);
        self.hot_keys.set(0);
        self.heaviest_key_bytes_per_second.set(0);
        self.oldest.clear();
    }

    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry)
    }

    /// Returns the metrics in the Prometheus text format.
    ///
    /// # Errors
    ///
    /// A value cannot be written, for example a gauge above `i64::MAX`.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use walrelay_core::CallCode;

    use super::*;

    #[test]
    fn a_standby_tells_nothing_of_the_slot_that_another_relay_has() {
        let metrics = Metrics::new();
        metrics.slot_safe_wal_bytes.set(1);
        metrics.slot_lag_bytes.set(1_000_000);
        metrics.dispatch_rows.get_or_create(&StatusLabel { status: "dead" }).set(3);
        metrics.stand_by();
        let text = metrics.encode().unwrap();
        for line in ["walrelay_slot_safe_wal_bytes -1", "walrelay_slot_lag_bytes 0"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains("dispatch_rows{"), "{text}");
    }

    #[test]
    fn counters_whose_labels_are_known_begin_at_zero() {
        let text = Metrics::new().encode().unwrap();
        for line in [
            "walrelay_dead_total{reason=\"INVALID_ARGUMENT\"} 0",
            "walrelay_parked_total{reason=\"NOT_FOUND\"} 0",
            "walrelay_reconnects_total{reason=\"server_shutdown\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_topic_that_refuses_has_a_series_only_while_it_does() {
        let metrics = Metrics::new();
        metrics.set_refused(&[("projects/p/topics/t".into(), CallCode::NotFound.into())]);
        let line = "walrelay_publish_refused{topic=\"projects/p/topics/t\",code=\"NOT_FOUND\"} 1";
        assert!(metrics.encode().unwrap().lines().any(|found| found == line));
        metrics.set_refused(&[]);
        assert!(!metrics.encode().unwrap().contains("walrelay_publish_refused{"));
    }

    #[test]
    fn endless_topic_names_neither_fill_the_page_nor_fall_out_of_the_totals() {
        const TOPICS: u64 = 100_000;
        let metrics = Metrics::new();
        let topic = |number: u64| {
            // The longest possible name.
            Topic::from(format!("projects/{}/topics/{number:0>255}", "p".repeat(30)))
        };
        for number in 0..TOPICS {
            metrics.request_failed(&topic(number), CallCode::NotFound.into());
            if number.is_multiple_of(2) {
                let of_topic = metrics.of_topic(&topic(TOPICS + number));
                of_topic.messages.inc_by(3);
                of_topic.stored.inc();
            }
        }
        let refused: Vec<_> =
            (0..100).map(|number| (topic(number), CallCode::NotFound.into())).collect();
        metrics.set_refused(&refused);
        let text = metrics.encode().unwrap();
        assert!(text.len() < 1 << 20, "{} bytes", text.len());
        let total = |name: &str| -> u64 {
            let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
        };
        assert_eq!(total("walrelay_publish_requests_total"), TOPICS + TOPICS / 2);
        assert_eq!(total("walrelay_messages_published_total"), 3 * TOPICS / 2);
        assert_eq!(total("walrelay_publish_refused"), 100);
    }

    #[test]
    fn the_names_are_those_of_the_contract() {
        let metrics = Metrics::new();
        let topic = "projects/p/topics/t".to_owned();
        metrics.messages_published.get_or_create(&TopicLabel { topic: topic.clone() }).inc();
        metrics
            .publish_requests
            .get_or_create(&RequestLabels { topic: topic.clone(), code: "OK" })
            .inc();
        drop(metrics.commit_to_ack.get_or_create(&TopicLabel { topic }));
        for family in [&metrics.dead, &metrics.parked, &metrics.reconnects] {
            family.get_or_create(&ReasonLabel { reason: "test" }).inc();
        }
        metrics.dispatch_rows.get_or_create(&StatusLabel { status: "dead" }).set(3);
        metrics.set_info(&Outbox {
            slot: "walrelay_0_of_4".to_owned(),
            publication: "walrelay_0_of_4".to_owned(),
            tables: Vec::new(),
            shard: "0/4".parse().unwrap(),
        });
        metrics.set_phase(&Phase::Standby { holder: "another".into() });
        let text = metrics.encode().unwrap();
        for line in [
            "walrelay_rows_read_total 0",
            "walrelay_headers_left_out_total 0",
            "walrelay_messages_published_total{topic=\"projects/p/topics/t\"} 1",
            "walrelay_publish_requests_total{topic=\"projects/p/topics/t\",code=\"OK\"} 1",
            "walrelay_publish_duration_seconds_bucket{le=\"0.001\"} 0",
            "walrelay_commit_to_ack_seconds_count{topic=\"projects/p/topics/t\"} 0",
            "walrelay_lag_seconds 0.0",
            "walrelay_attempts_per_row_count 0",
            "walrelay_in_flight_messages 0",
            "walrelay_in_flight_bytes 0",
            "walrelay_lanes 0",
            "walrelay_heaviest_key_bytes_per_second 0",
            "walrelay_hot_keys 0",
            "walrelay_confirmed_lsn_bytes 0",
            "walrelay_slot_lag_bytes 0",
            "walrelay_unsent_wal_age_seconds 0.0",
            "walrelay_slot_safe_wal_bytes -1",
            "walrelay_wal_budget_bytes 0",
            "walrelay_spilled_total 0",
            "walrelay_ignored_changes_total{operation=\"delete\"} 0",
            "walrelay_spans_dropped_total 0",
            "walrelay_dispatch_rows{status=\"dead\"} 3",
            "walrelay_dead_total{reason=\"test\"} 1",
            "walrelay_parked_total{reason=\"test\"} 1",
            "walrelay_reconnects_total{reason=\"test\"} 1",
            "walrelay_seconds_since_progress 0.0",
            "walrelay_info{slot=\"walrelay_0_of_4\",shard=\"0/4\"} 1",
            "walrelay_phase{phase=\"standby\"} 1",
            "walrelay_phase{phase=\"streaming\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_copy_counts_into_the_same_metrics() {
        let metrics = Metrics::new();
        metrics.clone().rows_read.inc_by(5);
        assert!(metrics.encode().unwrap().contains("walrelay_rows_read_total 5"));
    }
}

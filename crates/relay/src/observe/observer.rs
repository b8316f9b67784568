//! Reports to operators while rows flow: metrics, health, and the log messages of the data path.
//!
//! The data path makes one call for each observation. The details are here.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use pgoutput_parser::{Lsn, PgTimestamp, Position};
use walrelay_core::{
    Batch, Budget, FailureClass, FailureCode, Finished, HeavyKey, HeavyKeys, Held,
    KEY_BYTES_PER_SECOND_MAX, Lanes, Outcome, PublishFailure, RecordReason, RowToRecord, SpillMode,
    Topic, Tracker, WalBudget, WalRetentionLimit, Watermark,
};
use walrelay_errors::Chain;
use walrelay_outbox_store::{DispatchCounts, Reason, ReasonKind, SlotFigures};
use walrelay_pg_replication::SlotState;
use walrelay_pubsub::{code_of_failure, operator_fix_of};

use crate::observe::anchors;
use crate::observe::batch_log::log_stored_batch;
use crate::observe::dead_rows::{DeadRows, UnloggedDeadRows, log_dead_row};
use crate::observe::health::{Health, Phase, Problem};
use crate::observe::ignored_changes::{IgnoredChanges, OtherChange};
use crate::observe::metrics::{Metrics, StatusLabel, TopicMetrics};
use crate::observe::publish_availability::{PublishAvailability, Service};
use crate::observe::publish_rate::PublishRate;
use crate::observe::refusals::Refusals;
use crate::observe::report::SlotReport;
use crate::observe::retained_wal::RetainedWalStatus;
use crate::observe::rows_by_type::RowsByType;
use crate::observe::server_stall::ServerStalls;
use crate::observe::spill_log::{Line, SpillLog, Sum};
use crate::observe::topic_labels::{DEAD, PARKED};
use crate::seed::random_seed;
use crate::stream::pipeline_error::SendFailurePosition;
use crate::stream::publish_calls::Answer;

/// Reports events of the data path to the metrics, the health state and the log.
#[derive(Debug)]
pub struct Observer {
    metrics: Metrics,
    health: Health,
    /// The counters of the topics in use, so that no batch needs a label lookup.
    topics: Vec<TopicCounters>,
    rows_read: u64,
    rows_by_type: RowsByType,
    levels_at: Option<Instant>,
    watermark: Option<Watermark>,
    /// The confirmed position of the slot, as last sent to the server or read from it.
    confirmed: Option<Lsn>,
    supply: PublishAvailability,
    problems_at: Option<Instant>,
    /// The refusing topics that the metrics currently show.
    refused: Option<Vec<(Topic, FailureCode)>>,
    /// Rows in dispatch state that wait for redelivery, at the last survey.
    retrying: Option<u64>,
    heavy_keys: HeavyKeys,
    spill_log: SpillLog,
    /// The last time at which Pub/Sub stored a message.
    stored_at: Option<Instant>,
    publish_rate: PublishRate,
    is_spilling_futile: bool,
    refusals: Refusals,
    /// `None` in a replay, which records nothing. A replay reports a dead row itself, when it stops
    /// or skips it.
    dead_rows: Option<DeadRows>,
    /// The warnings of which a session logs one.
    logged_once: BTreeSet<&'static str>,
    ignored_changes: IgnoredChanges,
    /// The name of the publication, for log messages.
    publication: String,
}

#[derive(Debug)]
struct TopicCounters {
    topic: Topic,
    metrics: TopicMetrics,
}

/// The interval at which the problems of topics without pending rows are cleared.
const PROBLEMS_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which gauges are updated. No scraper reads more often.
const LEVELS_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of topics with cached counters.
const TOPICS_KEPT: usize = 256;

impl Observer {
    #[must_use]
    pub fn new(metrics: Metrics, health: Health) -> Self {
        let service = match health.has(&Problem::Outage) {
            true => Service::Down,
            false => Service::Up,
        };
        let supply = PublishAvailability::after(service);
        let ignored_changes = IgnoredChanges::new(&metrics.ignored_changes);
        Self {
            metrics,
            health,
            topics: Vec::new(),
            rows_read: 0,
            rows_by_type: RowsByType::default(),
            levels_at: None,
            watermark: None,
            confirmed: None,
            supply,
            problems_at: None,
            refused: None,
            retrying: None,
            heavy_keys: HeavyKeys::new(random_seed()),
            spill_log: SpillLog::default(),
            stored_at: None,
            publish_rate: PublishRate::default(),
            is_spilling_futile: false,
            refusals: Refusals::default(),
            dead_rows: Some(DeadRows::default()),
            logged_once: BTreeSet::new(),
            ignored_changes,
            publication: String::new(),
        }
    }

    #[must_use]
    pub fn of_publication(mut self, publication: &str) -> Self {
        publication.clone_into(&mut self.publication);
        self
    }

    /// Makes this the observer of a replay, which has no dispatch state.
    #[must_use]
    pub fn of_a_replay(mut self) -> Self {
        self.dead_rows = None;
        self
    }

    /// Returns the health state, for other components that report to it.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    #[must_use]
    pub fn server_stalls(&self) -> ServerStalls {
        ServerStalls::new(self.metrics.unsent_wal_age_seconds.clone(), self.health())
    }

    /// Counts a row read from the slot, and the number of its headers that are not in the message.
    pub fn row_read(&mut self, topic: &Topic, event_type: &str, headers_left_out: usize) {
        self.rows_read += 1;
        self.rows_by_type.count(topic, event_type, &self.metrics);
        if headers_left_out > 0 {
            self.headers_left_out(headers_left_out);
        }
    }

    /// Logs once per session: a producer that writes such a header writes it in many rows.
    #[cold]
    fn headers_left_out(&mut self, count: usize) {
        self.metrics.headers_left_out.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        if self.logged_once.insert("reserved headers") {
            tracing::warn!(
                "a row has headers whose names only the relay writes: they are left out of its message, and the metric \
                 headers_left_out_total counts them"
            );
        }
    }

    /// Logs that dispatch state has another row at this position. Logs once per session, because
    /// such rows rarely come alone.
    pub fn misplaced_row(&mut self, position: Position) {
        if self.logged_once.insert("misplaced rows") {
            tracing::warn!(
                %position,
                "rows stand where dispatch state holds others: the slot was read with another publication before; \
                 they are published, and some may be published twice"
            );
        }
    }

    /// Counts a change that carries no event. Such a change publishes nothing.
    pub fn ignored(&mut self, change: OtherChange, at: Lsn) {
        self.ignored_changes.record(change, at, &self.publication);
    }

    /// Records that a status update was sent to the server.
    pub fn confirmed(&mut self, watermark: Watermark) {
        if watermark != Watermark::NONE {
            self.metrics.confirmed_lsn_bytes.set(watermark.lsn().as_u64());
            self.confirmed = Some(watermark.lsn());
        }
        self.health.beat();
    }

    /// Starts a streaming session, which first waits for `unanswered` calls of the previous
    /// session.
    pub fn began(&self, unanswered: usize, wal_budget: Option<u64>) {
        self.metrics.set_wal_budget(wal_budget);
        match unanswered {
            0 => self.health.set_phase(Phase::Streaming),
            _ => {
                tracing::warn!(
                    unanswered,
                    "publish calls of the session before have no answer yet; nothing is published until they have"
                );
                self.health.set_phase(Phase::Ending { unanswered });
            }
        }
    }

    /// Records a reply to a call of the previous session. `left` calls still have no reply.
    pub fn late_reply(&mut self, (batch, answer): &Answer, left: usize) {
        self.answered(batch, answer, now());
        match (left, self.health.phase()) {
            (0, Phase::Ending { .. }) => {
                tracing::info!("the session before has its answers; publishing continues");
                self.health.set_phase(Phase::Streaming);
            }
            (_, Phase::Ending { .. }) => self.health.set_phase(Phase::Ending { unanswered: left }),
            (_, _) => {}
        }
    }

    /// Records that the session ends with an error while `unanswered` Publish calls have no reply.
    pub fn ending(&self, error: &(dyn std::error::Error + 'static), unanswered: usize) {
        let error_chain = Chain(error);
        match self.dead_rows {
            Some(_) => tracing::warn!(error = %error_chain, unanswered, "ending the session"),
            // The replay ends with the error or retries, and logs either.
            None => tracing::debug!(error = %error_chain, unanswered, "ending the session"),
        }
        self.health.set_phase(Phase::Ending { unanswered });
    }

    /// Records that the server cannot send the row at this place.
    pub fn unsendable(&self, at: SendFailurePosition, error: &(dyn std::error::Error + 'static)) {
        let row = (Problem::Unsendable(at.position().commit_lsn), at.reason(error));
        self.health.replace(|it| matches!(it, Problem::Unsendable(_)), [row]);
    }

    /// Records that the session reads no new rows.
    pub fn draining(&mut self) {
        self.health.set_phase(Phase::Draining);
        tracing::info!("draining: waiting for the replies to sent messages");
    }

    /// Records that the session ends at a row or message. The session waits for the rows before it.
    pub fn finishing(&mut self) {
        self.health.set_phase(Phase::Draining);
        tracing::info!("nothing more is read: waiting for the rows before");
    }

    pub fn answered(
        &mut self,
        batch: &Batch,
        answer: &Result<Vec<String>, PublishFailure>,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(batch.sent_at());
        self.metrics.publish_duration.observe(took.as_secs_f64());
        match answer {
            Ok(message_ids) => {
                log_stored_batch(batch, message_ids);
                self.supply.moved(now);
                self.stored_at = Some(now);
                self.metrics.attempts_per_row.observe(batch.attempts(), batch.messages().len());
                let topic = self.of_topic(batch.topic());
                topic.messages.inc_by(batch.messages().len() as u64);
                topic.stored.inc();
                if let Some(committed_at) = batch.committed_at() {
                    let age = committed_at.to_system_time().elapsed().unwrap_or_default();
                    topic.commit_to_ack.observe(age.as_secs_f64());
                }
                let sizes = batch.messages().map(|message| message.request_field().len());
                let (rows, bytes) = (batch.messages().len(), sizes.sum());
                self.health.published(rows);
                self.publish_rate.stored(rows);
                self.heavy_keys.stored(batch.topic(), batch.ordering_key(), rows, bytes);
                self.recovered(batch.topic(), now);
            }
            Err(failure) => self.refused(batch, failure, now),
        }
    }

    /// Counts rows on their way to dispatch state.
    pub fn rows_to_record(&mut self, rows_to_record: &[RowToRecord]) {
        for row_to_record in rows_to_record {
            if let Some(delay) = row_to_record.reason.next_attempt_in() {
                self.metrics.next_attempt_seconds.observe(delay.as_secs_f64());
            }
            let (state, reason) = match &row_to_record.reason {
                RecordReason::Stuck { failure, .. } => (PARKED, failure.code.as_str()),
                RecordReason::Spilled { .. } => {
                    self.metrics.spilled.inc();
                    self.spill_log.row();
                    continue;
                }
                RecordReason::Queued => (PARKED, "BEHIND_PARKED"),
                RecordReason::Dead { failure } => {
                    let dead_rows = self.dead_rows.as_mut();
                    log_dead_row(dead_rows, (&row_to_record.message, failure), None);
                    (DEAD, failure.code.as_str())
                }
            };
            self.metrics.count_failed(&row_to_record.message, state, reason);
        }
    }

    /// Counts the dead rows and the retries among rows that were claimed from dispatch state.
    pub fn finished(&mut self, finished: &[Finished]) {
        for row in finished {
            match &row.outcome {
                Outcome::Dead { failure, attempts } => {
                    log_dead_row(self.dead_rows.as_mut(), (&row.message, failure), Some(*attempts));
                    self.metrics.attempts_per_row.observe(*attempts, 1);
                    self.metrics.count_failed(&row.message, DEAD, failure.code.as_str());
                }
                Outcome::Again { after: Some(delay), .. } => {
                    self.metrics.next_attempt_seconds.observe(delay.as_secs_f64());
                }
                Outcome::Again { after: None, .. } | Outcome::Published { .. } => {}
            }
        }
    }

    /// Updates the gauges a few times a second. `calls` is the number of Publish calls without an
    /// answer.
    pub fn levels(&mut self, tracker: &Tracker, budget: &Budget, lanes: &Lanes, calls: usize) {
        let (now, watermark) = (now(), tracker.watermark());
        if self.levels_at.is_some_and(|at| now.duration_since(at) < LEVELS_INTERVAL) {
            return;
        }
        self.levels_at = Some(now);
        let due = self.dead_rows.as_mut().map(|rows| rows.due(now)).unwrap_or_default();
        due.iter().for_each(UnloggedDeadRows::log);
        for (topic, lasted) in self.refusals.over(now) {
            let lasted = format!("{:.1} s", lasted.as_secs_f64());
            tracing::info!(topic = &*topic, lasted, "publish succeeds again");
        }
        self.metrics.rows_read.inc_by(std::mem::take(&mut self.rows_read));
        self.rows_by_type.flush(&self.metrics);
        let unsettled = tracker.oldest_unsettled().map(PgTimestamp::to_system_time);
        self.metrics.oldest.set_unsettled(unsettled);
        self.metrics.in_flight_messages.set(budget.rows() as u64);
        self.metrics.in_flight_bytes.set(budget.bytes() as u64);
        self.metrics.lanes.set(lanes.len() as u64);
        self.health.beat();
        self.supply.look(budget.rows(), calls, now);
        let waits = budget.rows() > 0 || lanes.parked_keys() > 0;
        let tries = match lanes.is_outage(now) && waits {
            true => Service::Down,
            false => Service::Up,
        };
        let outage = self.supply.outage(now, tries);
        let outage = outage.map(|text| Reason::new(ReasonKind::Outage, text));
        self.health.set(Problem::Outage, outage);
        let is_due = self.problems_at.is_none_or(|at| now.duration_since(at) >= PROBLEMS_INTERVAL);
        if is_due && self.health.has_operator_problems() {
            self.problems_at = Some(now);
            // Memory learns late that the last row of a parked key was discarded.
            let topics = match self.retrying {
                Some(0) => lanes.topics_queued(),
                Some(_) | None => lanes.topics_held(),
            };
            self.health.keep_operator_problems(&topics);
        }
        self.update_refused_gauge();
        self.health.settled(watermark.lsn());
        if self.watermark.replace(watermark) != Some(watermark) || budget.rows() == 0 {
            self.health.progress();
        }
        self.metrics.seconds_since_progress.set(self.health.since_progress().as_secs_f64());
        self.publish_rate
            .ended(now)
            .into_iter()
            .for_each(|rate| self.health.set_publish_rate(rate));
        if self.heavy_keys.tick(now) {
            self.report_busiest_keys();
        }
    }

    /// Updates the gauge of refusing topics. It is a gauge, so that an alert ends with the problem.
    fn update_refused_gauge(&mut self) {
        let refused = self.health.refused_topics();
        if self.refused.as_ref() != Some(&refused) {
            self.metrics.set_refused(&refused);
            self.refused = Some(refused);
        }
    }

    /// Records a change of the server's WAL limit for slots. `--wal-budget auto` follows the new
    /// limit.
    pub fn retention_changed(&self, before: WalRetentionLimit, budget: &WalBudget) {
        let bytes = budget.limit();
        self.metrics.set_wal_budget(bytes);
        tracing::warn!(
            budget = bytes,
            bound = budget.retention().bytes(),
            bound_before = before.bytes(),
            "max_slot_wal_keep_size was changed; the WAL budget follows the new value"
        );
    }

    /// Reports the WAL that the relay retains, and the current spilling. Settled but unconfirmed
    /// WAL is retained also.
    pub fn wal_measured(&mut self, settled: Held, budget: &WalBudget, spill: SpillMode) {
        let Some(limit) = budget.limit() else { return };
        let watermark = self.confirmed.map_or(settled.watermark, |lsn| lsn.min(settled.watermark));
        let held = Held { watermark, ..settled };
        self.metrics.slot_lag_bytes.set(held.bytes());
        let is_futile = budget.is_futile();
        let bound = budget.retention();
        self.health.set_retained_wal(RetainedWalStatus {
            held: held.bytes(),
            budget: limit,
            bound,
            spill,
            is_futile,
        });
        let (now, held) = (now(), held.bytes());
        let is_futile_before = std::mem::replace(&mut self.is_spilling_futile, is_futile);
        if is_futile && !is_futile_before && self.spill_log.is_futile(now) {
            tracing::warn!(
                held,
                budget = limit,
                "spilling is paused, and no new rows are read: most of the retained WAL is outbox rows, which need more \
                 space in dispatch state; it continues as the WAL grows; set max_slot_wal_keep_size, or free disk space \
                 until Pub/Sub is back"
            );
        }
        match self.spill_log.measured(spill, self.stored_at, now) {
            None => {}
            Some(Line::Begins) => tracing::warn!(
                held,
                budget = limit,
                "too much WAL waits: rows that cannot be published are recorded in dispatch state, \
                 and follow in order when Pub/Sub is back"
            ),
            Some(Line::Follows) => tracing::info!(
                held,
                budget = limit,
                "rows behind spilled ones of their keys are recorded in dispatch state, too, and follow in order"
            ),
            Some(Line::GoesOn(Sum { rows, lasts })) => {
                tracing::warn!(held, budget = limit, rows, ?lasts, "rows are still being spilled");
            }
            Some(Line::FollowsOn(Sum { rows, lasts })) => tracing::info!(
                held,
                budget = limit,
                rows,
                ?lasts,
                "rows behind spilled ones of their keys are still being recorded"
            ),
            Some(Line::LogIsOver(Sum { rows, lasts })) => tracing::info!(
                held,
                budget = limit,
                rows,
                ?lasts,
                "too much WAL waits no longer: rows are stored again"
            ),
            Some(Line::IsOver(Sum { rows, lasts })) => {
                tracing::info!(held, budget = limit, rows, ?lasts, "no row is spilled any more");
            }
        }
    }

    pub fn surveyed(&mut self, survey: SlotFigures) {
        if let Some(report) = SlotReport::of(&survey) {
            self.health.set_report(report);
        }
        let SlotFigures { counts, slot, anchors, .. } = survey;
        anchors::observe(&anchors, &self.metrics, &self.health);
        let DispatchCounts { retrying, dead, published, discarded, waiting } = counts;
        self.metrics.oldest.set_recorded(waiting.since);
        self.retrying = Some(retrying);
        if let Some(dead_rows) = &mut self.dead_rows {
            dead_rows.counted(dead, now());
        }
        for (status, rows) in [
            ("retrying", retrying),
            ("dead", dead),
            ("published", published),
            ("discarded", discarded),
        ] {
            self.metrics.dispatch_rows.get_or_create(&StatusLabel { status }).set(rows);
        }
        self.confirmed = self.confirmed.or(slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn));
        let lag_bytes = slot.as_ref().and_then(SlotState::lag_bytes).unwrap_or(0);
        let safe_wal_bytes = slot.as_ref().and_then(|slot| slot.safe_wal_size);
        self.metrics.slot_lag_bytes.set(lag_bytes);
        self.metrics.slot_safe_wal_bytes.set(safe_wal_bytes.unwrap_or(-1));
        let risk = slot.as_ref().and_then(anchors::risk_of_slot);
        self.health.set(Problem::SlotAtRisk, risk);
    }

    /// Reports the busiest keys, and logs keys that come close to Pub/Sub's limit for one key.
    fn report_busiest_keys(&mut self) {
        let heaviest = self.heavy_keys.heaviest();
        let bytes_per_second = heaviest.first().map_or(0, |key| key.bytes_per_second);
        self.metrics.heaviest_key_bytes_per_second.set(bytes_per_second);
        let hot = heaviest.iter().filter(|key| key.is_hot());
        self.metrics.hot_keys.set(hot.clone().count() as u64);
        let before = self.health.set_heavy_keys(heaviest.to_vec());
        let is_same = |one: &HeavyKey, other: &HeavyKey| {
            one.topic == other.topic && one.ordering_key == other.ordering_key
        };
        for key in hot {
            if before.iter().any(|known| known.is_hot() && is_same(known, key)) {
                continue;
            }
            tracing::warn!(
                topic = &*key.topic,
                bytes_per_second = key.bytes_per_second,
                rows_per_second = key.rows_per_second,
                limit = KEY_BYTES_PER_SECOND_MAX,
                "an ordering key approaches Pub/Sub's limit for one key; /status names the key"
            );
            tracing::debug!(ordering_key = &*key.ordering_key, "the hot key");
        }
    }

    fn refused(&mut self, batch: &Batch, failure: &PublishFailure, now: Instant) {
        let topic = batch.topic();
        if failure.class != FailureClass::Row {
            self.supply.failed(failure.code, &failure.message, now);
        }
        self.metrics.request_failed(topic, failure.code);
        // Only the debug level names ordering keys, because not every reader of logs may see them.
        tracing::debug!(
            topic = &**topic,
            ordering_key = batch.ordering_key(),
            code = failure.code.as_str(),
            "publish of this key failed"
        );
        if failure.class == FailureClass::Row {
            return;
        }
        if failure.class == FailureClass::Operator {
            let fix = operator_fix_of(failure, topic).unwrap_or_else(|| failure.message.clone());
            self.health.operator_problem(topic, failure.code, fix);
        }
        if self.refusals.refused(topic, failure, now) {
            let fix = operator_fix_of(failure, topic);
            tracing::warn!(
                error_code = code_of_failure(failure.code).name(),
                topic = &**topic,
                code = failure.code.as_str(),
                error = failure.message,
                fix,
                "publish refused; retrying until it succeeds"
            );
        }
    }

    fn recovered(&mut self, topic: &Topic, now: Instant) {
        // An earlier session may have found the problem.
        if self.health.has_operator_problems() {
            self.health.operator_cleared(topic);
        }
        self.refusals.stored(topic, now);
    }

    fn of_topic(&mut self, topic: &Topic) -> &TopicMetrics {
        let found = self.topics.iter().position(|counters| counters.topic == *topic);
        let index = found.unwrap_or_else(|| {
            if self.topics.len() == TOPICS_KEPT {
                self.topics.clear();
            }
            let metrics = self.metrics.of_topic(topic);
            self.topics.push(TopicCounters { topic: Topic::clone(topic), metrics });
            self.topics.len() - 1
        });
        &self.topics[index].metrics
    }
}

impl Drop for Observer {
    /// Counts the last rows. A short run may have no others.
    fn drop(&mut self) {
        self.metrics.rows_read.inc_by(self.rows_read);
        self.rows_by_type.flush(&self.metrics);
        self.metrics.oldest.session_ended(SystemTime::now());
    }
}

/// Returns the time of the runtime's clock, which tests can advance.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_left_out_are_counted() {
        let metrics = Metrics::new();
        let mut observer = Observer::new(metrics.clone(), Health::new());
        for left_out in [0, 2, 1] {
            observer.row_read(&"projects/p/topics/t".into(), "made", left_out);
        }
        assert_eq!(metrics.headers_left_out.get(), 3);
    }

    #[test]
    fn rows_read_in_the_last_moment_of_a_session_are_counted() {
        let metrics = Metrics::new();
        let mut observer = Observer::new(metrics.clone(), Health::new());
        observer.row_read(&"projects/p/topics/t".into(), "made", 0);
        observer.row_read(&"projects/p/topics/t".into(), "sent", 0);
        drop(observer);
        assert_eq!(metrics.rows_read.get(), 2);
    }
}

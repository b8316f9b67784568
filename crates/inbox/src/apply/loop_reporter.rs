//! The logs, metrics and health that the loop writes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_errors::Code;
use walrelay_inbox_core::{Failure, VersionGaps};

use crate::apply::apply_batch::{Applied, Registration};
use crate::apply::apply_options::VERSION_GAP;
use crate::apply::loop_state::{Debounce, LogRateLimit, REFUSED_LASTS};
use crate::apply::subscription_check::TopicState;
use crate::event::Event;
use crate::health::{Health, HeldTotals};
use crate::metrics::{Metrics, ROWS_DEAD, ROWS_RETRYING};
use crate::pending_counts::Waiting;
use crate::trace::{TraceEnd, Tracer};
use crate::unfinished_rebuild::UnfinishedRebuild;

/// An outage shorter than this is not reported, because a broken connection is usually back by
/// then.
const OUTAGE_LASTS: Duration = Duration::from_secs(2);
/// If the server refuses everything for so long, the cause is not a single event.
const REFUSAL_LASTS: Duration = Duration::from_secs(5);
/// If conflicts stop every batch for so long, the cause is no deadlock but a lock that somebody
/// holds.
const CONFLICT_LASTS: Duration = Duration::from_secs(10);

/// The receivers of the loop's reports.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    outage: Debounce,
    refusal: Debounce,
    conflict: Debounce,
    lines: LogRateLimit,
    /// The last logged error, until events are applied again. Probes with other events would log
    /// the same error again.
    said: Option<String>,
    versions: VersionGaps,
    is_refused: bool,
    malformed_messages: u64,
}

impl Observed {
    pub(crate) fn new(metrics: Metrics, health: Health, tracer: Option<Arc<dyn Tracer>>) -> Self {
        let (outage, refusal, conflict) =
            (Debounce::default(), Debounce::default(), Debounce::default());
        let (lines, said) = (LogRateLimit::default(), None);
        let versions = VersionGaps::default();
        let (is_refused, malformed_messages) = (false, 0);
        Self {
            metrics,
            health,
            tracer,
            outage,
            refusal,
            conflict,
            lines,
            said,
            versions,
            is_refused,
            malformed_messages,
        }
    }

    /// Returns whether the server has refused every event for a long time, with an error that needs
    /// an operator.
    pub(crate) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    pub(crate) fn begin(&self, subscription: &str, events: &[Arc<Event>]) -> Option<TraceEnd> {
        self.tracer.as_ref()?.begin(subscription, events)
    }

    /// Logs a pause, because only an operator ends a pause, and may have forgotten it.
    pub(crate) fn note_pause(consumer: &str) {
        let error_code = Code::ConsumerPaused.name();
        tracing::info!(error_code, consumer, "paused: nothing is applied until it is resumed");
    }

    /// Publishes the counts of pending and dead rows. Logs the counts once at the start, because an
    /// earlier run logged the failures.
    pub(crate) fn note_waiting(&self, consumer: &str, waiting: Waiting) {
        let metrics = &self.metrics;
        metrics.row(ROWS_RETRYING).set(waiting.retrying);
        metrics.row(ROWS_DEAD).set(waiting.dead);
        metrics.keys_held.set(waiting.keys_held);
        metrics.oldest_waiting_seconds.set(waiting.oldest_seconds.unwrap_or_default());
        if metrics.implausible_positions.set(waiting.implausible_positions) == 0
            && waiting.implausible_positions > 0
        {
            tracing::warn!(
                consumer,
                keys = waiting.implausible_positions,
                "newer events have an older position than their key, so events may be skipped; the status of the \
                 consumer names the keys"
            );
        }
        if self.health.set_waiting(waiting) || waiting.is_nothing() {
            return;
        }
        let Waiting { retrying, dead, keys_held, oldest_seconds, implausible_positions: _ } =
            waiting;
        tracing::warn!(
            consumer,
            retrying,
            dead,
            keys_held,
            oldest_seconds = oldest_seconds.map(f64::round),
            "the inbox has events of an earlier run that are retried or dead"
        );
    }

    /// Logs the end with the counts of pending and dead rows, because exit code 0 alone looks as if
    /// all events were applied.
    pub(crate) fn note_end(&self) {
        let Waiting { retrying, dead, .. } = self.health.waiting().unwrap_or_default();
        tracing::info!(retrying, dead, "stopped");
    }

    /// Reports the events that are held in memory. Holding none is progress, unless all are refused.
    pub(crate) fn note_holdings(&self, holdings: HeldTotals) {
        if holdings.messages == 0 && !self.is_refusing() {
            self.health.progress();
        }
        self.metrics.held_messages.set(holdings.messages as u64);
        self.metrics.held_bytes.set(holdings.bytes as u64);
        self.metrics.held_keys.set(holdings.keys as u64);
        self.health.set_holdings(holdings);
    }

    /// Logs that the consumer's row is missing or present again.
    pub(crate) fn note_row(
        &self,
        consumer: &str,
        row: Option<&Registration>,
        hidden: Option<String>,
    ) {
        let gone = || format!("consumer {consumer} is not known in this database any more");
        let code = if hidden.is_some() { Code::RowsHidden } else { Code::ConsumerNotFound };
        let problem = row.is_none().then(|| hidden.unwrap_or_else(gone));
        if !self.health.set_row_problem(problem.clone()) {
            return;
        }
        match problem {
            Some(problem) => {
                let error_code = code.name();
                tracing::error!(
                    error_code,
                    problem,
                    "events cannot be applied until somebody acts"
                );
            }
            None => tracing::info!("the consumer is known again"),
        }
    }

    /// Logs once that a message cannot be read. Pub/Sub delivers it again when its lease runs out.
    pub(crate) fn note_malformed(&mut self) {
        self.malformed_messages += 1;
        if self.malformed_messages == 1 {
            tracing::warn!(
                "a message that cannot be read is skipped, and Pub/Sub delivers it again; something between Pub/Sub and \
                 this consumer changes messages"
            );
        }
    }

    /// Reports that the subscription's topic was deleted, or that the subscription was replaced.
    pub(crate) fn note_topic(&self, consumer: &str, subscription: &str, state: TopicState) {
        let problem = (state == TopicState::Deleted).then(|| {
            format!("the topic of {subscription} was deleted: nothing arrives, even if a topic of the same name exists again")
        });
        if !self.health.set_topic_problem(problem.clone()) {
            return;
        }
        match problem {
            Some(problem) => {
                let error_code = Code::TopicNotFound.name();
                tracing::error!(
                    error_code,
                    consumer,
                    problem,
                    "nothing is delivered until somebody acts"
                );
            }
            None => tracing::info!(consumer, "the subscription has a topic again"),
        }
    }

    pub(crate) fn note_rebuild(&self, rebuild: Option<&UnfinishedRebuild>) {
        self.metrics.rebuild_seconds.set(rebuild.map_or(0.0, |it| it.seconds.max(1.0)));
        let report = rebuild.map(UnfinishedRebuild::report);
        if self.health.set_rebuild(report.clone()) {
            match report {
                Some(report) => tracing::warn!("{report}"),
                None => tracing::info!("the rebuild is over"),
            }
        }
    }

    /// Logs stored events that became dead or done.
    pub(crate) fn note_redelivered(consumer: &str, applied: &[Applied]) {
        for it in applied.iter().filter(|it| it.result == "dead") {
            tracing::warn!(
                consumer,
                event_id = it.event_id,
                result = it.result,
                code = it.error_code,
                "an event is dead: it has failed for the last time"
            );
        }
        let mut done = applied.iter().filter(|it| it.is_new());
        if let Some(first) = done.next() {
            let events = 1 + done.count();
            tracing::info!(
                events,
                first = first.event_id,
                "stored events are applied, and their keys continue"
            );
        }
    }

    /// Notes that a redelivery committed, so the database is reachable.
    pub(crate) fn note_redelivery(&mut self) {
        self.outage.over();
    }

    pub(crate) fn note_committed(&mut self, applied: &[Applied]) {
        // A batch that only stored events, to free capacity, does not prove that the handler works.
        if applied.iter().any(|it| it.is_new() || matches!(it.result, "duplicate" | "discarded")) {
            self.note_working();
        }
    }

    /// Counts the versions that are missing before an event.
    pub(crate) fn note_version(&mut self, event: &Event, its: &Applied) {
        let is_behind_gap = its.error_code.as_deref() == Some(VERSION_GAP);
        if let Some(version) = event.version
            && !event.ordering_key.is_empty()
            && (its.is_new() || is_behind_gap)
        {
            let mut hasher = DefaultHasher::new();
            event.ordering_key.hash(&mut hasher);
            let missing = self.versions.seen(hasher.finish(), version);
            self.metrics.versions_missing.inc_by(missing);
        }
    }

    /// Logs an event that failed and is stored. With hundreds of failures, only a few are logged.
    pub(crate) fn note_stored(&mut self, consumer: &str, event_id: &str, its: &Applied) {
        if its.result == "retrying" {
            // Counted here, because the next check of the rows is seconds away.
            self.metrics.row(ROWS_RETRYING).inc();
        }
        let Some(untold) = self.lines.may_go(Instant::now()) else { return };
        tracing::warn!(
            consumer,
            event_id,
            result = its.result,
            code = its.error_code,
            untold,
            "{}",
            its.complaint()
        );
    }

    /// Returns whether the server refuses the handlers' actions, and no stored event has passed
    /// yet.
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusal.is_on() && self.metrics.row(ROWS_RETRYING).get() > 0
    }

    /// Notes that the database is reachable and no message is held that could test the handler.
    pub(crate) fn note_idle(&mut self) {
        if !self.is_refusing() {
            self.note_working();
        }
    }

    pub(crate) fn note_working(&mut self) {
        self.health.progress();
        self.outage.over();
        self.refusal.over();
        self.conflict.over();
        self.said = None;
        self.is_refused = false;
        if self.health.set_database_problem(None) {
            tracing::info!("events are applied again");
        }
    }

    /// Logs a failure once. A failure that may pass by itself, or may concern a single event, is
    /// logged only when it lasts. `events` are the events of the failed batch, which may or may not
    /// be at fault.
    pub(crate) fn complain(&mut self, failure: Failure, error: &str, events: &[Arc<Event>]) {
        let now = Instant::now();
        let lasts = match failure {
            Failure::Conflict | Failure::Locked => self.conflict.lasts(now, CONFLICT_LASTS),
            Failure::Outage => self.outage.lasts(now, OUTAGE_LASTS),
            Failure::Operator | Failure::Severed => self.refusal.lasts(now, REFUSAL_LASTS),
            Failure::Paused | Failure::Rebuilt | Failure::Unregistered => false,
        };
        if failure == Failure::Operator {
            self.is_refused = self.refusal.lasts(now, REFUSED_LASTS);
        }
        if !lasts {
            tracing::debug!(
                error,
                failure = failure.name(),
                "a batch has failed; it is tried again"
            );
            return;
        }
        let whom = match events {
            [] => String::new(),
            [event] => format!(" (event {})", event.event_id),
            [event, others @ ..] => {
                format!(" (event {} and {} more)", event.event_id, others.len())
            }
        };
        let text = match failure {
            Failure::Conflict | Failure::Locked => {
                format!("others are in the way of every batch: {error}{whom}")
            }
            Failure::Operator => {
                format!(
                    "{error}{whom}; fix that, and events continue by themselves: no attempts are counted"
                )
            }
            Failure::Severed => {
                format!(
                    "{error}{whom}: it ends the session or may not write, and a new session may"
                )
            }
            Failure::Outage | Failure::Paused | Failure::Rebuilt | Failure::Unregistered => {
                format!("{error}{whom}")
            }
        };
        self.health.set_database_problem(Some(text));
        if self.said.as_deref() == Some(error) {
            return;
        }
        self.said = Some(error.to_owned());
        match failure {
            Failure::Conflict | Failure::Locked => tracing::warn!(
                error,
                "others are in the way of every batch{whom}; no attempts are counted"
            ),
            Failure::Operator => tracing::error!(
                error_code = Code::HandlerFailed.name(),
                error,
                "events cannot be applied until somebody acts{whom}; no attempts are counted"
            ),
            Failure::Severed => tracing::warn!(
                error,
                "the session ends or may not write whenever events are applied{whom}, and a new one may"
            ),
            Failure::Outage | Failure::Paused | Failure::Rebuilt | Failure::Unregistered => {
                tracing::warn!(error, "events cannot be applied for now; they are held");
            }
        }
    }
}

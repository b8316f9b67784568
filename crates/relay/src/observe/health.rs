//! The health of the relay, as probes and operators see it.
//!
//! The pipeline and its supervisor write it, HTTP reads it. *Live* means that the process makes
//! progress. *Ready* means that rows flow. During an outage of Pub/Sub or Postgres the relay is not
//! ready, but live: a restart would not help.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pgoutput_parser::Lsn;
use tokio::sync::Notify;
use walrelay_core::{FailureCode, Heartbeat, HeavyKey, Topic};
use walrelay_outbox_store::{Condition, Reason, ReasonKind};
use walrelay_pubsub::code_of_failure;

pub use crate::observe::problem::Problem;
use crate::observe::report::{RelayReport, ServiceReport, SlotReport};
use crate::observe::retained_wal::RetainedWalStatus;

/// The maximum number of topics whose problem is stored. Topics come from rows, so their number is
/// unbounded. The first hundred are enough for an operator.
const PROBLEMS_MAX: usize = 100;

/// The current activity of the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The relay checks Postgres. Nothing streams yet.
    Starting,
    /// Another instance holds the slot.
    Standby {
        /// The holder, as the server describes it.
        holder: String,
    },
    /// Rows flow.
    Streaming,
    /// The relay is between two sessions.
    Reconnecting {
        /// The reason for the end of the last session.
        reason: String,
    },
    /// The relay waits for a condition that another command ends, such as a lost slot.
    Waiting {
        /// The condition, and its fix.
        reason: Reason,
    },
    /// The session is over, but some Publish calls have no reply yet. Nothing new is published.
    Ending {
        /// The number of Publish calls without a reply.
        unanswered: usize,
    },
    /// A stop was requested. The relay finishes the requests in flight.
    Draining,
}

impl Phase {
    pub const NAMES: [&str; 7] =
        ["starting", "standby", "streaming", "reconnecting", "waiting", "ending", "draining"];

    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby { .. } => "standby",
            Self::Streaming => "streaming",
            Self::Reconnecting { .. } => "reconnecting",
            Self::Waiting { .. } => "waiting",
            Self::Ending { .. } => "ending",
            Self::Draining => "draining",
        }
    }

    /// Returns the reason why nothing streams, or `None` if rows stream.
    fn reason_not_ready(&self) -> Option<Reason> {
        let text = match self {
            Self::Streaming => return None,
            Self::Waiting { reason } => {
                let text = format!("waiting: {}", reason.text);
                return Some(Reason { text, ..reason.clone() });
            }
            Self::Starting => "starting: not streaming yet".to_owned(),
            Self::Standby { holder } => format!("standby: the slot is held by {holder}"),
            Self::Reconnecting { reason } => format!("reconnecting: {reason}"),
            Self::Ending { unanswered: 0 } => "ending: the session is over".to_owned(),
            Self::Ending { unanswered } => format!(
                "ending: {unanswered} publish calls of the session before have no answer yet; \
                 nothing is published until they have one or time out"
            ),
            Self::Draining => "draining: asked to stop".to_owned(),
        };
        Some(Reason::new(ReasonKind::Phase, text))
    }
}

/// The shared health state. All clones share it.
#[derive(Debug, Clone)]
pub struct Health(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Outside the mutex, so that the event loop updates its heartbeat without a lock.
    pulse: Heartbeat,
    state: Mutex<State>,
    /// True if the condition may differ from the noted one. Readable without the lock.
    has_condition_change: AtomicBool,
    news: Notify,
    /// The health of the relay, if this is that of the session that holds the new slot of a recovery.
    relay: Option<Health>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    operation: Option<Operation>,
    problems: BTreeMap<Problem, Reason>,
    refusing_topics: BTreeMap<Topic, TopicRefusal>,
    /// The settled position, through all sessions.
    settled: Lsn,
    /// The settled position at the end of the last session that the server ended.
    broken_off_at: Option<Lsn>,
    retained_wal: Option<RetainedWalStatus>,
    report: Option<SlotReport>,
    /// The rows that Pub/Sub has stored, and that are not in the relay's own row yet.
    published: u64,
    published_per_second: Option<f64>,
    heavy_keys: Vec<HeavyKey>,
    /// The condition at the last change.
    condition: Option<Condition>,
    /// The condition in the relay's own row. `None` until the session has written one.
    noted: Option<Condition>,
}

impl State {
    /// Returns the condition: the facts that only the relay knows. Constantly changing numbers are
    /// left out, because each change would be news.
    fn condition(&self) -> Condition {
        let ending = matches!(self.phase, Phase::Ending { .. });
        let ending = ending.then(|| Reason::new(ReasonKind::Phase, ENDING));
        let problems = self.problems().filter(|(problem, _)| !problem.is_in_catalogs());
        let problems = problems.map(|(_, reason)| reason.clone());
        let reasons = problems.chain(ending).chain(self.topic_problems());
        Condition::new(self.phase.name(), distinct(reasons).into_iter())
    }

    /// Returns the problems. An outage that is only the refusal of a topic is left out.
    fn problems(&self) -> impl Iterator<Item = (&Problem, &Reason)> {
        let is_refusal = |reason: &Reason| {
            self.refusing_topics.values().any(|it| reason.text.contains(&it.code.to_string()))
        };
        self.problems
            .iter()
            .filter(move |(problem, reason)| **problem != Problem::Outage || !is_refusal(reason))
    }

    fn topic_problems(&self) -> impl Iterator<Item = Reason> {
        self.refusing_topics.iter().map(|(topic, it)| {
            let reason = Reason::new(ReasonKind::TopicRefused, &**topic).about(&**topic);
            reason.with_fix(&it.fix).with_code(code_of_failure(it.code).name())
        })
    }
}

/// Returns each reason once. Several commands can fail for the same reason.
fn distinct(reasons: impl Iterator<Item = Reason>) -> Vec<Reason> {
    let mut distinct = Vec::new();
    for reason in reasons {
        if !distinct.contains(&reason) {
            distinct.push(reason);
        }
    }
    distinct
}

/// The noted condition of a session that waits for replies to Publish calls of the previous
/// session.
const ENDING: &str = "publish calls of the session before have no answer yet; nothing is published \
     until they have one or time out";

/// The reason why a topic refuses messages until an operator acts.
#[derive(Debug, PartialEq, Eq)]
struct TopicRefusal {
    code: FailureCode,
    fix: String,
}

/// The operation that an operator has begun with the slot.
#[derive(Debug, Clone)]
struct Operation {
    what: String,
    waits_for: Option<String>,
}

impl Operation {
    fn text(&self) -> String {
        match &self.waits_for {
            Some(waits_for) => format!("{}; {waits_for}", self.what),
            None => self.what.clone(),
        }
    }
}

impl Health {
    /// Creates the state of a starting relay, with a fresh heartbeat.
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Creates the state of the session that holds the new slot of a recovery. The relay reports the
    /// WAL that this session measures, and notes its own condition again once the slot is held.
    #[must_use]
    pub fn of_slot_holder(&self) -> Self {
        Self::of(Some(self.clone()))
    }

    fn of(relay: Option<Self>) -> Self {
        Self(Arc::new(Shared {
            relay,
            pulse: Heartbeat::new(Instant::now()),
            state: Mutex::new(State {
                phase: Phase::Starting,
                operation: None,
                problems: BTreeMap::new(),
                refusing_topics: BTreeMap::new(),
                settled: Lsn::ZERO,
                broken_off_at: None,
                retained_wal: None,
                report: None,
                published: 0,
                published_per_second: None,
                heavy_keys: Vec::new(),
                condition: None,
                noted: None,
            }),
            has_condition_change: AtomicBool::new(false),
            news: Notify::new(),
        }))
    }

    /// Records that the event loop is running. The caller must call this every few seconds in every
    /// phase.
    pub fn beat(&self) {
        self.0.pulse.beat(Instant::now());
    }

    /// Records progress: the watermark moved, or nothing is outstanding.
    pub fn progress(&self) {
        self.0.pulse.progress(Instant::now());
    }

    pub fn set_phase(&self, phase: Phase) {
        self.beat();
        let mut state = self.state();
        if matches!(
            phase,
            Phase::Reconnecting { .. } | Phase::Standby { .. } | Phase::Waiting { .. }
        ) {
            // No session measures the slot.
            state.report = None;
        }
        state.phase = phase;
        self.changed(state);
    }

    /// Records that another relay holds the slot. Nothing is in flight here, and the other relay
    /// reports the state of the slot.
    pub fn stand_by(&self, holder: String) {
        self.progress();
        self.forget_measurements();
        self.set_phase(Phase::Standby { holder });
    }

    pub fn wait_for(&self, reason: Reason) {
        self.forget_measurements();
        self.set_phase(Phase::Waiting { reason });
    }

    /// Forgets the findings of the last session, because nothing measures them meanwhile.
    fn forget_measurements(&self) {
        self.replace(Problem::is_measured, None);
        self.state().retained_wal = None;
    }

    /// Sets the reason of a problem, or ends it. Returns whether this is a change.
    pub fn set(&self, problem: Problem, reason: Option<Reason>) -> bool {
        let is_it = |other: &Problem| *other == problem;
        self.replace(is_it, reason.map(|reason| (problem.clone(), reason)))
    }

    /// Ends some problems, and begins others. Returns whether this is a change.
    pub fn replace(
        &self,
        ends: impl Fn(&Problem) -> bool,
        begin: impl IntoIterator<Item = (Problem, Reason)>,
    ) -> bool {
        let begin: BTreeMap<Problem, Reason> = begin.into_iter().collect();
        let mut state = self.state();
        if state.problems.iter().filter(|(problem, _)| ends(problem)).eq(&begin) {
            return false;
        }
        state.problems.retain(|problem, _| !ends(problem));
        state.problems.extend(begin);
        self.changed(state);
        true
    }

    #[must_use]
    pub fn has(&self, problem: &Problem) -> bool {
        self.state().problems.contains_key(problem)
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.state().phase.clone()
    }

    /// Records that a topic refuses messages with `code` until an operator applies the `fix`.
    pub fn operator_problem(&self, topic: &Topic, code: FailureCode, fix: impl Into<String>) {
        let refusal = TopicRefusal { code, fix: fix.into() };
        let mut state = self.state();
        let topics = &mut state.refusing_topics;
        let known = topics.get(topic);
        if known == Some(&refusal) || known.is_none() && topics.len() == PROBLEMS_MAX {
            return;
        }
        topics.insert(Arc::clone(topic), refusal);
        self.changed(state);
    }

    /// Returns the topics that currently refuse messages until an operator acts, with the code.
    #[must_use]
    pub fn refused_topics(&self) -> Vec<(Topic, FailureCode)> {
        let state = self.state();
        let topics = state.refusing_topics.iter();
        topics.map(|(topic, refusal)| (Arc::clone(topic), refusal.code)).collect()
    }

    /// Records that a topic accepts messages again.
    pub fn operator_cleared(&self, topic: &Topic) {
        let mut state = self.state();
        if state.refusing_topics.remove(topic).is_some() {
            self.changed(state);
        }
    }

    /// Returns whether a topic refuses messages, as this session or an earlier one found out.
    #[must_use]
    pub fn has_operator_problems(&self) -> bool {
        !self.state().refusing_topics.is_empty()
    }

    /// Removes the problems of all other topics: only these topics have pending rows.
    pub fn keep_operator_problems(&self, topics: &BTreeSet<Topic>) {
        let mut state = self.state();
        let before = state.refusing_topics.len();
        state.refusing_topics.retain(|topic, _| topics.contains(topic));
        if state.refusing_topics.len() < before {
            self.changed(state);
        }
    }

    pub fn set_retained_wal(&self, measured: RetainedWalStatus) {
        if let Some(relay) = &self.0.relay {
            relay.set_retained_wal(measured);
        }
        self.state().retained_wal = Some(measured);
        self.set(Problem::WalBudget, measured.short_reason());
    }

    /// Starts a session: no failure of its dispatch state is known, and no condition is noted.
    pub fn start_condition_notes(&self) {
        self.state().noted = None;
        self.replace(Problem::is_of_session, None);
        self.0.has_condition_change.store(true, Ordering::Release);
    }

    /// Has the relay note its condition again, because this session holds the slot now. The note
    /// names the session.
    pub fn slot_is_held(&self) {
        let Some(relay) = &self.0.relay else { return };
        relay.state().noted = None;
        relay.condition_not_noted();
        relay.0.news.notify_one();
    }

    /// Returns whether the condition may differ from the noted one. Cheap enough for each loop
    /// iteration.
    #[must_use]
    pub fn has_condition_change(&self) -> bool {
        self.0.has_condition_change.load(Ordering::Acquire)
    }

    #[must_use]
    pub fn condition_to_note(&self) -> Option<Condition> {
        self.0.has_condition_change.store(false, Ordering::Release);
        let state = self.state();
        let condition = state.condition();
        (state.noted.as_ref() != Some(&condition)).then_some(condition)
    }

    /// Records that the condition was written to the relay's own row.
    pub fn condition_noted(&self, condition: Condition) {
        self.state().noted = Some(condition);
    }

    /// Records that writing the condition failed. The condition stays news, but wakes no task.
    pub fn condition_not_noted(&self) {
        self.0.has_condition_change.store(true, Ordering::Release);
    }

    /// Waits until there is news. Cancel-safe, because [`has_condition_change`](Self::has_condition_change) stays true.
    pub async fn news(&self) {
        self.0.news.notified().await;
    }

    /// Records the error that ended a session. It is a problem if it happens again before anything
    /// further is settled. One session that ends may be an accident.
    pub fn broken_off(&self, error: &str, code: &str) {
        let mut state = self.state();
        let at = state.settled;
        if state.broken_off_at.replace(at) != Some(at) {
            return;
        }
        drop(state);
        let text = format!("every session ends at the same position: {error}");
        let reason = Reason::new(ReasonKind::ServerStalled, text).with_code(code);
        self.set(Problem::BrokenOff(at), Some(reason));
    }

    /// Records the settled position. The server has sent everything before it.
    pub fn settled(&self, lsn: Lsn) {
        let mut state = self.state();
        state.settled = state.settled.max(lsn);
        drop(state);
        self.replace(|problem| problem.is_passed(lsn), None);
    }

    /// Sets the unfinished operation that an operator has begun with the slot. `None` clears it.
    pub fn set_operation(&self, what: Option<String>) {
        self.beat();
        let mut state = self.state();
        if what.is_some() && matches!(state.phase, Phase::Waiting { .. }) {
            // The relay checks again, and may finish the operation itself.
            state.phase = Phase::Starting;
        }
        state.operation = what.map(|what| Operation { what, waits_for: None });
    }

    /// Sets the reason why the operation waits.
    pub fn waits_for(&self, text: &str) {
        self.beat();
        if let Some(operation) = &mut self.state().operation {
            operation.waits_for = Some(text.to_owned());
        }
    }

    pub fn set_report(&self, report: SlotReport) {
        self.state().report = Some(report);
    }

    /// Counts rows that Pub/Sub has stored, for the relay's own row.
    pub fn published(&self, rows: usize) {
        self.state().published += rows as u64;
    }

    /// Returns the number of rows since the last call.
    pub(crate) fn take_published(&self) -> u64 {
        std::mem::take(&mut self.state().published)
    }

    pub fn set_publish_rate(&self, rows_per_second: f64) {
        self.state().published_per_second = Some(rows_per_second);
    }

    /// Replaces the list of the busiest keys for `/status`. Returns the previous list.
    pub fn set_heavy_keys(&self, heavy_keys: Vec<HeavyKey>) -> Vec<HeavyKey> {
        std::mem::replace(&mut self.state().heavy_keys, heavy_keys)
    }

    /// Returns the time since the last heartbeat of the event loop.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.0.pulse.silence(Instant::now())
    }

    #[must_use]
    pub fn since_progress(&self) -> Duration {
        self.0.pulse.since_progress(Instant::now())
    }

    /// Returns the reasons why rows do not flow normally. Empty if the relay is ready.
    #[must_use]
    pub fn reasons_not_ready(&self) -> Vec<Reason> {
        let state = self.state();
        if let Phase::Waiting { .. } = state.phase {
            return state.phase.reason_not_ready().into_iter().collect();
        }
        // During an operation the phase says little, because there may be no slot to stream.
        let phase = match &state.operation {
            None => state.phase.reason_not_ready(),
            Some(operation) => {
                let text = format!("not finished: {}", operation.text());
                Some(Reason::new(ReasonKind::Operation, text))
            }
        };
        let retained_wal =
            state.retained_wal.as_ref().and_then(RetainedWalStatus::reason_not_ready);
        let problems = state.problems().map(|(problem, reason)| match &retained_wal {
            Some(with_bytes) if *problem == Problem::WalBudget => with_bytes.clone(),
            Some(_) | None => reason.clone(),
        });
        distinct(phase.into_iter().chain(problems).chain(state.topic_problems()))
    }

    /// Returns the answer of `/status`: the latest report, and the state of this instance.
    #[must_use]
    pub fn status(&self) -> ServiceReport {
        let reasons = self.reasons_not_ready();
        let seconds_since_progress = self.since_progress().as_secs_f64();
        let state = self.state();
        ServiceReport {
            slot: state.report.clone(),
            relay: RelayReport {
                phase: state.phase.name().to_owned(),
                ready: reasons.is_empty(),
                reasons,
                operation: state.operation.as_ref().map(Operation::text),
                seconds_since_progress,
                published_per_second: state.published_per_second,
                wal_budget: state.retained_wal.as_ref().map(RetainedWalStatus::report),
                heaviest_keys: state.heavy_keys.iter().map(Into::into).collect(),
            },
        }
    }

    /// Wakes the waiting task if a change of the state changed the condition.
    fn changed(&self, mut state: MutexGuard<'_, State>) {
        let condition = Some(state.condition());
        if state.condition == condition {
            return;
        }
        state.condition = condition;
        drop(state);
        self.0.has_condition_change.store(true, Ordering::Release);
        self.0.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a panic in another thread leaves no partial change.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use walrelay_core::{CallCode, SpillMode, WalRetentionLimit};

    use super::*;

    fn reason(text: &str) -> Reason {
        Reason::new(ReasonKind::default(), text)
    }

    fn texts(health: &Health) -> Vec<String> {
        health.reasons_not_ready().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_a_streaming_relay_without_problems_is_ready() {
        let health = Health::new();
        assert_eq!(texts(&health), ["starting: not streaming yet"]);
        health.set_phase(Phase::Streaming);
        assert!(texts(&health).is_empty());

        let topic = Topic::from("projects/p/topics/t");
        health.operator_problem(&topic, CallCode::NotFound.into(), "create the topic");
        health.set(Problem::SlotAtRisk, Some(reason("slot at risk: 3 MiB left")));
        assert_eq!(
            texts(&health),
            ["slot at risk: 3 MiB left", "projects/p/topics/t: create the topic"]
        );
        health.operator_cleared(&topic);
        health.set(Problem::SlotAtRisk, None);
        assert!(texts(&health).is_empty());

        health.set(Problem::SlotAtRisk, Some(reason("slot at risk: 3 MiB left")));
        health.stand_by("process 4711".into());
        assert_eq!(texts(&health), ["standby: the slot is held by process 4711"]);
    }

    #[test]
    fn a_report_about_the_slot_lives_as_long_as_the_session_that_measured_it() {
        let health = Health::new();
        for phase in [
            Phase::Reconnecting { reason: "disconnected".into() },
            Phase::Standby { holder: "process 7".into() },
            Phase::Waiting { reason: reason("slot lost") },
        ] {
            health.set_phase(Phase::Streaming);
            health.set_report(SlotReport::default());
            assert!(health.status().slot.is_some());
            health.set_phase(phase);
            assert_eq!(health.status().slot, None);
        }
    }

    #[test]
    fn an_operation_that_is_not_finished_is_named_with_what_it_waits_for() {
        let health = Health::new();
        health.set_phase(Phase::Reconnecting { reason: "server_error".into() });
        health.set_operation(Some("a recovery".into()));
        assert_eq!(texts(&health), ["not finished: a recovery"]);
        health.waits_for("the new slot waits for process 7");
        let text = "a recovery; the new slot waits for process 7";
        assert_eq!(texts(&health), [format!("not finished: {text}")]);
        assert_eq!(health.status().relay.operation.as_deref(), Some(text));
        let cause = "a recovery is not finished; run `walrelay slot recover`".to_owned();
        health.set_phase(Phase::Waiting { reason: reason(&cause) });
        assert_eq!(texts(&health), [format!("waiting: {cause}")]);
        health.set_phase(Phase::Reconnecting { reason: "server_error".into() });
        health.set_operation(None);
        assert_eq!(texts(&health), ["reconnecting: server_error"]);
    }

    #[test]
    fn a_relay_that_waits_reports_only_the_wait_and_forgets_what_the_last_session_found() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        let risk = || Some(reason("slot at risk: 3 bytes of WAL until it is lost"));
        health.set(Problem::SlotAtRisk, risk());
        health.set(Problem::AnchorAtRisk("daily".into()), Some(reason("anchor at risk: daily")));
        health.set(Problem::Store("park"), Some(reason("rows cannot be recorded")));
        health.set(Problem::Outage, Some(reason("nothing is being stored")));
        health.wait_for(reason("the slot is lost").with_fix("run `walrelay slot recover`"));
        let waiting = "waiting: the slot is lost; run `walrelay slot recover`";
        assert_eq!(texts(&health), [waiting]);
        health.set(Problem::Outage, None);
        health.set_phase(Phase::Streaming);
        assert!(texts(&health).is_empty(), "{:?}", texts(&health));
    }

    #[test]
    fn a_change_of_condition_is_news_once_and_numbers_that_grow_are_none() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        health.condition_noted(health.condition_to_note().unwrap());
        assert!(!health.has_condition_change() && health.condition_to_note().is_none());

        let bound = WalRetentionLimit::Unlimited;
        let log = |held| RetainedWalStatus {
            held,
            budget: 100,
            bound,
            spill: SpillMode::Off,
            is_futile: false,
        };
        health.set_retained_wal(log(99));
        health.set(Problem::Outage, None);
        assert!(!health.has_condition_change(), "nothing is wrong");
        health.set_retained_wal(log(101));
        assert!(health.has_condition_change());
        let condition = health.condition_to_note().unwrap();
        let short = "more WAL is retained than the WAL budget (100 bytes)";
        let short = Reason::new(ReasonKind::WalBudget, short);
        assert_eq!(condition, Condition::new("streaming", std::iter::once(short)));
        health.condition_noted(condition);
        health.set_retained_wal(log(9_000_000));
        assert!(!health.has_condition_change(), "a number alone is none");

        // A condition that ended before it was noted is no news either.
        health.set(Problem::Outage, Some(reason("nothing is being stored")));
        health.set(Problem::Outage, None);
        assert!(health.has_condition_change() && health.condition_to_note().is_none());
    }

    #[test]
    fn a_command_to_dispatch_state_that_fails_is_a_reason_until_it_works() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        health.set(Problem::Store("park"), Some(reason("rows cannot be recorded")));
        health.set(Problem::Store("due"), None);
        assert_eq!(texts(&health), ["rows cannot be recorded"]);
        health.set(Problem::Store("finish"), Some(reason("rows cannot be recorded")));
        assert_eq!(texts(&health), ["rows cannot be recorded"], "each reason once");
        health.set(Problem::Store("finish"), None);
        health.set(Problem::Store("park"), None);
        assert!(texts(&health).is_empty());
        health.set(Problem::Store("park"), Some(reason("rows cannot be recorded")));
        health.start_condition_notes();
        assert!(texts(&health).is_empty(), "another session, another connection");
    }

    #[test]
    fn a_row_that_cannot_be_sent_is_a_reason_through_all_sessions_until_it_is_passed() {
        let health = Health::new();
        health.set(
            Problem::Unsendable(Lsn::new(16)),
            Some(reason("the server cannot send the row at 0/10#1")),
        );
        for phase in [Phase::Streaming, Phase::Ending { unanswered: 0 }, Phase::Streaming] {
            health.set_phase(phase);
            health.settled(Lsn::new(16));
            let reasons = texts(&health);
            assert!(reasons.iter().any(|reason| reason.contains("0/10#1")), "{reasons:?}");
        }
        health.settled(Lsn::new(17));
        assert_eq!(texts(&health), Vec::<String>::new());
    }

    #[test]
    fn problems_of_endless_topics_do_not_fill_the_memory() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        for number in 0..PROBLEMS_MAX + 50 {
            health.operator_problem(
                &Topic::from(format!("t{number}")),
                CallCode::NotFound.into(),
                "missing",
            );
        }
        assert_eq!(texts(&health).len(), PROBLEMS_MAX);
    }

    #[test]
    fn sessions_that_the_server_ends_without_progress_are_a_reason_until_something_is_settled() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        let text = "terminating connection due to transaction timeout (25P04)";
        let end = || health.broken_off(text, "server-error");
        health.settled(Lsn::new(16));
        end();
        assert_eq!(texts(&health).len(), 0, "once is an accident");
        end();
        health.settled(Lsn::new(16));
        assert_eq!(texts(&health), [format!("every session ends at the same position: {text}")]);
        health.settled(Lsn::new(17));
        assert_eq!(texts(&health).len(), 0);
        end();
        assert_eq!(texts(&health).len(), 0, "there was progress in between");
    }
}

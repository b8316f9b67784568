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
use walrelay_core::{FailureCode, Heartbeat, HeavyKey, SpillMode, Topic, WalRetentionLimit};
use walrelay_outbox_store::{Condition, Reason, ReasonKind};
use walrelay_pubsub::code_of_failure;

use crate::observe::publish_availability::Service;
use crate::observe::report::{RelayReport, ServiceReport, SlotReport, WalBudgetReport};
use crate::observe::server_reasons::ServerReasons;

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
    /// The name of every phase.
    pub const NAMES: [&str; 7] =
        ["starting", "standby", "streaming", "reconnecting", "waiting", "ending", "draining"];

    /// Returns the name of the phase.
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
}

#[derive(Debug)]
struct State {
    phase: Phase,
    operator_problems: BTreeMap<Topic, OperatorProblem>,
    slot_at_risk: Option<Reason>,
    anchors_at_risk: Vec<Reason>,
    /// The error about an unsendable row. A settled position beyond the LSN proves that the row was
    /// sent.
    unsendable: Option<(Lsn, Reason)>,
    operation: Option<Operation>,
    outage: Option<String>,
    /// Why an outbox table has rows that are never published.
    unpublished: Option<Reason>,
    /// The dispatch commands whose last attempt failed, with the reason.
    store_failures: BTreeMap<&'static str, Reason>,
    server_reasons: ServerReasons,
    log: Option<RetainedWalStatus>,
    report: Option<SlotReport>,
    published_per_second: Option<f64>,
    heavy_keys: Vec<HeavyKey>,
    /// The condition at the last change.
    condition: Option<Condition>,
    /// The condition in the relay's own row. `None` until the session has written one.
    noted: Option<Condition>,
}

impl State {
    /// Returns the condition: the facts that only the relay knows. Other processes read the
    /// server's catalogs themselves. Constantly changing numbers are left out, because each change
    /// would be news.
    fn condition(&self) -> Condition {
        let ending = matches!(self.phase, Phase::Ending { .. });
        let ending = ending.then(|| Reason::new(ReasonKind::Phase, ENDING));
        let held = self.log.as_ref().and_then(RetainedWalStatus::short_reason);
        let unsendable = self.unsendable.iter().map(|(_, why)| why.clone());
        let reasons = unsendable.chain(self.store_failures.values().cloned()).chain(ending);
        let reasons = reasons.chain(self.server_reasons.all()).chain(self.unpublished.clone());
        let reasons = reasons.chain(self.outage_reason()).chain(held);
        Condition::new(self.phase.name(), reasons.chain(self.topic_problems()))
    }

    fn outage_reason(&self) -> Option<Reason> {
        self.outage.as_ref().map(|outage| Reason::new(ReasonKind::Outage, outage))
    }

    fn topic_problems(&self) -> impl Iterator<Item = Reason> {
        self.operator_problems.iter().map(|(topic, it)| {
            let reason = Reason::new(ReasonKind::TopicRefused, &**topic).about(&**topic);
            reason.with_fix(&it.fix).with_code(code_of_failure(it.code).name())
        })
    }
}

/// The noted condition of a session that waits for replies to Publish calls of the previous
/// session.
const ENDING: &str = "publish calls of the session before have no answer yet; nothing is published \
     until they have one or time out";

/// The reason why a topic refuses messages until an operator acts.
#[derive(Debug)]
struct OperatorProblem {
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
        Self(Arc::new(Shared {
            pulse: Heartbeat::new(Instant::now()),
            state: Mutex::new(State {
                phase: Phase::Starting,
                operator_problems: BTreeMap::new(),
                slot_at_risk: None,
                anchors_at_risk: Vec::new(),
                unsendable: None,
                operation: None,
                outage: None,
                unpublished: None,
                store_failures: BTreeMap::new(),
                server_reasons: ServerReasons::new(),
                log: None,
                report: None,
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

    /// Sets the phase of the relay.
    pub fn set_phase(&self, phase: Phase) {
        self.beat();
        self.change(|state| state.phase = phase);
    }

    /// Records that another relay holds the slot. Nothing is in flight here, and the other relay
    /// reports the state of the slot.
    pub fn stand_by(&self, holder: String) {
        self.progress();
        self.change(|state| state.store_failures.clear());
        self.change_server_reasons(ServerReasons::clear);
        self.set_slot_at_risk(None);
        self.set_anchors_at_risk(Vec::new());
        self.set_phase(Phase::Standby { holder });
    }

    /// Records that the relay waits for a condition that another command ends. The findings of the
    /// last session are outdated, because nothing measures them meanwhile.
    pub fn wait_for(&self, reason: Reason) {
        self.change(|state| {
            state.store_failures.clear();
            state.server_reasons.stalls.clear();
            state.log = None;
        });
        self.set_slot_at_risk(None);
        self.set_anchors_at_risk(Vec::new());
        self.set_phase(Phase::Waiting { reason });
    }

    /// Returns the current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.state().phase.clone()
    }

    /// Records that a topic refuses messages with `code` until an operator applies the `fix`.
    pub fn operator_problem(&self, topic: &Topic, code: FailureCode, fix: impl Into<String>) {
        let fix = fix.into();
        self.change(|State { operator_problems: problems, .. }| {
            if problems.len() < PROBLEMS_MAX || problems.contains_key(topic) {
                problems.insert(Arc::clone(topic), OperatorProblem { code, fix });
            }
        });
    }

    /// Returns the topics that currently refuse messages until an operator acts, with the code.
    #[must_use]
    pub fn refused_topics(&self) -> Vec<(Topic, FailureCode)> {
        let state = self.state();
        let problems = state.operator_problems.iter();
        problems.map(|(topic, problem)| (Arc::clone(topic), problem.code)).collect()
    }

    /// Records that a topic accepts messages again.
    pub fn operator_cleared(&self, topic: &Topic) {
        self.change(|state| drop(state.operator_problems.remove(topic)));
    }

    /// Returns whether a topic refuses messages, as this session or an earlier one found out.
    #[must_use]
    pub fn has_operator_problems(&self) -> bool {
        !self.state().operator_problems.is_empty()
    }

    /// Removes the problems of all other topics: only these topics have pending rows.
    pub fn keep_operator_problems(&self, topics: &BTreeSet<Topic>) {
        self.change(|state| state.operator_problems.retain(|topic, _| topics.contains(topic)));
    }

    /// Sets the description of an outage: rows are pending and nothing is stored. `None` ends the
    /// outage.
    pub fn set_outage(&self, outage: Option<String>) {
        self.change(|state| state.outage = outage);
    }

    /// Sets the reason why an outbox table has rows that are never published. Returns whether it
    /// differs from the last one.
    pub fn set_unpublished(&self, reason: Option<Reason>) -> bool {
        if self.state().unpublished == reason {
            return false;
        }
        self.change(|state| state.unpublished = reason);
        true
    }

    /// Changes the reasons of the server.
    pub(super) fn change_server_reasons(&self, how: impl FnOnce(&mut ServerReasons)) {
        self.change(|state| how(&mut state.server_reasons));
    }

    /// Sets the last measurement of retained WAL.
    pub fn set_retained_wal(&self, log: RetainedWalStatus) {
        self.change(|state| state.log = Some(log));
    }

    /// Returns whether Pub/Sub stored anything at the last check.
    #[must_use]
    pub fn service(&self) -> Service {
        match self.state().outage {
            Some(_) => Service::Down,
            None => Service::Up,
        }
    }

    /// Sets the reason why the slot may be lost soon. `None` means that the slot is safe.
    pub fn set_slot_at_risk(&self, risk: Option<Reason>) {
        self.state().slot_at_risk = risk;
    }

    /// Sets the anchors that may be lost soon, with the commands to keep or drop them.
    pub fn set_anchors_at_risk(&self, risks: Vec<Reason>) {
        self.state().anchors_at_risk = risks;
    }

    /// Records that a dispatch command failed. Rows do not flow normally until the command succeeds
    /// again.
    pub fn store_failed(&self, command: &'static str, why: Reason) {
        self.change(|state| drop(state.store_failures.insert(command, why)));
    }

    /// Records that a dispatch command has no answer for long. The error of its last attempt says
    /// more, and stays.
    pub fn store_silent(&self, command: &'static str, why: Reason) {
        self.change(|state| {
            state.store_failures.entry(command).or_insert(why);
        });
    }

    /// Records that a dispatch command succeeded.
    pub fn store_worked(&self, command: &'static str) {
        if self.state().store_failures.contains_key(command) {
            self.change(|state| drop(state.store_failures.remove(command)));
        }
    }

    /// Starts a session: no failure of its dispatch state is known, and no condition is noted.
    pub fn start_condition_notes(&self) {
        self.state().noted = None;
        self.change(|state| {
            state.store_failures.clear();
            state.server_reasons.stalls.clear();
        });
        self.0.has_condition_change.store(true, Ordering::Release);
    }

    /// Returns whether the condition may differ from the noted one. Cheap enough for each loop
    /// iteration.
    #[must_use]
    pub fn has_condition_change(&self) -> bool {
        self.0.has_condition_change.load(Ordering::Acquire)
    }

    /// Returns the condition if it differs from the noted one.
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

    /// Waits until there is news. Cancel-safe, because [`has_condition_change`](Self::has_news) stays true.
    pub async fn news(&self) {
        self.0.news.notified().await;
    }

    /// Records that the server cannot send the row `after` this position of the stream. The error
    /// stays until a session gets past the row.
    pub fn set_unsendable(&self, after: Lsn, why: Reason) {
        self.change(|state| state.unsendable = Some((after, why)));
    }

    /// Records the settled position. The server has sent everything before it.
    pub fn settled(&self, lsn: Lsn) {
        let mut state = self.state();
        if state.unsendable.as_ref().is_some_and(|(after, _)| lsn > *after) {
            state.unsendable = None;
        }
        if state.server_reasons.settled(lsn) {
            drop(state);
            self.change(|_| ());
        }
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

    /// Sets the latest status report, for `/status`.
    pub fn set_report(&self, report: SlotReport) {
        self.state().report = Some(report);
    }

    /// Sets the rows that Pub/Sub stores per second, for `/status`.
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

    /// Returns the time since the last progress.
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
        let exceeded = state.log.as_ref().and_then(RetainedWalStatus::reason_not_ready);
        // During an operation the phase says little, because there may be no slot to stream.
        let phase = match &state.operation {
            None => state.phase.reason_not_ready(),
            Some(operation) => {
                let text = format!("not finished: {}", operation.text());
                Some(Reason::new(ReasonKind::Operation, text))
            }
        };
        let risk = state.slot_at_risk.iter().chain(&state.anchors_at_risk).cloned();
        let unsendable = state.unsendable.iter().map(|(_, why)| why.clone());
        let risk = risk.chain(state.unpublished.clone()).chain(state.outage_reason());
        let risk = state.server_reasons.all().chain(risk).chain(unsendable);
        let store = state.store_failures.values().cloned();
        let reasons = phase.into_iter().chain(store).chain(risk).chain(exceeded);
        // Several commands can fail for the same reason.
        let mut distinct = Vec::new();
        for reason in reasons.chain(state.topic_problems()) {
            if !distinct.contains(&reason) {
                distinct.push(reason);
            }
        }
        distinct
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
                wal_budget: state.log.as_ref().map(RetainedWalStatus::report),
                heaviest_keys: state.heavy_keys.iter().map(Into::into).collect(),
            },
        }
    }

    /// Changes the state, and wakes the waiting task if the condition changed.
    fn change(&self, how: impl FnOnce(&mut State)) {
        let mut state = self.state();
        how(&mut state);
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

/// The WAL that is retained for the relay, and the state of spilling.
#[derive(Debug, Clone, Copy)]
pub struct RetainedWalStatus {
    /// The bytes of WAL between the settled position and the end of WAL.
    pub held: u64,
    /// The WAL budget in bytes.
    pub budget: u64,
    /// The amount of WAL that the server retains for a slot.
    pub bound: WalRetentionLimit,
    /// The current spilling.
    pub spill: SpillMode,
    /// Whether spilling is paused because it writes more WAL than it releases.
    pub is_futile: bool,
}

impl RetainedWalStatus {
    fn reason_not_ready(&self) -> Option<Reason> {
        let Self { held, budget, is_futile, .. } = *self;
        (held > budget).then(|| {
            let why = match is_futile {
                true => ", and most of it are outbox rows, which need more space in dispatch state",
                false => "",
            };
            let text = format!("{held} bytes of WAL are retained");
            let text = format!("{text}, more than the WAL budget ({budget} bytes){why}");
            Reason::new(ReasonKind::WalBudget, text)
        })
    }

    /// Returns the reason without the growing number.
    fn short_reason(&self) -> Option<Reason> {
        let Self { held, budget, .. } = *self;
        let text = || format!("more WAL is retained than the WAL budget ({budget} bytes)");
        (held > budget).then(|| Reason::new(ReasonKind::WalBudget, text()))
    }

    fn report(&self) -> WalBudgetReport {
        WalBudgetReport {
            retained_bytes: self.held,
            budget_bytes: self.budget,
            limit_bytes: self.bound.bytes(),
            spilling: self.spill != SpillMode::Off,
            futile: self.is_futile,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use walrelay_core::CallCode;

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
        health.set_slot_at_risk(Some(reason("slot at risk: 3 MiB left")));
        assert_eq!(
            texts(&health),
            ["slot at risk: 3 MiB left", "projects/p/topics/t: create the topic"]
        );
        health.operator_cleared(&topic);
        health.set_slot_at_risk(None);
        assert!(texts(&health).is_empty());

        health.set_slot_at_risk(Some(reason("slot at risk: 3 MiB left")));
        health.stand_by("process 4711".into());
        assert_eq!(texts(&health), ["standby: the slot is held by process 4711"]);
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
        health.set_slot_at_risk(risk());
        health.set_anchors_at_risk(vec![reason("anchor at risk: daily")]);
        health.store_failed("park", reason("rows cannot be recorded"));
        health.set_outage(Some("nothing is being stored".into()));
        health.wait_for(reason("the slot is lost").with_fix("run `walrelay slot recover`"));
        let waiting = "waiting: the slot is lost; run `walrelay slot recover`";
        assert_eq!(texts(&health), [waiting]);
        health.set_outage(None);
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
        health.set_outage(None);
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
        health.set_outage(Some("nothing is being stored".into()));
        health.set_outage(None);
        assert!(health.has_condition_change() && health.condition_to_note().is_none());
    }

    #[test]
    fn a_command_to_dispatch_state_that_fails_is_a_reason_until_it_works() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        health.store_failed("park", reason("rows cannot be recorded"));
        health.store_worked("due");
        assert_eq!(texts(&health), ["rows cannot be recorded"]);
        health.store_failed("finish", reason("rows cannot be recorded"));
        assert_eq!(texts(&health), ["rows cannot be recorded"], "each reason once");
        health.store_worked("finish");
        health.store_worked("park");
        assert!(texts(&health).is_empty());
        health.store_failed("park", reason("rows cannot be recorded"));
        health.start_condition_notes();
        assert!(texts(&health).is_empty(), "another session, another connection");
    }

    #[test]
    fn a_row_that_cannot_be_sent_is_a_reason_through_all_sessions_until_it_is_passed() {
        let health = Health::new();
        health.set_unsendable(Lsn::new(16), reason("the server cannot send the row at 0/10#1"));
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
}

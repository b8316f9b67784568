//! The health of a consumer, as probes and operators see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walrelay_core::Heartbeat;

use crate::pending_counts::Waiting;

/// The current activity of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Checking the database and the subscription.
    Starting,
    /// Reading and applying events.
    Consuming,
    /// Paused by an operator.
    Paused,
    /// Stopping: waiting for the batches in flight.
    Draining,
}

impl Phase {
    /// The names of all phases.
    pub const NAMES: [&str; 4] = ["starting", "consuming", "paused", "draining"];

    /// Returns the name of the phase.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Consuming => "consuming",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// The messages held at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldTotals {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) keys: usize,
    pub(crate) batches: usize,
    /// The age of the oldest held message.
    pub(crate) oldest: Duration,
}

/// The health of a consumer, shared by all copies.
#[derive(Debug, Clone)]
pub struct Health(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Outside the mutex, so that the loop beats without a lock.
    pulse: Heartbeat,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    consumer: String,
    subscription: String,
    generation: i32,
    /// The problems that stop events from being applied, one field for each source.
    database_problem: Option<String>,
    stream_problem: Option<String>,
    topic_problem: Option<String>,
    /// The consumer's row, an unfinished rebuild and stuck events, as the last check found them.
    row_problem: Option<String>,
    rebuild: Option<String>,
    stuck: Option<String>,
    /// The counts of pending and dead rows, after the first check.
    waiting: Option<Waiting>,
    holdings: HeldTotals,
}

impl Health {
    /// Creates the health of a consumer that is starting, with a fresh heartbeat.
    #[must_use]
    pub fn new(consumer: &str) -> Self {
        Self(Arc::new(Shared {
            pulse: Heartbeat::new(Instant::now()),
            state: Mutex::new(State {
                phase: Phase::Starting,
                consumer: consumer.to_owned(),
                subscription: String::new(),
                generation: 0,
                database_problem: None,
                stream_problem: None,
                topic_problem: None,
                row_problem: None,
                rebuild: None,
                stuck: None,
                waiting: None,
                holdings: HeldTotals::default(),
            }),
        }))
    }

    /// Sets or clears a problem that a start waits for, and that passes by itself.
    pub fn set_start_problem(&self, problem: Option<String>) {
        self.beat();
        self.set_database_problem(problem);
    }

    pub(crate) fn beat(&self) {
        self.0.pulse.beat(Instant::now());
    }

    /// Notes a commit, or that no message is held.
    pub(crate) fn progress(&self) {
        self.0.pulse.progress(Instant::now());
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.state().phase = phase;
    }

    pub(crate) fn set_generation(&self, subscription: &str, generation: i32) {
        let mut state = self.state();
        state.generation = generation;
        if state.subscription != subscription {
            subscription.clone_into(&mut state.subscription);
        }
    }

    /// Sets or clears the database problem. Returns whether the problem changed.
    pub(crate) fn set_database_problem(&self, problem: Option<String>) -> bool {
        let state = &mut self.state().database_problem;
        let is_news = *state != problem;
        *state = problem;
        is_news
    }

    pub(crate) fn database_problem(&self) -> Option<String> {
        self.state().database_problem.clone()
    }

    pub(crate) fn set_stream_problem(&self, problem: Option<String>) -> bool {
        let state = &mut self.state().stream_problem;
        let is_news = *state != problem;
        *state = problem;
        is_news
    }

    pub(crate) fn set_topic_problem(&self, problem: Option<String>) -> bool {
        let state = &mut self.state().topic_problem;
        let is_news = *state != problem;
        *state = problem;
        is_news
    }

    pub(crate) fn set_row_problem(&self, problem: Option<String>) -> bool {
        let state = &mut self.state().row_problem;
        let is_news = *state != problem;
        *state = problem;
        is_news
    }

    /// Sets or clears an unfinished rebuild. Returns whether a rebuild has begun or ended.
    pub(crate) fn set_rebuild(&self, rebuild: Option<String>) -> bool {
        let state = &mut self.state().rebuild;
        // The report contains the rebuild's age, so a different text alone is no change.
        let is_news = state.is_some() != rebuild.is_some();
        *state = rebuild;
        is_news
    }

    /// Sets or clears the report of an event that fails alone while others pass.
    pub(crate) fn set_stuck(&self, stuck: Option<String>) {
        self.state().stuck = stuck;
    }

    /// Sets the counts of pending and dead rows. Returns whether they were known before.
    pub(crate) fn set_waiting(&self, waiting: Waiting) -> bool {
        self.state().waiting.replace(waiting).is_some()
    }

    pub(crate) fn waiting(&self) -> Option<Waiting> {
        self.state().waiting
    }

    pub(crate) fn set_holdings(&self, holdings: HeldTotals) {
        self.state().holdings = holdings;
    }

    /// Returns the current activity.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Returns the time since the loop's last heartbeat.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.0.pulse.silence(Instant::now())
    }

    /// Returns the time since the last commit, or since no message was held.
    #[must_use]
    pub fn since_progress(&self) -> Duration {
        self.0.pulse.since_progress(Instant::now())
    }

    /// Returns the reasons why events are not applied. Empty if the consumer is ready.
    #[must_use]
    pub fn reasons_not_ready(&self) -> Vec<String> {
        let state = self.state();
        let phase = match state.phase {
            Phase::Consuming => None,
            Phase::Starting => Some("starting: nothing is read yet".to_owned()),
            Phase::Paused => Some("paused by an operator, until it is resumed".to_owned()),
            Phase::Draining => Some("draining: asked to stop".to_owned()),
        };
        let database =
            state.database_problem.as_ref().map(|text| format!("events are not applied: {text}"));
        let stream = state.stream_problem.as_ref().map(|text| format!("Pub/Sub: {text}"));
        let topic = state.topic_problem.as_ref().map(|text| format!("Pub/Sub: {text}"));
        let (row, stuck) = (state.row_problem.clone(), state.stuck.clone());
        phase
            .into_iter()
            .chain(row)
            .chain(database)
            .chain(stuck)
            .chain(stream)
            .chain(topic)
            .collect()
    }

    /// Returns the JSON that `/status` answers.
    #[must_use]
    pub fn status(&self) -> Value {
        let reasons = self.reasons_not_ready();
        let since_progress = self.since_progress().as_secs_f64();
        let state = self.state();
        let HeldTotals { messages, bytes, keys, batches, oldest } = state.holdings;
        json!({
            "consumer": state.consumer,
            "subscription": state.subscription,
            "generation": state.generation,
            "phase": state.phase.name(),
            "ready": reasons.is_empty(),
            "reasons": reasons,
            "seconds_since_progress": since_progress,
            "held": {
                "messages": messages,
                "bytes": bytes,
                "keys": keys,
                "batches": batches,
                "oldest_seconds": oldest.as_secs_f64(),
            },
            "rebuild": state.rebuild,
            "waiting": state.waiting.map(|waiting| waiting.shown()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a panic elsewhere leaves no change half done.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_consumer_without_problems_is_ready() {
        let health = Health::new("billing");
        assert_eq!(health.reasons_not_ready(), ["starting: nothing is read yet"]);
        health.set_phase(Phase::Consuming);
        assert!(health.reasons_not_ready().is_empty());
        assert!(health.set_database_problem(Some("no such function".into())));
        assert!(!health.set_database_problem(Some("no such function".into())), "no news");
        assert_eq!(health.reasons_not_ready(), ["events are not applied: no such function"]);
        health.set_database_problem(None);
        health.set_stuck(Some("event e7 waits".into()));
        assert_eq!(health.reasons_not_ready(), ["event e7 waits"]);
        health.set_stuck(None);
        assert!(health.set_row_problem(Some("no row".into())));
        assert_eq!(health.status()["reasons"][0], "no row");
        health.set_row_problem(None);
        assert!(health.set_rebuild(Some("begun 1 min ago".into())));
        assert!(!health.set_rebuild(Some("begun 2 min ago".into())), "one as before");
        assert!(health.reasons_not_ready().is_empty(), "the live read model is whole");
        assert_eq!(health.status()["rebuild"], "begun 2 min ago");
        assert!(health.set_rebuild(None));
        health.set_phase(Phase::Paused);
        let paused = health.reasons_not_ready().join(" ");
        assert!(paused.contains("until it is resumed"), "{paused}");
    }
}

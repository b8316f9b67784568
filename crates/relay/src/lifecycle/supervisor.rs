//! Runs one session after the other: connects, streams, backs off and retries, or stops.
//!
//! ```text
//! Opening ─▶ (slot free) ─▶ Streaming ─▶ asked to stop, caught up ─▶ (done)
//!   ▲  │                        │
//!   │  └─ held ─▶ Standby ─┐    │ broke off
//!   └──────────────────────┴────┴── back-off
//! ```
//!
//! Only the publisher's connections stay in memory from one session to the next. Each session is
//! rebuilt from the slot and from dispatch state, as after a restart of the process.

use std::pin::pin;
use std::time::Duration;
use std::{iter, mem};

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep};
use walrelay_core::{Backoff, Heartbeat, Random, Topic};
use walrelay_outbox_store::{Condition, Reason, ReasonKind};

use crate::error::{RECONNECT_REASONS, RelayError};
use crate::lifecycle::server::{Holder, Server};
use crate::lifecycle::server_history::ServerHistory;
use crate::lifecycle::session::{
    self, Beginning, OpenResult, Purpose, SessionOf, SessionSettings, SessionStart,
};
use crate::lifecycle::standby::stand_by;
use crate::lifecycle::unsendable::UnsendableRow;
use crate::lifecycle::wait_log::WaitLog;
use crate::observe::health::{Health, Phase};
use crate::observe::metrics::{Metrics, ReasonLabel};
use crate::observe::observer::Observer;
use crate::settings::Until;
use crate::shutdown::Shutdown;
use crate::stream::catch_up_target::CatchUpTarget;
use crate::stream::mode::StopReason;
use crate::stream::pipeline::{self, SessionEnd};
use crate::stream::pipeline_error::PipelineError;
use crate::stream::publish_calls::UnansweredCalls;
use crate::stream::publisher::Publisher;
use walrelay_errors::{Action, Chain, Code, Coded};

/// The delays between sessions that end with an error. The slot retains new rows meanwhile. A retry
/// is cheap, and the relay notices within two seconds that the database is back.
const RECONNECT: Backoff =
    Backoff { base: Duration::from_millis(200), cap: Duration::from_secs(2) };

/// The time in which the server must be reached first. A new machine may have no network yet.
const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The delays while another command must act. The relay notices its effect within ten seconds.
const WAITING: Backoff = Backoff { base: Duration::from_millis(500), cap: Duration::from_secs(10) };

/// The duration of a successful session. A later failure starts a new back-off.
const GOOD_SESSION: Duration = Duration::from_secs(30);

/// The state that lives across sessions.
#[derive(Debug)]
pub struct Supervisor<'a, C, P> {
    pub settings: &'a SessionSettings,
    pub server: C,
    pub publisher: P,
    pub metrics: Metrics,
    pub health: Health,
    /// Randomness for jitter, and the seed of each session's key hashes.
    pub random: Random,
}

/// The result of one iteration that did not fail.
enum Turn {
    /// The run is over. Contains the end of its last session, if there was one.
    Done(Option<StopReason>),
    Again,
}

/// The values that one session passes on to the next.
#[derive(Debug, Default)]
struct SupervisorState {
    /// The rest of the `--until-caught-up` goal, set when the first session starts.
    goal: Option<CatchUpTarget>,
    reached: Reached,
    /// Publish calls of earlier sessions that have no reply yet.
    unanswered: UnansweredCalls,
    unsendable_row: UnsendableRow,
    waits: WaitLog,
    history: ServerHistory,
}

/// The farthest point that any session has reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// No server was reached yet. The address may be wrong.
    #[default]
    Nothing,
    /// A server was reached. Another relay may hold its slot.
    Server,
    /// Rows have streamed.
    Stream,
}

impl<C: Server, P: Publisher> Supervisor<'_, C, P> {
    /// Runs sessions until one ends without an error, and returns how it ended. Returns `None` if a
    /// stop was requested while no session ran.
    ///
    /// # Errors
    ///
    /// An error that only a person can fix.
    pub async fn run(mut self, shutdown: &Shutdown) -> Result<Option<StopReason>, RelayError> {
        let (mut failures, started) = (0, Instant::now());
        let mut memory = SupervisorState::default();
        loop {
            let began = Instant::now();
            let error = match self.turn(&mut memory, shutdown).await {
                Ok(Turn::Done(ended)) => return Ok(ended),
                Ok(Turn::Again) => continue,
                Err(error) => match memory.reached {
                    Reached::Nothing => error.at_first(),
                    Reached::Server | Reached::Stream => memory.unsendable_row.count(error),
                },
            };
            if !error.is_first_connection() {
                // Any answer proves that the server exists. A relay that waits for an upgrade must
                // survive the restart of the server.
                memory.reached = memory.reached.max(Reached::Server);
            }
            failures = if began.elapsed() >= GOOD_SESSION { 1 } else { failures + 1 };
            let delay = match self.settings.waits_for.action(&error) {
                Action::Stop(_) if is_early(&error, started) => {
                    self.reconnect(&error, &mut memory.waits, failures)
                }
                Action::Stop(_) => return Err(error),
                Action::Wait => tokio::select! {
                    biased;
                    () = shutdown.requested() => return Ok(None),
                    delay = self.wait(&error, &mut memory.waits, failures) => delay,
                },
                Action::Reconnect | Action::StandBy => {
                    self.reconnect(&error, &mut memory.waits, failures)
                }
            };
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(None),
                () = sleep(delay) => {}
            }
        }
    }

    /// Counts a failed session, and logs it unless the same was logged within the last minute.
    /// Returns the delay before the next one.
    fn reconnect(&mut self, error: &RelayError, log: &mut WaitLog, failures: u32) -> Duration {
        let delay = RECONNECT.delay(failures, self.random.next_u32());
        let reason = error.reason();
        debug_assert!(RECONNECT_REASONS.contains(&reason), "{reason} does not begin at zero");
        self.metrics.reconnects.get_or_create(&ReasonLabel { reason }).inc();
        let error_code = error.code().name();
        let cause = Chain(error).to_string();
        if log.is_due(error.code(), Instant::now()) {
            let had_session = !matches!(error, RelayError::AtFirst(_));
            let what = if had_session { "session broke off" } else { "cannot start yet" };
            let fix = self.fix(error);
            let delay_ms = delay.as_millis();
            tracing::warn!(error_code, error = cause, fix, delay_ms, "{what}; connecting again");
        }
        if let RelayError::Session(PipelineError::Stream(_)) = error {
            self.health.broken_off(&cause, error_code);
        }
        self.health.set_phase(Phase::Reconnecting { reason: format!("{reason}: {cause}") });
        delay
    }

    /// Logs and records a wait at most once a minute. A record that failed is tried again at the
    /// next check. Returns the delay before that.
    async fn wait(&mut self, error: &RelayError, log: &mut WaitLog, failures: u32) -> Duration {
        let delay = WAITING.delay(failures, self.random.next_u32());
        // The step that found the condition says nothing about the state of the server, so it is
        // left out.
        let cause = if let RelayError::Survey(found) = error {
            Chain(found).to_string()
        } else {
            Chain(error).to_string()
        };
        let (code, fix) = (error.code(), self.fix(error));
        let reason = Reason::new(ReasonKind::Waiting, &*cause);
        let reason = reason.with_fix(&*fix).with_code(code.name());
        self.health.wait_for(reason.clone());
        if log.is_due(code, Instant::now()) {
            let error_code = code.name();
            tracing::warn!(
                error_code,
                error = cause,
                fix,
                "waiting: nothing is published until this is fixed"
            );
        }
        if !log.is_recorded {
            let waiting = Phase::Waiting { reason: reason.clone() };
            let condition = Condition::new(waiting.name(), iter::once(reason));
            log.is_recorded = self.server.note_wait(&condition).await;
        }
        delay
    }

    fn fix(&self, error: &RelayError) -> String {
        let of_code = || (self.settings.fix_of)(error.code(), self.settings.outbox.shard);
        error.fix().map_or_else(of_code, Into::into)
    }

    /// Opens a session and streams, or waits until the slot is free.
    async fn turn(
        &mut self,
        memory: &mut SupervisorState,
        shutdown: &Shutdown,
    ) -> Result<Turn, RelayError> {
        let opened = tokio::select! {
            biased;
            () = shutdown.requested() => return Ok(Turn::Done(None)),
            opened = self.open_after_change(&mut memory.history) => opened?,
        };
        memory.reached = memory.reached.max(Reached::Server);
        memory.waits = WaitLog::default();
        match opened {
            OpenResult::Session(session, start) => {
                self.stream(memory, session, start, shutdown).await
            }
            OpenResult::Held(holder, mut database, log) => {
                let log = log.as_deref();
                let waiting = self.await_slot(&mut memory.history, holder, &mut database, log);
                tokio::select! {
                    biased;
                    () = shutdown.requested() => Ok(Turn::Done(None)),
                    free = waiting => free.map(|()| Turn::Again),
                }
            }
        }
    }

    /// Opens a session. If the slot was dropped after it was checked, a second attempt finds out what
    /// that means: an operation on record, a lost slot, or a new slot of that name.
    async fn open_after_change(
        &mut self,
        history: &mut ServerHistory,
    ) -> Result<OpenResult<SessionOf<C, P>, C::Database>, RelayError> {
        match self.open(history).await {
            Err(RelayError::Connect(error)) if error.code() == Code::SlotOrPublicationMissing => {
                tracing::debug!(error = %Chain(&error), "the slot has changed since it was checked");
                self.open(history).await
            }
            opened => opened,
        }
    }

    /// Opens a session, or finds the session that holds the slot.
    async fn open(
        &mut self,
        history: &mut ServerHistory,
    ) -> Result<OpenResult<SessionOf<C, P>, C::Database>, RelayError> {
        let Self { settings, server, publisher, metrics, health, random } = self;
        let observer = Observer::new(metrics.clone(), health.clone())
            .of_publication(&settings.outbox.publication);
        let observer = match settings.purpose {
            Purpose::Replay(_) => observer.of_a_replay(),
            Purpose::Publish | Purpose::Record => observer,
        };
        let publisher = publisher.clone();
        let beginning = Beginning { settings, publisher, observer, history };
        beating(health, session::open(server, beginning, random)).await
    }

    /// Waits until the slot is free. Each check also updates the heartbeat: a standby is alive
    /// however long it waits.
    async fn await_slot(
        &self,
        history: &mut ServerHistory,
        holder: Holder,
        database: &mut C::Database,
        log: Option<&str>,
    ) -> Result<(), RelayError> {
        let report = |current: &Holder| {
            self.health.stand_by(current.to_string());
            self.metrics.stand_by();
            let confirmed = current.signs.confirmed_flush.into_iter();
            confirmed.for_each(|at| history.read(log, at));
        };
        stand_by(database, holder, self.settings.take_over_after, report).await
    }

    async fn stream(
        &self,
        memory: &mut SupervisorState,
        mut session: Box<SessionOf<C, P>>,
        mut start: SessionStart,
        shutdown: &Shutdown,
    ) -> Result<Turn, RelayError> {
        if memory.reached < Reached::Stream {
            memory.goal = self.goal(start.positions.wal_end, mem::take(&mut start.due));
        }
        memory.reached = Reached::Stream;
        session.goal = memory.goal.take();
        session.publishes.wait_for(mem::take(&mut memory.unanswered));
        self.health.progress();
        log_streaming_start(self.settings, &start);
        let log = start.log;
        let SessionEnd { ended, unanswered, goal, read_to } =
            pipeline::run(*session, shutdown).await;
        (memory.unanswered, memory.goal) = (unanswered, goal);
        memory.history.read(log.as_deref(), read_to);
        Ok(Turn::Done(Some(ended?)))
    }

    /// Returns the goal of the run, from the end of WAL and the due keys of its first session.
    fn goal(&self, end_of_wal: Lsn, due: Vec<(Topic, String)>) -> Option<CatchUpTarget> {
        match self.settings.until {
            Until::Stopped => None,
            Until::CaughtUp => Some(CatchUpTarget::new(end_of_wal, due)),
            Until::Position(end) => Some(CatchUpTarget::settled(end)),
        }
    }
}

/// Returns whether nothing listened at the first attempts, and may soon.
fn is_early(error: &RelayError, started: Instant) -> bool {
    error.is_first_connection()
        && error.code() == Code::PostgresUnreachable
        && started.elapsed() < FIRST_CONNECTION_TIMEOUT
}

/// Logs the start of streaming. The command of a replay logs its own progress.
fn log_streaming_start(settings: &SessionSettings, start: &SessionStart) {
    let (slot, from) = (&settings.outbox.slot, start.positions.confirmed_flush);
    match settings.purpose {
        Purpose::Publish => {
            let parked_keys = start.parked_keys;
            tracing::info!(slot, confirmed_flush = %from, parked_keys, "streaming");
        }
        Purpose::Replay(_) => tracing::debug!(slot, %from, "rows are read"),
        Purpose::Record => tracing::debug!(slot, %from, "the slot is held"),
    }
    if let (keys @ 1.., last_due_in) = start.not_due {
        tracing::info!(
            keys,
            ?last_due_in,
            "parked keys are not due yet: they back off, or a relay before had claimed rows of theirs"
        );
    }
}

/// Awaits work that may take long, and updates the heartbeat meanwhile. A long start is alive.
async fn beating<T>(health: &Health, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(Heartbeat::SILENCE_MAX / 12) => health.beat(),
        }
    }
}

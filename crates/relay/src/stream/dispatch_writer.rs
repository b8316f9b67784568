//! Writes dispatch state and reads it back, one command at a time.
//!
//! Owns the store. Rows become durable in the order in which they were handed over, and commands
//! that rows wait for are repeated until they succeed. Outcomes are written before the next rows of
//! their key are claimed. The pipeline never waits for this writer.

use std::pin::Pin;
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::time::{Instant, sleep, sleep_until};
use walrelay_core::{Finished, RowToRecord, Topic, Watermark};
use walrelay_outbox_store::{HEADS_MAX, Head, PublicationCheck, Store, StoreFailure};

use crate::observe::health::Health;
pub use crate::stream::store_command::{ClaimRequest, DispatchEvent};
use crate::stream::store_command::{StoreCommand, run_with_retries};
use crate::stream::watermark_journal::{InFlight, JournalIntervals, Record};

/// The maximum number of rows per command: a quarter of the rows that may be in flight. Other rows
/// are read meanwhile, and the cost of the commit is spread over many rows.
const PARK_ROWS_MAX: usize = 5_000;

/// The maximum number of outcomes per command. The rows of one command settle before the next one,
/// so a slow table delays rows and does not stop them.
const FINISH_ROWS_MAX: usize = 5_000;

/// The pause between two steps of a count of a large table.
const COUNT_PAUSE: Duration = Duration::from_millis(250);

/// The pause between two steps of a clean-up.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// The shortest interval between two notes of the condition. A topic that alternates between
/// refusal and success changes the condition each time.
const CONDITION_PAUSE: Duration = Duration::from_secs(1);

type Running<S> = Pin<Box<dyn Future<Output = (S, Result<DispatchEvent, StoreFailure>)> + Send>>;

enum State<S> {
    Idle(S),
    Running(Running<S>),
    /// Exists only while one state replaces the other.
    Between,
}

/// The intervals of periodic commands.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// Looking for keys that are due by time, or by an operator's change without a notification.
    pub due: Duration,
    /// Reading the heads of all keys.
    pub heads: Duration,
    /// Recording the watermark.
    pub record: JournalIntervals,
    /// Counting rows and measuring lag.
    pub survey: Duration,
    /// Checking the publication while no confirmation waits for it.
    pub watch: Duration,
    /// Checking the publication while a confirmation waits.
    pub watch_soon: Duration,
    /// Deleting rows past their retention.
    pub prune: Duration,
    /// `--dispatch-retention`.
    pub retention: Duration,
}

impl Intervals {
    /// Returns the intervals of the service, with this retention.
    #[must_use]
    pub const fn with_retention(retention: Duration) -> Self {
        Self {
            due: Duration::from_secs(1),
            heads: Duration::from_secs(30),
            record: JournalIntervals {
                busy: Duration::from_millis(100),
                quiet: Duration::from_millis(25),
                idle: Duration::from_secs(5),
            },
            survey: Duration::from_secs(5),
            watch: Duration::from_secs(1),
            watch_soon: Duration::from_millis(100),
            prune: Duration::from_secs(600),
            retention,
        }
    }
}

/// The delay of a command that another session runs.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The pause between attempts to write the last watermark.
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

pub struct DispatchWriter<S> {
    state: State<S>,
    intervals: Intervals,
    rows_to_record: Vec<RowToRecord>,
    finished: Vec<Finished>,
    claims: Option<ClaimRequest>,
    /// The start of the requested page of recorded rows.
    recorded_from: Option<Position>,
    /// Topics whose due keys are not queried, as set last.
    paused_topics: Vec<Topic>,
    record: Record,
    /// Receives the failing commands, and provides the condition to note.
    health: Health,
    /// The earliest time of the next note of the condition.
    condition_at: Instant,
    due_at: Instant,
    heads_at: Instant,
    /// The head after which the next read of heads continues.
    heads_after: Option<Head>,
    /// The position before which spilled rows are queried, if requested.
    spilled_query_before: Option<Lsn>,
    spilled_at: Instant,
    survey_at: Instant,
    watched_at: Instant,
    watch_at: Instant,
    prune_at: Instant,
}

impl<S: Store> DispatchWriter<S> {
    pub fn new(store: S, intervals: Intervals) -> Self {
        let now = Instant::now();
        Self {
            state: State::Idle(store),
            intervals,
            rows_to_record: Vec::new(),
            finished: Vec::new(),
            claims: None,
            recorded_from: None,
            paused_topics: Vec::new(),
            record: Record::new(now, intervals.record),
            health: Health::new(),
            condition_at: now,
            due_at: now,
            heads_at: now + intervals.heads,
            heads_after: None,
            spilled_query_before: None,
            spilled_at: now,
            survey_at: now,
            watched_at: now,
            watch_at: now,
            prune_at: now + intervals.prune,
        }
    }

    /// Reports failures to `health`, and notes its condition in the relay's own row.
    #[must_use]
    pub fn reporting_to(self, health: Health) -> Self {
        health.start_condition_notes();
        Self { health, ..self }
    }

    /// Leaves the commands about all rows of the slot to another session. Rows and the settled
    /// position are still recorded.
    #[must_use]
    pub fn recording_only(self) -> Self {
        let never = Instant::now() + NEVER;
        Self { due_at: never, heads_at: never, survey_at: never, prune_at: never, ..self }
    }

    /// Hands over rows to record.
    pub fn park(&mut self, rows_to_record: &mut Vec<RowToRecord>) {
        self.rows_to_record.append(rows_to_record);
    }

    /// Hands over outcomes of claimed rows.
    pub fn finish(&mut self, finished: &mut Vec<Finished>) {
        self.finished.append(finished);
    }

    /// Returns whether a claim may be requested. Only one claim runs at a time.
    pub fn may_claim(&self) -> bool {
        self.claims.is_none()
    }

    /// Requests the next rows of parked keys.
    pub fn claim(&mut self, claiming: ClaimRequest) {
        self.claims = Some(claiming);
    }

    /// Requests a page of rows that were recorded before this session, starting at `from`.
    pub fn read_recorded(&mut self, from: Position) {
        self.recorded_from = Some(from);
    }

    /// Returns whether due keys are queried next, unless a more urgent command is pending.
    pub fn is_due_query_next(&self) -> bool {
        self.due_at <= Instant::now()
    }

    /// Sets the topics whose due keys need no query.
    pub fn leave_out(&mut self, topics: Vec<Topic>) {
        self.paused_topics = topics;
    }

    /// Repeats the query for due keys at once: more keys were due than it returned, and there is
    /// capacity for them.
    pub fn requery_due_keys(&mut self) {
        self.due_at = Instant::now();
    }

    /// Starts or stops the periodic query for spilled rows that were committed before this
    /// position.
    pub fn query_spilled_before(&mut self, before: Option<Lsn>) {
        self.spilled_query_before = before;
    }

    /// Starts the same query, and queries the due keys of every topic, because a goal waits for all
    /// of them.
    pub fn query_all_spilled_before(&mut self, before: Option<Lsn>) {
        self.leave_out(Vec::new());
        self.query_spilled_before(before);
    }

    /// Checks the publication soon, because a confirmation waits for it.
    pub fn watch_soon(&mut self) {
        self.watch_at = self.watch_at.min(self.watched_at + self.intervals.watch_soon);
    }

    pub fn settled(&mut self, settled: Watermark, in_flight: InFlight) {
        self.record.settled(settled, in_flight, Instant::now());
    }

    pub fn noted(&self) -> Watermark {
        self.record.noted()
    }

    /// Returns whether no command is running and no row or outcome is pending.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
            && self.rows_to_record.is_empty()
            && self.finished.is_empty()
    }

    /// Returns the next result of a command.
    ///
    /// # Errors
    ///
    /// The server is shutting down, or dispatch state can no longer be used. Other failures are
    /// logged and retried.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the running command lives in `self`.
    pub async fn next(&mut self) -> Result<DispatchEvent, StoreFailure> {
        loop {
            if let State::Running(running) = &mut self.state {
                let (store, recorded) = running.await;
                return self.ended(store, recorded);
            }
            match self.next_command() {
                Some(command) => self.start(command),
                None if self.notified_before(self.next_interval()).await => {
                    // The operator may have changed any topic, so all are queried at once.
                    self.paused_topics.clear();
                    self.due_at = Instant::now();
                }
                None => {}
            }
        }
    }

    /// Waits until the given time. Returns true if an operator reports a change before that.
    async fn notified_before(&mut self, until: Instant) -> bool {
        let State::Idle(store) = &mut self.state else { return false };
        tokio::select! {
            biased;
            () = store.notice() => true,
            () = self.health.news() => false,
            () = sleep_until(until) => false,
        }
    }

    /// Ends the session: finishes the running command within a time limit, and records the
    /// watermark. Returns the recorded position.
    pub async fn close(mut self, limit: Duration) -> Watermark {
        if tokio::time::timeout(limit, self.write_last()).await.is_err() {
            tracing::debug!("dispatch state did not answer at the end of the session");
        }
        self.noted()
    }

    async fn write_last(&mut self) {
        self.end_running().await;
        let Self { state: State::Idle(store), record, health, .. } = self else { return };
        while let Some(watermark) = record.unwritten() {
            match store.note_settled(watermark.lsn(), health.take_published()).await {
                Ok(()) => record.written(watermark, Instant::now()),
                Err(error @ StoreFailure::Unavailable(_)) => {
                    tracing::debug!(%error, "the watermark was not written down; trying again");
                    sleep(CLOSE_PAUSE).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the watermark was not written down");
                    return;
                }
            }
        }
    }

    fn ended(
        &mut self,
        store: S,
        recorded: Result<DispatchEvent, StoreFailure>,
    ) -> Result<DispatchEvent, StoreFailure> {
        self.state = State::Idle(store);
        let now = Instant::now();
        match &recorded {
            Ok(DispatchEvent::Settled(watermark)) => self.record.written(*watermark, now),
            // A command that no row waits for has failed. It may have been the write of the
            // watermark.
            Ok(DispatchEvent::Noted) => self.record.failed(now),
            // These commands run in steps, so that rows to record wait for at most one step.
            Ok(DispatchEvent::Due(due)) if due.has_more => self.due_at = now,
            Ok(DispatchEvent::Surveyed(survey)) if survey.is_counting => {
                self.survey_at = now + COUNT_PAUSE;
            }
            Ok(DispatchEvent::Pruned(1..)) => self.prune_at = now + PRUNE_PAUSE,
            Ok(DispatchEvent::Heads(heads)) if heads.len() >= HEADS_MAX => {
                self.heads_after = heads.last().cloned();
                self.heads_at = now;
            }
            Ok(_) | Err(_) => {}
        }
        recorded
    }

    /// Checks the publication a last time within a time limit, because the session is over.
    pub async fn look(&mut self, limit: Duration) -> Option<PublicationCheck> {
        let looking = async {
            self.end_running().await;
            match &mut self.state {
                State::Idle(store) => store.watch().await.ok(),
                State::Running(_) | State::Between => None,
            }
        };
        tokio::time::timeout(limit, looking).await.ok().flatten()
    }

    /// Notes the condition within a time limit, because the session is over. `status` shows it while
    /// no relay streams.
    pub async fn note_condition(&mut self, limit: Duration) {
        let noting = async {
            self.end_running().await;
            if let State::Idle(store) = &mut self.state
                && let Some(condition) = self.health.condition_to_note()
                && let Err(error) = store.note_condition(&condition).await
            {
                tracing::debug!(%error, "the condition is not noted");
            }
        };
        if tokio::time::timeout(limit, noting).await.is_err() {
            tracing::debug!("dispatch state did not answer at the end of the session");
        }
    }

    async fn end_running(&mut self) {
        while let State::Running(running) = &mut self.state {
            let (store, recorded) = running.await;
            // The session that would use any other result is over.
            drop(self.ended(store, recorded));
        }
    }

    /// Returns the next command in order of urgency. A short check of the publication comes first,
    /// because a confirmation waits for it. The settled position is next, because the slot is
    /// confirmed no further. Then come a page of recorded rows, for which reading waits, and
    /// outcomes, so that a claim finds them written. Rows follow, because they retain WAL.
    fn next_command(&mut self) -> Option<StoreCommand> {
        let now = Instant::now();
        if self.watch_at <= now {
            self.watched_at = now;
            self.watch_at = now + self.intervals.watch;
            return Some(StoreCommand::Watch);
        }
        if let Some(watermark) = self.record.take_due(now) {
            return Some(StoreCommand::NoteSettled(watermark, self.health.take_published()));
        }
        if self.health.has_condition_change() && self.condition_at <= now {
            self.condition_at = now + CONDITION_PAUSE;
            if let Some(condition) = self.health.condition_to_note() {
                return Some(StoreCommand::NoteCondition(condition));
            }
        }
        if let Some(from) = self.recorded_from.take() {
            return Some(StoreCommand::Recorded(from));
        }
        if !self.finished.is_empty() {
            let count = self.finished.len().min(FINISH_ROWS_MAX);
            return Some(StoreCommand::Finish(self.finished.drain(..count).collect()));
        }
        if !self.rows_to_record.is_empty() {
            let count = self.rows_to_record.len().min(PARK_ROWS_MAX);
            return Some(StoreCommand::Park(self.rows_to_record.drain(..count).collect()));
        }
        if let Some(claiming) = self.claims.take() {
            return Some(StoreCommand::Claim(claiming));
        }
        if self.due_at <= now {
            self.due_at = now + self.intervals.due;
            return Some(StoreCommand::Due(std::mem::take(&mut self.paused_topics)));
        }
        if let Some(before) = self.spilled_query_before.filter(|_| self.spilled_at <= now) {
            self.spilled_at = now + self.intervals.due;
            return Some(StoreCommand::Spilled(before));
        }
        if self.heads_at <= now {
            self.heads_at = now + self.intervals.heads;
            return Some(StoreCommand::Heads(self.heads_after.take()));
        }
        if self.survey_at <= now {
            self.survey_at = now + self.intervals.survey;
            return Some(StoreCommand::Survey);
        }
        if self.prune_at <= now {
            self.prune_at = now + self.intervals.prune;
            return Some(StoreCommand::Prune);
        }
        None
    }

    fn next_interval(&self) -> Instant {
        let settle_at = self.record.due_at().unwrap_or(self.due_at);
        let always = [settle_at, self.heads_at, self.survey_at, self.watch_at, self.prune_at];
        let spilled_at = self.spilled_query_before.map(|_| self.spilled_at);
        let condition_at = self.health.has_condition_change().then_some(self.condition_at);
        always.into_iter().chain(spilled_at).chain(condition_at).fold(self.due_at, Instant::min)
    }

    fn start(&mut self, command: StoreCommand) {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Idle(store) => {
                let told = (self.intervals.retention, self.health.clone());
                self.state = State::Running(Box::pin(run_with_retries(store, command, told)));
            }
            State::Running(_) | State::Between => panic!("I2: two commands at once"),
        }
    }
}

impl<S> std::fmt::Debug for DispatchWriter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("rows_to_record", &self.rows_to_record.len())
            .field("finished", &self.finished.len())
            .finish_non_exhaustive()
    }
}

//! What is written to dispatch state and read back, one command at a time.
//!
//! Owns the store. Promises that rows become durable in the order they were handed over, that a
//! command is repeated until it succeeds, and that outcomes are written before the next rows of
//! their key are claimed. The pipeline never waits for it.

use std::pin::Pin;
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::time::{Instant, sleep, sleep_until};
use walrelay_core::{Finished, RowToRecord, Topic, Watermark};
use walrelay_outbox_store::{HEADS_MAX, Head, Store, StoreFailure, Watch};

use crate::observe::health::Health;
use crate::stream::record::{InFlight, Record, RecordIntervals};
pub use crate::stream::store_command::{Claiming, RecorderEvent};
use crate::stream::store_command::{StoreCommand, until_done};

/// Rows recorded by one command: a quarter of those that may be in flight, so that others are read
/// meanwhile, and enough that the commit costs little.
const PARK_ROWS_MAX: usize = 5_000;

/// Between two steps of a count of a large table.
const COUNT_PAUSE: Duration = Duration::from_millis(250);

/// Between two steps of a clean-up.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);

/// Between two notes of the condition: one topic that is refused and stored in turn changes it with each.
const CONDITION_PAUSE: Duration = Duration::from_secs(1);

type Running<S> = Pin<Box<dyn Future<Output = (S, Result<RecorderEvent, StoreFailure>)> + Send>>;

enum State<S> {
    Idle(S),
    Running(Running<S>),
    /// Seen only while one state is replaced by the other.
    Between,
}

/// How often to do what no event triggers.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// Looking for keys that time made due, or an operator who said nothing.
    pub due: Duration,
    /// Looking through the heads of all keys.
    pub heads: Duration,
    /// Writing the watermark down.
    pub record: RecordIntervals,
    /// Counting rows and measuring lag.
    pub survey: Duration,
    /// Looking at the publication when nothing waits for it.
    pub watch: Duration,
    /// Looking at it when a confirmation waits.
    pub watch_soon: Duration,
    /// Deleting what is past its retention.
    pub prune: Duration,
    /// `--dispatch-retention`.
    pub retention: Duration,
}

impl Intervals {
    /// The service's intervals, with this retention.
    #[must_use]
    pub const fn with_retention(retention: Duration) -> Self {
        Self {
            due: Duration::from_secs(1),
            heads: Duration::from_secs(30),
            record: RecordIntervals {
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

/// Between tries to write the watermark down one last time.
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// Runs the store's commands one after the other.
pub struct Recorder<S> {
    state: State<S>,
    intervals: Intervals,
    rows_to_record: Vec<RowToRecord>,
    finished: Vec<Finished>,
    claims: Option<Claiming>,
    /// Where a page of recorded rows begins that was asked for.
    recorded_from: Option<Position>,
    /// Topics whose due keys are not asked for, as they were told last.
    topics_at_rest: Vec<Topic>,
    record: Record,
    /// Learns which commands fail, and whose condition is noted.
    health: Health,
    /// The condition is not noted before.
    condition_at: Instant,
    due_at: Instant,
    heads_at: Instant,
    /// Where the look through the heads goes on.
    heads_after: Option<Head>,
    /// Before where spilled rows are looked for, if they are.
    spilled_before: Option<Lsn>,
    spilled_at: Instant,
    survey_at: Instant,
    watched_at: Instant,
    watch_at: Instant,
    prune_at: Instant,
}

impl<S: Store> Recorder<S> {
    /// A recorder with nothing to do yet.
    pub fn new(store: S, intervals: Intervals) -> Self {
        let now = Instant::now();
        Self {
            state: State::Idle(store),
            intervals,
            rows_to_record: Vec::new(),
            finished: Vec::new(),
            claims: None,
            recorded_from: None,
            topics_at_rest: Vec::new(),
            record: Record::new(now, intervals.record),
            health: Health::new(),
            condition_at: now,
            due_at: now,
            heads_at: now + intervals.heads,
            heads_after: None,
            spilled_before: None,
            spilled_at: now,
            survey_at: now,
            watched_at: now,
            watch_at: now,
            prune_at: now + intervals.prune,
        }
    }

    /// The same, reporting what fails here, and noting the condition in the relay's own row.
    #[must_use]
    pub fn reporting_to(self, health: Health) -> Self {
        health.begin_noting();
        Self { health, ..self }
    }

    /// Hands rows over that must be recorded.
    pub fn park(&mut self, rows_to_record: &mut Vec<RowToRecord>) {
        self.rows_to_record.append(rows_to_record);
    }

    /// Hands outcomes over.
    pub fn finish(&mut self, finished: &mut Vec<Finished>) {
        self.finished.append(finished);
    }

    /// Whether keys may be handed over for claiming: one claim is out at a time.
    pub fn may_claim(&self) -> bool {
        self.claims.is_none()
    }

    /// Asks for the next rows of parked keys.
    pub fn claim(&mut self, claiming: Claiming) {
        self.claims = Some(claiming);
    }

    /// Asks which rows from there on were recorded before this session.
    pub fn read_recorded(&mut self, from: Position) {
        self.recorded_from = Some(from);
    }

    /// Whether due keys are looked for next, once nothing more urgent is to do.
    pub fn looks_for_due(&self) -> bool {
        self.due_at <= Instant::now()
    }

    /// Learns whose due keys need not be looked for.
    pub fn leave_out(&mut self, topics: Vec<Topic>) {
        self.topics_at_rest = topics;
    }

    /// More keys were due than were told, and there is room for them: looks again at once.
    pub fn look_again(&mut self) {
        self.due_at = Instant::now();
    }

    /// Asks again and again whether spilled rows wait that were committed before; or not any more.
    pub fn look_for_spilled(&mut self, before: Option<Lsn>) {
        self.spilled_before = before;
    }

    /// The same, with the due keys of every topic looked for: a goal waits for all of them.
    pub fn look_for_all_spilled(&mut self, before: Option<Lsn>) {
        self.leave_out(Vec::new());
        self.look_for_spilled(before);
    }

    /// A confirmation waits for a look at the publication.
    pub fn watch_soon(&mut self) {
        self.watch_at = self.watch_at.min(self.watched_at + self.intervals.watch_soon);
    }

    /// Learns how far the slot is settled, and whether rows are in flight beyond it.
    pub fn settled(&mut self, settled: Watermark, in_flight: InFlight) {
        self.record.settled(settled, in_flight, Instant::now());
    }

    /// How far the slot is settled and that is on record: it may be confirmed.
    pub fn noted(&self) -> Watermark {
        self.record.noted()
    }

    /// Whether nothing that matters is unwritten.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
            && self.rows_to_record.is_empty()
            && self.finished.is_empty()
    }

    /// The next result of a command.
    ///
    /// # Errors
    ///
    /// The server is shutting down. Every other failure is logged and tried again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the running command lives in `self`.
    pub async fn next(&mut self) -> Result<RecorderEvent, StoreFailure> {
        loop {
            if let State::Running(running) = &mut self.state {
                let (store, recorded) = running.await;
                return self.ended(store, recorded);
            }
            match self.next_command() {
                Some(command) => self.start(command),
                None if self.was_told_until(self.next_interval()).await => {
                    // Whatever the operator changed, and of whatever topic, is looked for at once.
                    self.topics_at_rest.clear();
                    self.due_at = Instant::now();
                }
                None => {}
            }
        }
    }

    /// Whether an operator says by then that he has changed something.
    async fn was_told_until(&mut self, until: Instant) -> bool {
        let State::Idle(store) = &mut self.state else { return false };
        tokio::select! {
            biased;
            () = store.notice() => true,
            () = self.health.news() => false,
            () = sleep_until(until) => false,
        }
    }

    /// Ends the session: finishes the running command within a limited time, and records the watermark.
    /// Returns how far it is on record.
    pub async fn close(mut self, limit: Duration) -> Watermark {
        if tokio::time::timeout(limit, self.write_last()).await.is_err() {
            tracing::debug!("dispatch state did not answer at the end of the session");
        }
        self.noted()
    }

    async fn write_last(&mut self) {
        self.end_running().await;
        let Self { state: State::Idle(store), record, .. } = self else { return };
        while let Some(watermark) = record.unwritten() {
            match store.note_settled(watermark.lsn()).await {
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
        recorded: Result<RecorderEvent, StoreFailure>,
    ) -> Result<RecorderEvent, StoreFailure> {
        self.state = State::Idle(store);
        let now = Instant::now();
        match &recorded {
            Ok(RecorderEvent::Settled(watermark)) => self.record.written(*watermark, now),
            // A command that nobody waits for has failed: perhaps this one.
            Ok(RecorderEvent::Noted) => self.record.failed(now),
            // A step of each at a time, so that rows to record never wait for more than one.
            Ok(RecorderEvent::Due(due)) if due.has_more => self.due_at = now,
            Ok(RecorderEvent::Surveyed(survey)) if survey.is_counting => {
                self.survey_at = now + COUNT_PAUSE;
            }
            Ok(RecorderEvent::Pruned(1..)) => self.prune_at = now + PRUNE_PAUSE,
            Ok(RecorderEvent::Heads(heads)) if heads.len() >= HEADS_MAX => {
                self.heads_after = heads.last().cloned();
                self.heads_at = now;
            }
            Ok(_) | Err(_) => {}
        }
        recorded
    }

    /// A last look at the publication, for a limited time: the session is over.
    pub async fn look(&mut self, limit: Duration) -> Option<Watch> {
        let looking = async {
            self.end_running().await;
            match &mut self.state {
                State::Idle(store) => store.watch().await.ok(),
                State::Running(_) | State::Between => None,
            }
        };
        tokio::time::timeout(limit, looking).await.ok().flatten()
    }

    async fn end_running(&mut self) {
        while let State::Running(running) = &mut self.state {
            let (store, recorded) = running.await;
            // Whatever else it came to, the session that would use it is over.
            drop(self.ended(store, recorded));
        }
    }

    /// What is settled is written down when it is time, whatever else is to do: the slot is confirmed no
    /// further. So is a short look at the publication, which it waits for, and a page of recorded rows,
    /// for which reading waits. Then outcomes, so that a claim finds them written; then rows, for they
    /// hold the slot.
    fn next_command(&mut self) -> Option<StoreCommand> {
        let now = Instant::now();
        if self.watch_at <= now {
            self.watched_at = now;
            self.watch_at = now + self.intervals.watch;
            return Some(StoreCommand::Watch);
        }
        if let Some(watermark) = self.record.take_due(now) {
            return Some(StoreCommand::NoteSettled(watermark));
        }
        if self.health.has_news() && self.condition_at <= now {
            self.condition_at = now + CONDITION_PAUSE;
            if let Some(condition) = self.health.condition_to_note() {
                return Some(StoreCommand::NoteCondition(condition));
            }
        }
        if let Some(from) = self.recorded_from.take() {
            return Some(StoreCommand::Recorded(from));
        }
        if !self.finished.is_empty() {
            return Some(StoreCommand::Finish(std::mem::take(&mut self.finished)));
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
            return Some(StoreCommand::Due(std::mem::take(&mut self.topics_at_rest)));
        }
        if let Some(before) = self.spilled_before.filter(|_| self.spilled_at <= now) {
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
        let spilled_at = self.spilled_before.map(|_| self.spilled_at);
        let condition_at = self.health.has_news().then_some(self.condition_at);
        always.into_iter().chain(spilled_at).chain(condition_at).fold(self.due_at, Instant::min)
    }

    fn start(&mut self, command: StoreCommand) {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Idle(store) => {
                let told = (self.intervals.retention, self.health.clone());
                self.state = State::Running(Box::pin(until_done(store, command, told)));
            }
            State::Running(_) | State::Between => panic!("I2: two commands at once"),
        }
    }
}

impl<S> std::fmt::Debug for Recorder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("rows_to_record", &self.rows_to_record.len())
            .field("finished", &self.finished.len())
            .finish_non_exhaustive()
    }
}

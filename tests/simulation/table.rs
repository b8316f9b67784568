//! Dispatch state in memory, with the semantics of `outbox-store`. Commands are delayed and fail at random.

mod heads;
mod held;
mod holds;
mod keys;
mod operation;
mod operator;
mod recorded;
mod reset_state;
mod spilled;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::time::{Instant, sleep};
use walrelay_core::{
    ClaimAnswer, ClaimKey, FailureCause, Finished, Message, OnDead, Outcome, RecordReason,
    RowToRecord, Topic,
};
use walrelay_outbox_store::{
    Due, HOLDS_MAX, Head, ParkedKey, PublicationCheck, RecordedPage, SlotFigures, Store,
    StoreFailure,
};
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use crate::judge::{Event, Judge, RowNumber, Status};
use crate::pubsub::number_of;
pub(crate) use held::HeldKey;
use held::Hold;
use reset_state::Reset;

/// The fault rates of commands in per mille, and the longest latency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Intervals {
    pub(crate) latency_max: Duration,
    pub(crate) fails_before: u64,
    pub(crate) fails_after: u64,
    /// How many commands of an ended session still take effect, in per mille.
    pub(crate) done_late: u64,
}

impl Intervals {
    pub(crate) const HEALTHY: Self = Self {
        latency_max: Duration::from_millis(10),
        fails_before: 0,
        fails_after: 0,
        done_late: 0,
    };
}

#[derive(Debug)]
struct Entry {
    row: RowNumber,
    topic: String,
    key: String,
    body: Vec<u8>,
    status: Status,
    attempts: u32,
    next_attempt: Option<Instant>,
    version: u64,
    updated: Instant,
    /// Spilled because of retained WAL. The row is read without a lease, and deleted once stored.
    is_spilled: bool,
    source: Source,
}

/// The origin of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Slot,
    Replay,
}

impl Entry {
    fn event_id(&self) -> String {
        match self.source {
            Source::Slot => format!("e{}", self.row),
            Source::Replay => format!("r{}", self.row),
        }
    }
}

struct State {
    entries: BTreeMap<Place, Entry>,
    versions: u64,
    seed: Seed,
    intervals: Intervals,
    down_until: Option<Instant>,
    late: Vec<Vec<NewEntry>>,
    /// The keys that processes with a planted bug read before they had the slot.
    read_early: HashMap<u64, Vec<ParkedKey>>,
    /// The settled position on record.
    settled: u64,
    /// Keys that a replay holds or will hold.
    holds: BTreeMap<Key, Hold>,
    /// The time at which a hold of a key was last requested or lifted.
    hold_changed_at: BTreeMap<Key, Instant>,
    /// An unfinished reset.
    reset: Option<Reset>,
    /// Raised by each operation on the slot. Sessions of an older generation can no longer write.
    generation: u64,
}

/// Topic and ordering key.
type Key = (String, String);

/// Commit position, index, and the unique number of a replayed row. The number of an original row
/// is 0.
pub(super) type Place = (u64, u32, RowNumber);

type NewEntry = (Place, Entry);

/// The table. Clones share its state.
#[derive(Clone)]
pub(crate) struct Table {
    state: Arc<Mutex<State>>,
    judge: Judge,
    server: ScriptedServer,
    rules: Rules,
}

/// The constants of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) on_dead: OnDead,
    pub(crate) per_key_rows: usize,
    pub(crate) lease: Duration,
    /// The maximum number of rows per page of recorded rows.
    pub(crate) recorded_page: u32,
    /// Rows at this position and later wait until a recovery is finished.
    pub(crate) before: u64,
}

/// The time after which a key is checked again if another session held its rows.
const HELD_PAUSE: Duration = Duration::from_secs(1);

impl Table {
    pub(crate) fn new(
        rules: Rules,
        intervals: Intervals,
        seed: Seed,
        judge: Judge,
        server: ScriptedServer,
    ) -> Self {
        let state = State {
            entries: BTreeMap::new(),
            versions: 0,
            seed,
            intervals,
            down_until: None,
            late: Vec::new(),
            read_early: HashMap::new(),
            settled: 0,
            holds: BTreeMap::new(),
            hold_changed_at: BTreeMap::new(),
            reset: None,
            generation: 1,
        };
        Self { state: Arc::new(Mutex::new(state)), judge, server, rules }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn goes_down(&self, until: Instant) {
        self.state().down_until = Some(until);
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.intervals = Intervals::HEALTHY;
        state.down_until = None;
    }

    /// Applies commands of ended sessions that the server had already begun.
    pub(crate) fn apply_late_commands(&self) {
        let late = std::mem::take(&mut self.state().late);
        for rows in late {
            rows.iter().for_each(|(_, entry)| self.judge.recorded_late(entry.row));
            self.insert(rows);
        }
    }

    /// Runs one command, which takes a while, and may fail before or after its effect.
    pub(crate) async fn command<T>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> T,
    ) -> Result<T, StoreFailure> {
        let (before, after, is_failing) = {
            let mut state = self.state();
            let Intervals { latency_max, fails_before, .. } = state.intervals;
            let is_down = state.down_until.is_some_and(|until| until > Instant::now());
            let is_failing = is_down || state.seed.chance(fails_before);
            let before = state.seed.time(Duration::ZERO, latency_max);
            (before, state.seed.time(Duration::ZERO, latency_max), is_failing)
        };
        sleep(before).await;
        if self.server.is_stopping() {
            return Err(StoreFailure::ShuttingDown);
        }
        if is_failing || !self.server.is_up() || self.server.is_in_recovery() {
            self.judge.note(Event::TableFailed { command: name, applied: false });
            return Err(unavailable());
        }
        let done = run();
        sleep(after).await;
        let fails_after = {
            let mut state = self.state();
            let per_mille = state.intervals.fails_after;
            state.seed.chance(per_mille)
        };
        if fails_after {
            self.judge.note(Event::TableFailed { command: name, applied: true });
            return Err(unavailable());
        }
        Ok(done)
    }

    fn insert(&self, rows: Vec<NewEntry>) {
        let mut state = self.state();
        for (position, mut entry) in rows {
            if state.entries.contains_key(&position) {
                continue;
            }
            state.versions += 1;
            entry.version = state.versions;
            let mut before = state.retrying(&entry.topic, &entry.key);
            let is_head = before.next().is_none_or(|(head, _)| position < *head);
            drop(before);
            if position.0 >= self.rules.before {
                entry.next_attempt = None;
            } else if is_head && entry.status == Status::Retrying {
                entry.next_attempt.get_or_insert_with(Instant::now);
            }
            self.judge.recorded(entry.row, entry.status);
            state.entries.insert(position, entry);
        }
    }

    /// Returns every row in order: commit position, status, attempts, and the time until it is due.
    pub(crate) fn contents(&self) -> Vec<(u64, Status, u32, Option<Duration>)> {
        let (state, now) = (self.state(), Instant::now());
        let entries = state.entries.iter().map(|((commit_lsn, ..), entry)| {
            let due_in = entry.next_attempt.map(|at| at.saturating_duration_since(now));
            (*commit_lsn, entry.status, entry.attempts, due_in)
        });
        entries.collect()
    }
}

const fn is_open(status: Status) -> bool {
    matches!(status, Status::Retrying | Status::Dead)
}

fn position((commit_lsn, tx_index, _): Place) -> Position {
    Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
}

fn place_of(message: &Message) -> Place {
    let Position { commit_lsn, tx_index } = message.position();
    let is_replayed = message.event_id().starts_with('r');
    let number = if is_replayed { number_of(message.event_id()) } else { 0 };
    (commit_lsn.as_u64(), tx_index, number)
}

fn unavailable() -> StoreFailure {
    StoreFailure::Unavailable("made up".into())
}

/// One session's connection to the table, with its claims.
pub(crate) struct SessionTable {
    table: Table,
    process: u64,
    /// The generation on record, read before the check for an operation on record.
    generation: u64,
    /// The version of each claimed row at its claim, by position.
    claims: HashMap<Place, u64>,
    /// The position before which everything is recorded and confirmed, as far as this session
    /// knows.
    past: u64,
    /// The keys to hold for a replay, as last read.
    wanted: Vec<Key>,
    /// A planted bug.
    forgets_holds: bool,
}

impl SessionTable {
    pub(crate) fn new(table: Table, process: u64) -> Self {
        let (generation, claims) = (table.generation(), HashMap::new());
        let wanted = Vec::new();
        Self { table, process, generation, claims, past: 0, wanted, forgets_holds: false }
    }

    /// Returns the same connection for a session that began its start at this generation.
    pub(crate) fn of_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    fn refuse_other_generation(&self) -> Result<(), StoreFailure> {
        match self.table.generation() == self.generation {
            true => Ok(()),
            false => Err(StoreFailure::OtherHistory("the record is of another generation")),
        }
    }

    /// Plants a bug: the session does not learn which keys are held.
    pub(crate) fn forget_holds(&mut self) {
        self.forgets_holds = true;
    }

    fn entry(&self, row_to_record: &RowToRecord) -> NewEntry {
        let now = Instant::now();
        let message = &row_to_record.message;
        let key = message.ordering_key().to_owned();
        let delay = row_to_record.reason.next_attempt_in();
        let status = match &row_to_record.reason {
            RecordReason::Dead { .. } => Status::Dead,
            RecordReason::Stuck { .. } | RecordReason::Spilled { .. } | RecordReason::Queued => {
                Status::Retrying
            }
        };
        let next_attempt = match (status, key.is_empty()) {
            (Status::Retrying, true) => Some(now + delay.unwrap_or_default()),
            (Status::Retrying, false) => delay.map(|delay| now + delay),
            (Status::Dead | Status::Published | Status::Discarded, _) => None,
        };
        let entry = Entry {
            row: number_of(message.event_id()),
            topic: message.topic().to_string(),
            key,
            body: message.body().to_vec(),
            status,
            attempts: 0,
            next_attempt,
            version: 0,
            updated: now,
            is_spilled: matches!(row_to_record.reason, RecordReason::Spilled { .. }),
            source: Source::Slot,
        };
        (place_of(message), entry)
    }

    /// Writes one outcome, if its claim is still valid.
    fn finish_one(&self, finished: &Finished) {
        let at = place_of(&finished.message);
        let now = Instant::now();
        let mut state = self.table.state();
        let State { entries, versions, .. } = &mut *state;
        let Some(entry) = entries.get_mut(&at) else { return };
        let stands = self.claims.get(&at) == Some(&entry.version);
        if !stands || entry.status != Status::Retrying {
            return;
        }
        match &finished.outcome {
            Outcome::Published { .. } if entry.is_spilled && at.0 < self.past => {
                self.table.judge.recorded(entry.row, Status::Published);
                entries.remove(&at);
                return;
            }
            Outcome::Again { failure: None, .. } if entry.is_read_without_lease() => return,
            Outcome::Published { .. } | Outcome::Again { .. } | Outcome::Dead { .. } => {}
        }
        *versions += 1;
        entry.version = *versions;
        entry.updated = now;
        entry.next_attempt = None;
        entry.is_spilled &= !matches!(
            finished.outcome,
            Outcome::Dead { .. }
                | Outcome::Again { failure: Some(_), blame: FailureCause::Row, .. }
        );
        match &finished.outcome {
            Outcome::Published { .. } => {
                entry.status = Status::Published;
                entry.attempts += 1;
            }
            Outcome::Dead { attempts, .. } => {
                entry.status = Status::Dead;
                entry.attempts = *attempts;
            }
            Outcome::Again { attempts, after, failure, .. } => {
                if failure.is_some() {
                    entry.attempts = *attempts;
                }
                let delay = after.filter(|_| failure.is_some());
                entry.next_attempt = match entry.key.is_empty() {
                    true => Some(now + delay.unwrap_or_default()),
                    false => delay.map(|delay| now + delay),
                };
            }
        }
        self.table.judge.recorded(entry.row, entry.status);
    }
}

/// Rows being written. The server may still write them after the caller is gone.
struct Writing {
    table: Table,
    rows: Vec<NewEntry>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let mut state = self.table.state();
        let per_mille = state.intervals.done_late;
        if !rows.is_empty() && state.seed.chance(per_mille) {
            state.late.push(rows);
        }
    }
}

impl Store for SessionTable {
    async fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        let (table, process, tells_holds) = (self.table.clone(), self.process, !self.forgets_holds);
        let read = || {
            let mut state = table.state();
            let early = state.read_early.remove(&process);
            early.unwrap_or_else(|| {
                let mut keys = state.parked_keys(table.rules);
                keys.extend(state.held_keys().into_iter().filter(|_| tells_holds));
                keys
            })
        };
        let parked = table.command("parked keys", read).await?;
        self.refuse_other_generation()?;
        self.wanted = table.state().wanted_holds(HOLDS_MAX as usize);
        self.past = self.past.max(table.past());
        let count = parked.len();
        parked.into_iter().for_each(each);
        Ok(count)
    }

    async fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> Result<RecordedPage, StoreFailure> {
        let Rules { on_dead, recorded_page, .. } = self.table.rules;
        let rows_max = rows_max.min(recorded_page);
        let read = || self.table.state().recorded_from(on_dead, from, rows_max);
        self.table.command("recorded rows", read).await
    }

    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        let rows = rows_to_record.iter().map(|row_to_record| self.entry(row_to_record)).collect();
        let mut writing = Writing { table: self.table.clone(), rows };
        let (table, process) = (self.table.clone(), self.process);
        let write = || {
            if table.judge.is_superseded(process) {
                writing.rows.iter().for_each(|(_, entry)| table.judge.recorded_late(entry.row));
            }
            table.insert(std::mem::take(&mut writing.rows));
        };
        let written = table.command("park", write).await;
        // The command failed before its effect.
        writing.rows.clear();
        written
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        let table = self.table.clone();
        table.command("finish", || finished.iter().for_each(|row| self.finish_one(row))).await?;
        for row in finished {
            self.claims.remove(&place_of(&row.message));
        }
        Ok(())
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        let table = self.table.clone();
        let rules = table.rules;
        // A session that no longer streams does not answer.
        if !self.wanted.is_empty() && !table.judge.is_superseded(self.process) {
            let wanted = &self.wanted;
            table.command("answer holds", || table.answer_holds(keys, wanted, through)).await?;
        }
        let lease = || table.state().lease(rules, keys, bytes_max / 3);
        let chosen = table.command("claim", lease).await?;
        // Queried after the claim, as in production.
        let held: Vec<Option<Duration>> = table
            .command("held", || {
                let state = table.state();
                let parked = state.keys(rules, |_| true);
                keys.iter().map(|key| state.held_for(rules, key, &parked)).collect()
            })
            .await?;
        let mut answers = Vec::new();
        for ((key, rows), held_for) in keys.iter().zip(chosen).zip(held) {
            let rows =
                rows.into_iter().map(|at| self.claimed(key, at)).collect::<Result<_, _>>()?;
            answers.push(match rows {
                rows if Vec::is_empty(&rows) => ClaimAnswer { rows, held_for },
                rows => ClaimAnswer { rows, held_for: None },
            });
        }
        Ok(answers)
    }

    async fn due_keys(&mut self, except: &[Topic]) -> Result<Due, StoreFailure> {
        let table = self.table.clone();
        let due = || {
            let state = table.state();
            let now = Instant::now();
            let is_due = |entry: &Entry| {
                let is_wanted = except.iter().all(|topic| **topic != *entry.topic);
                is_wanted && is_open(entry.status) && entry.next_attempt.is_some_and(|at| at <= now)
            };
            let keys = state.keys(table.rules, is_due);
            let is_claimable = |(topic, key): &(String, String)| {
                !state.claimable(table.rules, topic, key).is_empty()
            };
            let keys = keys.into_iter().filter(is_claimable);
            (keys.collect::<Vec<_>>(), state.wanted_holds(HOLDS_MAX as usize))
        };
        let (keys, wanted) = table.command("due keys", due).await?;
        self.wanted = wanted;
        let keys = keys.into_iter().chain(self.wanted.iter().cloned());
        let keys = keys.map(|(topic, key)| (Topic::from(topic), key)).collect();
        Ok(Due { keys, has_more: false })
    }

    async fn has_spilled_before(&mut self, end: Lsn) -> Result<bool, StoreFailure> {
        let table = self.table.clone();
        let rules = table.rules;
        table.command("spilled", || table.state().has_spilled_before(rules, end)).await
    }

    async fn heads_after(&mut self, after: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        self.table.command("heads", || self.table.state().heads_after(after)).await
    }

    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        let up_to = Lsn::new(self.table.server.wal_end());
        self.table.command("watch", || self.refuse_other_generation()).await??;
        Ok(PublicationCheck::Intact { up_to, unpublished: None })
    }

    async fn note_settled(&mut self, settled: Lsn, _: u64) -> Result<(), StoreFailure> {
        let (table, generation) = (self.table.clone(), self.generation);
        table.command("note settled", || table.note_settled(settled.as_u64(), generation)).await?;
        self.refuse_other_generation()?;
        self.past = self.past.max(table.past());
        Ok(())
    }

    /// The simulated operators send no notification. The query for due keys finds their changes.
    async fn notice(&mut self) {
        std::future::pending::<()>().await;
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        self.table.command("survey", SlotFigures::default).await
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        let table = self.table.clone();
        let delete = || {
            // In production rows are retained for days, and a server writes its slots to disk every
            // few minutes.
            let confirmed = table.server.confirmed_flush_written();
            let mut state = table.state();
            let before = state.entries.len();
            state.entries.retain(|(commit_lsn, ..), entry| {
                let is_old = entry.updated.elapsed() > retention && *commit_lsn < confirmed;
                is_open(entry.status) || !is_old
            });
            (before - state.entries.len()) as u64
        };
        table.command("prune", delete).await
    }
}

impl SessionTable {
    fn claimed(&mut self, key: &ClaimKey, at: Place) -> Result<(Message, u32), StoreFailure> {
        let state = self.table.state();
        let entry = state.entries.get(&at).ok_or_else(unavailable)?;
        self.claims.insert(at, entry.version);
        self.table.judge.note(Event::Claimed { rows: vec![entry.row] });
        let (topic, event_id) = (Topic::clone(&key.topic), entry.event_id());
        let message = Message::from_encoded(topic, position(at), &event_id, &entry.body);
        Ok((message.map_err(|error| StoreFailure::Unavailable(error.into()))?, entry.attempts))
    }
}

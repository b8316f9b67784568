//! The independent judge: told what was committed, stored, recorded and confirmed, at the instant it
//! happened, and nothing else. Knows no type and no rule of the relay's code.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_testkit::walsender::Seen;

/// A row's number; its event id is this behind an `e`.
pub(crate) type RowNumber = u32;

/// What can be wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Committed, and at the end neither stored nor waiting for an operator.
    Lost,
    /// Stored before an earlier row of its key.
    Reordered,
    /// The slot was confirmed over a row that was neither stored nor recorded.
    ConfirmedEarly,
    /// The slot was confirmed beyond what the connection had been told.
    ConfirmedBeyond,
    /// The slot does not reach the end of the log although nothing is in its way.
    ConfirmedNever,
    /// A row stays in dispatch state although everything is well.
    ParkedForEver,
    /// Two requests of a key at the same time.
    TwoOutstanding,
    /// A request of several keys, of too many or too large messages.
    BadRequest,
    /// More rows read and not settled than the budget has bytes.
    OverBudget,
    /// Stored again although nothing had happened that allows it.
    Repeated,
    /// Stored with another topic, key, position or payload than it should have.
    Altered,
    /// Stored and never committed.
    Unknown,
    /// No status update for longer than the server waits.
    StatusOverdue,
    /// A database that shuts down waits for the relay.
    ShutdownBlocked,
    /// Asked to stop, or to stop when it has caught up, and it did not.
    DidNotStop,
}

/// What happened, for the story of a failing seed.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "printed, field by field, when a seed fails")]
pub(crate) enum Event {
    Committed { rows: Vec<RowNumber>, commit_lsn: Hex, end_lsn: Hex },
    Chaos(String),
    Opened { confirmed_flush: Hex, parked: usize, recorded: usize },
    SessionEnded(String),
    ProcessGone,
    Sent { call: u64, topic: String, key: String, rows: Vec<RowNumber> },
    Stored { call: u64 },
    Answered { call: u64, answer: &'static str },
    Dropped { call: u64 },
    StoredLate { call: u64 },
    Recorded { row: RowNumber, status: Status },
    Claimed { rows: Vec<RowNumber> },
    TableFailed { command: &'static str, applied: bool },
    Confirmed { flush: Hex },
}

/// A position in the log, printed as such.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// A row's state in the dispatch table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Retrying,
    Dead,
    Published,
    Discarded,
}

/// A committed row as its producer knows it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) number: RowNumber,
    pub(crate) topic: String,
    /// Empty: unordered.
    pub(crate) key: String,
    pub(crate) payload: String,
    /// Whether it can never be published.
    pub(crate) is_unroutable: bool,
    pub(crate) commit_lsn: u64,
    pub(crate) end_lsn: u64,
    pub(crate) tx_index: u32,
}

/// The rules of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Whether rows behind a dead one wait for an operator.
    pub(crate) dead_rows_hold: bool,
    /// Bytes of payload that may be read and not settled.
    pub(crate) unsettled_bytes_max: usize,
    /// Messages of one request.
    pub(crate) request_messages_max: usize,
    /// Bytes of one request, unless it holds a single message.
    pub(crate) request_bytes_max: usize,
    /// How long the server waits for a status update.
    pub(crate) status_timeout: Duration,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Asked to, with everything settled and confirmed.
    Graceful,
    /// Any other way: what was not confirmed comes again.
    Broken,
}

#[derive(Debug)]
struct RowState {
    row: Row,
    lane: Option<usize>,
    stored: u32,
    repeat: Repeat,
    recorded: Option<Status>,
    /// Rows behind it need not wait for it any more.
    is_excused: bool,
}

/// Whether something has happened after which a row may be stored once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Allowed,
    Forbidden,
}

impl RowState {
    fn is_settled(&self) -> bool {
        self.stored > 0 || self.recorded.is_some()
    }
}

/// Rows of one topic and key.
#[derive(Debug, Default)]
struct Lane {
    rows: Vec<usize>,
    /// All rows before this one are stored or excused.
    next: usize,
    outstanding: Option<u64>,
}

#[derive(Debug)]
struct Call {
    lane: Option<usize>,
    rows: Vec<usize>,
}

struct State {
    rules: Rules,
    started: Instant,
    rows: Vec<RowState>,
    by_number: BTreeMap<RowNumber, usize>,
    by_position: BTreeMap<(u64, u32), usize>,
    lanes: Vec<Lane>,
    lane_of: BTreeMap<(String, String), usize>,
    calls: BTreeMap<u64, Call>,
    calls_count: u64,
    /// Rows before this one were settled when the slot was confirmed over them.
    confirmed_rows: usize,
    unsettled: BTreeSet<usize>,
    unsettled_bytes: usize,
    /// The most there was too much. A session that ends reads on and keeps nothing, so it is held
    /// against one that still publishes.
    over_budget: usize,
    status_at: Instant,
    silence_excused_until: Instant,
    last_end: End,
    stored_count: u64,
    repeated_count: u64,
    history: Vec<(Duration, Event)>,
    findings: Vec<(Fault, String)>,
}

/// The judge of one run. Clones are the same judge.
#[derive(Clone)]
pub(crate) struct Judge(Arc<Mutex<State>>);

impl Judge {
    pub(crate) fn new(rules: Rules) -> Self {
        let started = Instant::now();
        Self(Arc::new(Mutex::new(State {
            rules,
            started,
            rows: Vec::new(),
            by_number: BTreeMap::new(),
            by_position: BTreeMap::new(),
            lanes: Vec::new(),
            lane_of: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_count: 0,
            confirmed_rows: 0,
            unsettled: BTreeSet::new(),
            unsettled_bytes: 0,
            over_budget: 0,
            status_at: started,
            silence_excused_until: started,
            last_end: End::Graceful,
            stored_count: 0,
            repeated_count: 0,
            history: Vec::new(),
            findings: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// A transaction committed; its rows in order.
    pub(crate) fn committed(&self, rows: Vec<Row>) {
        let mut state = self.state();
        let Some(first) = rows.first() else { return };
        let numbers = rows.iter().map(|row| row.number).collect();
        let (commit_lsn, end_lsn) = (Hex(first.commit_lsn), Hex(first.end_lsn));
        state.note(Event::Committed { rows: numbers, commit_lsn, end_lsn });
        rows.into_iter().for_each(|row| state.add(row));
    }

    /// A request goes out; each message as (row, key, bytes).
    pub(crate) fn sent(&self, topic: &str, messages: &[(RowNumber, String, usize)]) -> u64 {
        self.state().sent(topic, messages)
    }

    /// The messages of a request are stored.
    pub(crate) fn stored(&self, call: u64) {
        let mut state = self.state();
        state.note(Event::Stored { call });
        state.store(call);
    }

    /// A request is answered. `LostReply`: stored, and the relay is not told.
    pub(crate) fn answered(&self, call: u64, answer: Answer) {
        self.state().answered(call, answer);
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn dropped(&self, call: u64) {
        self.state().note(Event::Dropped { call });
    }

    /// A request nobody waits for is stored after all, or has come to nothing.
    pub(crate) fn landed(&self, call: u64, landing: Landing) {
        let mut state = self.state();
        if landing == Landing::Stored {
            state.note(Event::StoredLate { call });
            state.allow_repeats(call);
            state.store(call);
            state.allow_repeats(call);
        }
        state.close(call);
    }

    /// Whether a message that goes out says what its row says.
    pub(crate) fn check_content(&self, number: RowNumber, position: (u64, u32), body: &[u8]) {
        let mut state = self.state();
        // A row nobody committed is found when its request is.
        let Some(index) = state.by_number.get(&number).copied() else { return };
        let row = &state.rows[index].row;
        let holds = |wanted: &[u8]| body.windows(wanted.len()).any(|part| part == wanted);
        let place = format!("{:?}", Hex(row.commit_lsn));
        let what = if position != (row.commit_lsn, row.tx_index) || !holds(place.as_bytes()) {
            "position"
        } else if !holds(row.payload.as_bytes()) {
            "payload"
        } else {
            return;
        };
        state.find(Fault::Altered, format!("row {number}: {what}"));
    }

    /// A row's state in the dispatch table changed, durably. Retrying again after that is told too.
    pub(crate) fn recorded(&self, number: RowNumber, status: Status) {
        self.state().recorded(number, status);
    }

    /// A row was written to the table by a session that is gone.
    pub(crate) fn recorded_late(&self, number: RowNumber) {
        let mut state = self.state();
        if let Some(index) = state.by_number.get(&number).copied() {
            state.rows[index].repeat = Repeat::Allowed;
        }
    }

    /// The server's side of a connection.
    pub(crate) fn seen(&self, seen: Seen) {
        self.state().seen(seen);
    }

    /// A stall of ours, which no status update could have come through.
    pub(crate) fn silence_excused(&self, until: Instant) {
        let mut state = self.state();
        state.silence_excused_until = state.silence_excused_until.max(until);
    }

    /// The server has crashed: the slot may have forgotten what was confirmed.
    pub(crate) fn server_crashed(&self) {
        self.state().last_end = End::Broken;
    }

    pub(crate) fn session_ended(&self, end: End, how: String) {
        let mut state = self.state();
        state.note(Event::SessionEnded(how));
        state.last_end = end;
    }

    /// The process is gone: what it has out is answered to nobody.
    pub(crate) fn process_gone(&self, end: End) {
        let mut state = self.state();
        state.note(Event::ProcessGone);
        if end == End::Broken {
            state.last_end = end;
        }
        for lane in &mut state.lanes {
            lane.outstanding = None;
        }
    }

    pub(crate) fn find(&self, fault: Fault, text: impl Into<String>) {
        self.state().find(fault, text.into());
    }

    /// Whether every row is stored, or dead and rightly so, and none is on its way.
    pub(crate) fn is_done(&self) -> bool {
        self.state().rows.iter().all(|row| match row.recorded {
            Some(Status::Retrying) => false,
            Some(Status::Dead) => row.stored > 0 || row.is_excused,
            Some(Status::Discarded | Status::Published) => true,
            None => row.stored > 0,
        })
    }

    pub(crate) fn is_unroutable(&self, number: RowNumber) -> bool {
        let state = self.state();
        let index = state.by_number.get(&number);
        index.is_some_and(|index| state.rows[*index].row.is_unroutable)
    }

    /// Rows left at the end that should not be.
    pub(crate) fn check_done(&self) {
        let mut state = self.state();
        let mut found = Vec::new();
        for RowState { row, stored, recorded, is_excused, .. } in &state.rows {
            let fault = match recorded {
                Some(Status::Retrying) => Fault::ParkedForEver,
                Some(Status::Dead) if *stored == 0 && !is_excused => Fault::ParkedForEver,
                None if *stored == 0 => Fault::Lost,
                Some(_) | None => continue,
            };
            found.push((fault, format!("row {} ({recorded:?})", row.number)));
        }
        found.into_iter().for_each(|(fault, text)| state.find(fault, text));
    }

    /// Messages stored, and those beyond the first of their row.
    pub(crate) fn stored_counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.stored_count, state.repeated_count)
    }

    pub(crate) fn has_findings(&self) -> bool {
        !self.state().findings.is_empty()
    }

    pub(crate) fn findings(&self) -> Vec<(Fault, String)> {
        self.state().findings.clone()
    }

    /// The last things that happened.
    pub(crate) fn story(&self, lines: usize) -> String {
        let state = self.state();
        let first = state.history.len().saturating_sub(lines);
        let told = state.history[first..].iter();
        told.map(|(at, event)| format!("{:>10.3} {event:?}\n", at.as_secs_f64())).collect()
    }
}

/// What becomes of a request that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    Stored,
    Lost,
}

/// What the relay was told about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    /// Not stored.
    Refused(&'static str),
    /// Not stored: the service will never take what is in it.
    Invalid,
    /// Stored, and told otherwise.
    LostReply(&'static str),
}

impl State {
    fn note(&mut self, event: Event) {
        let at = self.started.elapsed();
        self.history.push((at, event));
    }

    fn find(&mut self, fault: Fault, text: String) {
        let at = self.started.elapsed().as_secs_f64();
        self.note(Event::Chaos(format!("FOUND {fault:?}: {text}")));
        self.findings.push((fault, format!("at {at:.3}: {text}")));
    }

    fn add(&mut self, row: Row) {
        let index = self.rows.len();
        let lane = (!row.key.is_empty()).then(|| {
            let count = self.lanes.len();
            let name = (row.topic.clone(), row.key.clone());
            let lane = *self.lane_of.entry(name).or_insert(count);
            if lane == count {
                self.lanes.push(Lane::default());
            }
            self.lanes[lane].rows.push(index);
            lane
        });
        self.by_number.insert(row.number, index);
        self.by_position.insert((row.commit_lsn, row.tx_index), index);
        let is_excused = row.is_unroutable && (!self.rules.dead_rows_hold || lane.is_none());
        let (stored, repeat, recorded) = (0, Repeat::Forbidden, None);
        self.rows.push(RowState { row, lane, stored, repeat, recorded, is_excused });
    }

    fn sent(&mut self, topic: &str, messages: &[(RowNumber, String, usize)]) -> u64 {
        let over_budget = std::mem::take(&mut self.over_budget);
        if over_budget > 0 {
            self.find(Fault::OverBudget, format!("{over_budget} bytes of rows are not settled"));
        }
        self.calls_count += 1;
        let call = self.calls_count;
        let key = messages.first().map(|(_, key, _)| key.clone()).unwrap_or_default();
        let numbers: Vec<_> = messages.iter().map(|(number, ..)| *number).collect();
        self.note(Event::Sent { call, topic: topic.into(), key: key.clone(), rows: numbers });

        let bytes: usize = messages.iter().map(|(.., bytes)| bytes).sum();
        let is_too_large = messages.len() > 1 && bytes > self.rules.request_bytes_max;
        if messages.is_empty() || messages.len() > self.rules.request_messages_max || is_too_large {
            let text = format!("call {call}: {} messages, {bytes} bytes", messages.len());
            self.find(Fault::BadRequest, text);
        }
        if messages.iter().any(|(_, other, _)| *other != key) {
            self.find(Fault::BadRequest, format!("call {call}: several keys"));
        }
        let mut rows = Vec::new();
        for (number, row_key, _) in messages {
            let Some(index) = self.by_number.get(number).copied() else {
                self.find(Fault::Unknown, format!("call {call}: row {number}"));
                continue;
            };
            let row = &self.rows[index].row;
            if row.topic != topic || row.key != *row_key {
                self.find(Fault::Altered, format!("call {call}: row {number}: topic or key"));
            }
            rows.push(index);
        }
        let lane = self.lane_of.get(&(topic.to_owned(), key)).copied();
        if let Some(lane) = lane {
            if let Some(other) = self.lanes[lane].outstanding {
                self.find(Fault::TwoOutstanding, format!("calls {other} and {call}"));
            }
            self.lanes[lane].outstanding = Some(call);
        }
        self.calls.insert(call, Call { lane, rows });
        call
    }

    fn store(&mut self, call: u64) {
        let rows = self.calls.get(&call).map(|call| call.rows.clone()).unwrap_or_default();
        for index in rows {
            self.stored_count += 1;
            let row = &mut self.rows[index];
            row.stored += 1;
            let number = row.row.number;
            match row.stored {
                1 => self.check_order(index, number),
                _ => self.repeat(index, call),
            }
            self.settle(index);
        }
    }

    fn repeat(&mut self, index: usize, call: u64) {
        self.repeated_count += 1;
        let RowState { repeat, row, .. } = &mut self.rows[index];
        if std::mem::replace(repeat, Repeat::Forbidden) == Repeat::Forbidden {
            let text = format!("call {call}: row {}", row.number);
            self.find(Fault::Repeated, text);
        }
    }

    fn check_order(&mut self, index: usize, number: RowNumber) {
        let Some(lane) = self.rows[index].lane else { return };
        let Self { lanes, rows, .. } = self;
        let Lane { rows: in_order, next, .. } = &mut lanes[lane];
        let is_passed = |at: usize| {
            let row: &RowState = &rows[at];
            row.stored > 0 || row.is_excused
        };
        while in_order.get(*next).is_some_and(|at| is_passed(*at)) {
            *next += 1;
        }
        // Excused rows may come late; all others of the prefix were first stored in order.
        if let Some(blocking) = in_order.get(*next).filter(|at| **at < index) {
            let text = format!("row {number} before row {}", rows[*blocking].row.number);
            self.find(Fault::Reordered, text);
        }
    }

    fn answered(&mut self, call: u64, answer: Answer) {
        let text = match answer {
            Answer::Ok => "ok",
            Answer::Refused(code) => code,
            Answer::Invalid => "INVALID_ARGUMENT",
            Answer::LostReply(_) => "stored, and the reply lost",
        };
        self.note(Event::Answered { call, answer: text });
        if matches!(answer, Answer::LostReply(_)) {
            self.allow_repeats(call);
        }
        if answer == Answer::Invalid
            && let Some(Call { rows, lane }) = self.calls.get(&call)
            && let [alone] = rows[..]
            && (!self.rules.dead_rows_hold || lane.is_none())
        {
            self.rows[alone].is_excused = true;
        }
        self.close(call);
    }

    fn allow_repeats(&mut self, call: u64) {
        let rows = self.calls.get(&call).map(|call| call.rows.clone()).unwrap_or_default();
        rows.into_iter().for_each(|index| self.rows[index].repeat = Repeat::Allowed);
    }

    fn close(&mut self, call: u64) {
        let Some(Call { lane, .. }) = self.calls.remove(&call) else { return };
        if let Some(lane) = lane
            && self.lanes[lane].outstanding == Some(call)
        {
            self.lanes[lane].outstanding = None;
        }
    }

    fn recorded(&mut self, number: RowNumber, status: Status) {
        self.note(Event::Recorded { row: number, status });
        let Some(index) = self.by_number.get(&number).copied() else {
            return self.find(Fault::Unknown, format!("row {number} in the table"));
        };
        let row = &mut self.rows[index];
        row.recorded = Some(status);
        row.is_excused |= match status {
            Status::Discarded => true,
            Status::Dead => !self.rules.dead_rows_hold || row.lane.is_none(),
            Status::Retrying | Status::Published => false,
        };
        self.settle(index);
    }

    fn settle(&mut self, index: usize) {
        if self.unsettled.remove(&index) {
            self.unsettled_bytes -= self.rows[index].row.payload.len();
        }
    }

    fn seen(&mut self, seen: Seen) {
        match seen {
            Seen::Started { confirmed_flush } => self.connection_started(confirmed_flush),
            Seen::Row { commit_lsn, tx_index } => {
                let Some(index) = self.by_position.get(&(commit_lsn, tx_index)).copied() else {
                    return;
                };
                if self.rows[index].recorded.is_none() && self.unsettled.insert(index) {
                    self.unsettled_bytes += self.rows[index].row.payload.len();
                }
                if self.unsettled_bytes > self.rules.unsettled_bytes_max {
                    self.over_budget = self.over_budget.max(self.unsettled_bytes);
                }
            }
            Seen::Status { flush, told } => self.confirmed(flush, told),
            Seen::KeepaliveInTransaction { .. } | Seen::Ended => {}
        }
    }

    fn connection_started(&mut self, confirmed_flush: u64) {
        self.status_at = Instant::now();
        self.unsettled.clear();
        self.unsettled_bytes = 0;
        self.over_budget = 0;
        if self.last_end == End::Graceful {
            return;
        }
        for row in self.rows.iter_mut().filter(|row| row.stored > 0) {
            let comes_again = row.recorded.is_none() && row.row.commit_lsn >= confirmed_flush;
            if comes_again || row.recorded == Some(Status::Retrying) {
                row.repeat = Repeat::Allowed;
            }
        }
    }

    fn confirmed(&mut self, flush: u64, told: u64) {
        let gap = self.status_at.max(self.silence_excused_until).elapsed();
        if gap > self.rules.status_timeout {
            self.find(Fault::StatusOverdue, format!("nothing for {gap:?}"));
        }
        self.status_at = Instant::now();
        self.note(Event::Confirmed { flush: Hex(flush) });
        if flush > told {
            self.find(Fault::ConfirmedBeyond, format!("{:?}, told {:?}", Hex(flush), Hex(told)));
        }
        while let Some(row) = self.rows.get(self.confirmed_rows)
            && row.row.commit_lsn < flush
        {
            if !row.is_settled() {
                let text = format!("{:?} over row {}", Hex(flush), row.row.number);
                self.find(Fault::ConfirmedEarly, text);
            }
            self.confirmed_rows += 1;
        }
    }
}

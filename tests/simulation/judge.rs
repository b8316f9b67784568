//! The independent judge of a run. The simulation reports every committed, stored, recorded and
//! confirmed row to the judge at the instant it happens. The judge knows no type and no rule of the
//! relay's code.

mod connection;
mod facts;
mod republished;
mod requests;
mod state;
mod topic_replay;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use facts::{
    AbandonedFate, Answer, End, Event, Fault, Hex, Row, RowNumber, Rules, Status,
};
use state::{Repeat, RowOf, RowState, State};
use tokio::time::Instant;
use walrelay_testkit::walsender::Seen;

/// The judge of one run. Clones share its state.
#[derive(Clone)]
pub(crate) struct Judge(Arc<Mutex<State>>);

/// A message that the relay publishes.
pub(crate) struct PublishedMessage<'a> {
    pub(crate) position: (u64, u32),
    pub(crate) body: &'a [u8],
    /// The id of the replay, if the message belongs to one.
    pub(crate) mark: Option<&'a str>,
}

impl Judge {
    pub(crate) fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(State::new(rules))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, event: Event) {
        self.state().note(event);
    }

    /// Records a committed transaction with its rows in order.
    pub(crate) fn committed(&self, rows: Vec<Row>) {
        let mut state = self.state();
        let Some(first) = rows.first() else { return };
        let numbers = rows.iter().map(|row| row.number).collect();
        let (commit_lsn, end_lsn) = (Hex(first.commit_lsn), Hex(first.end_lsn));
        state.note(Event::Committed { rows: numbers, commit_lsn, end_lsn });
        rows.into_iter().for_each(|row| state.add(row));
    }

    /// Records a request that is sent. Each message is (row, key, bytes). Returns the number of the
    /// call.
    pub(crate) fn sent(
        &self,
        process: u64,
        topic: &str,
        messages: &[(RowNumber, String, usize)],
    ) -> u64 {
        self.state().sent(process, topic, messages)
    }

    /// Records that the messages of a request are stored.
    pub(crate) fn stored(&self, call: u64) {
        let mut state = self.state();
        state.note(Event::Stored { call });
        state.store(call);
    }

    /// Records the reply to a request. `LostReply`: the messages are stored, but the relay gets an
    /// error.
    pub(crate) fn answered(&self, call: u64, answer: Answer) {
        self.state().answered(call, answer);
    }

    /// Records that the relay cancelled the request. As after a timeout, the rows may be stored.
    pub(crate) fn given_up(&self, call: u64) {
        let mut state = self.state();
        state.allow_repeats(call);
        state.abandon_call(call);
    }

    /// Records that the future of the request was dropped.
    pub(crate) fn dropped(&self, call: u64) {
        self.state().note(Event::Dropped { call });
    }

    /// Records that an abandoned request was stored after all, or was lost.
    pub(crate) fn landed(&self, call: u64, landing: AbandonedFate) {
        let mut state = self.state();
        if landing == AbandonedFate::Stored {
            state.note(Event::StoredLate { call });
            state.calls.entry(call).and_modify(|call| call.is_late = true);
            state.allow_repeats(call);
            state.store(call);
            state.allow_repeats(call);
        }
        state.close(call);
    }

    /// Checks that a message has the content of its row, and that it has a mark if and only if it
    /// belongs to a replay.
    pub(crate) fn check_content(
        &self,
        topic: &str,
        number: RowNumber,
        message: PublishedMessage<'_>,
    ) {
        let PublishedMessage { position, body, mark } = message;
        let mut state = self.state();
        if mark != state.mark_of(topic) {
            let text = format!("row {number}: {mark:?} in place of {:?}", state.mark_of(topic));
            state.find(Fault::Unmarked, text);
        }
        // The check of the request reports a row that was never committed.
        let Some(index) = state.index_of(topic, number) else { return };
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

    /// Records a durable status change of a row in the dispatch table, including a return to
    /// retrying.
    pub(crate) fn recorded(&self, number: RowNumber, status: Status) {
        self.state().recorded(number, status);
    }

    /// Records that a replay holds a key through this position. `None` ends the hold.
    pub(crate) fn held(&self, topic: &str, key: &str, through: Option<(u64, i64)>) {
        self.state().held(topic, key, through);
    }

    /// Records that a row of a replay is inserted before the pending rows of its held key.
    pub(crate) fn replayed(&self, row: Row) {
        self.state().replayed(row);
    }

    /// Returns the rows that a replay of this key repeats: all publishable rows through this
    /// position.
    pub(crate) fn history(&self, topic: &str, key: &str, through: (u64, i64)) -> Vec<Row> {
        self.state().history(topic, key, through)
    }

    /// Records that an ended session wrote a row to the table.
    ///
    /// The current session does not know of this row. It publishes the row from the slot, again
    /// after each failure, and finally from the table.
    pub(crate) fn recorded_late(&self, number: RowNumber) {
        let mut state = self.state();
        if let Some(index) = state.by_number.get(&number).copied() {
            state.rows[index].repeat = Repeat::Always;
        }
    }

    /// Records that an operator retries a row, which may be in flight. An unordered row is then
    /// sent again.
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "a fact about the row, as the table has it"
    )]
    pub(crate) fn retried_by_hand(&self, number: RowNumber, is_unordered: bool) {
        if is_unordered {
            self.allow_repeat(number);
        }
    }

    fn allow_repeat(&self, number: RowNumber) {
        let mut state = self.state();
        if let Some(index) = state.by_number.get(&number).copied() {
            state.rows[index].allow_repeat();
        }
    }

    /// Records an event on the server's side of a connection.
    pub(crate) fn seen(&self, seen: Seen) {
        self.state().seen(seen);
    }

    /// Excuses missing status updates until the given time, because the simulation stalls the
    /// connection.
    pub(crate) fn silence_excused(&self, until: Instant) {
        let mut state = self.state();
        state.silence_excused_until = state.silence_excused_until.max(until);
    }

    /// Returns whether another process than this one streams now. A superseded process cannot be
    /// prevented from publishing rows that it has read.
    pub(crate) fn is_superseded(&self, process: u64) -> bool {
        self.state().is_superseded(process)
    }

    /// Records that a process ended the session of the slot's holder.
    pub(crate) fn took_over(&self, pid: i32) {
        self.state().took_over(pid);
    }

    /// Records that a process that is about to stream read this settled position.
    pub(crate) fn record_was_read(&self, process: u64, settled: u64) {
        self.state().records.insert(process, settled);
    }

    /// Records a crash of the server: the slot may have lost confirmed positions.
    pub(crate) fn server_crashed(&self) {
        self.state().last_end = End::Broken;
    }

    /// Records that a process has ended. Its requests have no receiver.
    pub(crate) fn process_gone(&self, process: u64, end: End) {
        let mut state = self.state();
        state.note(Event::ProcessGone { process, end });
        if state.streaming == process {
            state.last_end = end;
        }
        for lane in &mut state.lanes {
            lane.outstanding.remove(&process);
        }
    }

    pub(crate) fn find(&self, fault: Fault, text: impl Into<String>) {
        self.state().find(fault, text.into());
    }

    /// Returns whether every row is stored, or correctly dead, and no row is in flight.
    pub(crate) fn is_done(&self) -> bool {
        self.state().rows.iter().all(|row| match row.recorded {
            _ if row.kind == RowOf::Copy => row.stored > 0 || row.is_excused,
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

    /// Records that a process that began at the given time reports that it has caught up. `left`
    /// are rows that were due and are unfinished.
    pub(crate) fn caught_up(&self, began: Instant, left: &[RowNumber]) {
        let mut state = self.state();
        let unsettled = state.rows.iter();
        let unsettled = unsettled.filter(|row| row.committed_at < began && !row.is_settled());
        let mut early: Vec<_> = unsettled.map(|row| row.row.number).collect();
        early.extend(left);
        if !early.is_empty() {
            state.find(Fault::EndedEarly, format!("rows {early:?} were there at the start"));
        }
    }

    /// Checks the end of a run for unfinished rows.
    pub(crate) fn check_done(&self) {
        let mut state = self.state();
        let mut found = Vec::new();
        for RowState { row, stored, recorded, is_excused, kind, .. } in &state.rows {
            let fault = match recorded {
                Some(Status::Retrying) => Fault::ParkedForEver,
                Some(Status::Dead) if *stored == 0 && !is_excused => Fault::ParkedForEver,
                None if *stored == 0 && !(*kind == RowOf::Copy && *is_excused) => Fault::Lost,
                Some(_) | None => continue,
            };
            let (number, key) = (row.number, &row.key);
            found.push((fault, format!("row {number} of key {key:?} ({recorded:?})")));
        }
        found.into_iter().for_each(|(fault, text)| state.find(fault, text));
    }

    /// Returns the rows of a key that were committed longer ago than `patience` and are not stored.
    pub(crate) fn rows_not_stored(&self, key: &str, patience: Duration) -> Vec<RowNumber> {
        let state = self.state();
        let late = |row: &&RowState| {
            let is_late = row.stored == 0 && row.committed_at.elapsed() > patience;
            row.row.key == key && row.kind != RowOf::Copy && is_late
        };
        state.rows.iter().filter(late).map(|row| row.row.number).collect()
    }

    /// Returns the numbers of stored messages, and of duplicates among them.
    pub(crate) fn stored_counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.stored_count, state.repeated_count)
    }

    /// Returns the number of stored rows of replays in place.
    pub(crate) fn replayed_count(&self) -> usize {
        let state = self.state();
        let is_so = |row: &&RowState| row.kind == RowOf::Replay && row.stored > 0;
        state.rows.iter().filter(is_so).count()
    }

    pub(crate) fn has_findings(&self) -> bool {
        !self.state().findings.is_empty()
    }

    pub(crate) fn findings(&self) -> Vec<(Fault, String)> {
        self.state().findings.clone()
    }

    /// Returns the last events.
    pub(crate) fn story(&self, lines: usize) -> String {
        let state = self.state();
        let first = state.history.len().saturating_sub(lines);
        let told = state.history[first..].iter();
        told.map(|(at, event)| format!("{:>10.3} {event:?}\n", at.as_secs_f64())).collect()
    }
}

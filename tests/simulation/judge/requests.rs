//! Checks of requests: their content, one request at a time per key, the order of stored rows, and
//! duplicates.

use super::facts::{Answer, Event, Fault, RowNumber};
use super::state::{Call, Lane, Repeat, RowOf, RowState, State};

/// The rows that a request must not overtake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Earlier rows of its key, and the rows of a replay that holds its key.
    Everything,
    /// Earlier rows of its key.
    Committed,
}

impl State {
    pub(super) fn sent(
        &mut self,
        process: u64,
        topic: &str,
        messages: &[(RowNumber, String, usize)],
    ) -> u64 {
        let over_budget = std::mem::take(&mut self.over_budget);
        if over_budget > 0 {
            self.find(Fault::OverBudget, format!("{over_budget} bytes of rows are not settled"));
        }
        self.calls_count += 1;
        let call = self.calls_count;
        let key = messages.first().map(|(_, key, _)| key.clone()).unwrap_or_default();
        let numbers: Vec<_> = messages.iter().map(|(number, ..)| *number).collect();
        self.note(Event::Sent {
            process,
            call,
            topic: topic.into(),
            key: key.clone(),
            rows: numbers,
        });

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
            let Some(index) = self.index_of(topic, *number) else {
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
        if let Some(lane) = lane
            && let Some(other) = self.lanes[lane].outstanding.insert(process, call)
        {
            self.find(Fault::TwoOutstanding, format!("calls {other} and {call}"));
        }
        let round = self.rounds.get(&process).copied().unwrap_or_default();
        self.calls.insert(call, Call { is_late: false, process, lane, rows, round });
        if self.is_superseded(process) {
            self.allow_any_repeats(call);
        }
        call
    }

    pub(super) fn store(&mut self, call: u64) {
        let rows = self.calls.get(&call).map(|call| call.rows.clone()).unwrap_or_default();
        // The holder of a key does not know of late requests, nor of requests of a process without
        // the slot.
        let is_known = self.calls.get(&call).is_some_and(|call| {
            !call.is_late && (call.process == self.streaming || self.streaming == 0)
        });
        let stands_behind = if is_known { Behind::Everything } else { Behind::Committed };
        let round = self.round_of(call);
        for index in rows {
            self.stored_count += 1;
            let row = &mut self.rows[index];
            // The request is from before a reset, so the row must still be published again.
            if round < row.round {
                self.repeated_count += 1;
                continue;
            }
            row.stored += 1;
            let number = row.row.number;
            match row.stored {
                1 => self.check_order(index, number, stands_behind),
                _ => self.repeat(index, call),
            }
            self.settle(index);
        }
        if self.calls.get(&call).is_some_and(|call| call.is_late) {
            self.allow_repeats(call);
        }
    }

    fn repeat(&mut self, index: usize, call: u64) {
        self.repeated_count += 1;
        let RowState { repeat, row, .. } = &mut self.rows[index];
        match repeat {
            Repeat::Always => {}
            Repeat::Allowed => *repeat = Repeat::Forbidden,
            Repeat::Forbidden => {
                let text = format!("call {call}: row {}", row.number);
                self.find(Fault::Repeated, text);
            }
        }
    }

    fn check_order(&mut self, index: usize, number: RowNumber, stands_behind: Behind) {
        let Some(lane) = self.rows[index].lane else { return };
        let Self { lanes, rows, passed_over, .. } = self;
        let Lane { rows: in_order, next, held_through, .. } = &mut lanes[lane];
        let is_passed = |at: usize| {
            let row: &RowState = &rows[at];
            row.stored > 0 || row.is_excused || passed_over.contains(&at)
        };
        while in_order.get(*next).is_some_and(|at| is_passed(*at)) {
            *next += 1;
        }
        let is_replayed = rows[index].kind == RowOf::Replay;
        let is_let_through =
            held_through.is_none_or(|through| !is_replayed && rows[index].row.is_through(through));
        // Excused rows may be stored late. All other rows of the prefix were first stored in order.
        let place = in_order.iter().position(|at| *at == index).unwrap_or(usize::MAX);
        let waits_for =
            |at: &&usize| stands_behind == Behind::Everything || rows[**at].kind != RowOf::Replay;
        let blocking = in_order.get(*next..place).and_then(|before| {
            let mut before = before.iter().filter(|at| !is_passed(**at));
            before.find(waits_for)
        });
        if let Some(blocking) = blocking {
            let text = format!("row {number} before row {}", rows[*blocking].row.number);
            self.find(Fault::Reordered, text);
        } else if !is_let_through && stands_behind == Behind::Everything {
            self.find(Fault::Reordered, format!("row {number} of a key that is held"));
        }
        if stands_behind == Behind::Everything
            && let Some(later) = self.stored_behind(lane, index)
            && self.passed_over.contains(&index)
            && !self.rows[index].is_excused
        {
            let text = format!("row {number}, once refused, behind row {later}");
            self.find(Fault::Reordered, text);
        }
    }

    /// A row behind this one in its lane that is stored.
    fn stored_behind(&self, lane: usize, index: usize) -> Option<RowNumber> {
        let mut behind = self.lanes[lane].rows.iter().skip_while(|at| **at != index).skip(1);
        let stored = behind.find(|at| self.rows[**at].stored > 0)?;
        Some(self.rows[*stored].row.number)
    }

    pub(super) fn answered(&mut self, call: u64, answer: Answer) {
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
            && let Some(Call { rows, lane, .. }) = self.calls.get(&call)
            && let [alone] = rows[..]
            && (!self.rules.dead_rows_hold
                || lane.is_none()
                || self.rows[alone].kind == RowOf::Copy)
        {
            // Only the current session passes over the row. Another one sends it again.
            let is_of_session = self.calls[&call].process == self.streaming
                && !self.calls[&call].is_late
                && self.rows[alone].kind == RowOf::Producer;
            let is_first = lane.is_none_or(|lane| self.stored_behind(lane, alone).is_none());
            match is_of_session && is_first {
                true => drop(self.passed_over.insert(alone)),
                false => self.rows[alone].is_excused = true,
            }
        }
        self.close(call);
    }

    fn round_of(&self, call: u64) -> u64 {
        self.calls.get(&call).map(|call| call.round).unwrap_or_default()
    }

    /// Returns the rows of a request that no later reset repeats.
    fn rows_of(&self, call: u64) -> Vec<usize> {
        let round = self.round_of(call);
        let rows = self.calls.get(&call).map(|call| call.rows.clone()).unwrap_or_default();
        rows.into_iter().filter(|index| self.rows[*index].round <= round).collect()
    }

    pub(super) fn allow_repeats(&mut self, call: u64) {
        self.rows_of(call).into_iter().for_each(|index| self.rows[index].allow_repeat());
    }

    /// Records that another process publishes the same rows, because the sender of this request
    /// lost the slot.
    pub(super) fn allow_any_repeats(&mut self, call: u64) {
        let rows = self.rows_of(call);
        rows.into_iter().for_each(|index| self.rows[index].repeat = Repeat::Always);
    }

    pub(super) fn close(&mut self, call: u64) {
        self.abandon_call(call);
        self.calls.remove(&call);
    }

    /// Records that the request has no receiver. Its key may have another request in flight.
    pub(super) fn abandon_call(&mut self, call: u64) {
        let Some(Call { lane, process, .. }) = self.calls.get(&call) else { return };
        if let Some(lane) = *lane
            && self.lanes[lane].outstanding.get(process) == Some(&call)
        {
            self.lanes[lane].outstanding.remove(process);
        }
    }
}

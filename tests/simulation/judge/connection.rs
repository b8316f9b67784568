//! Checks of the connection: unsettled bytes against the budget, and the time and position of
//! confirmations.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use walrelay_testkit::walsender::{Seen, SlotHolder};

use super::facts::{End, Event, Fault, Hex, Status};
use super::state::{RowOf, RowState, State};

/// The longest interval between two signs of life of a living holder.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(6);

impl State {
    pub(super) fn seen(&mut self, seen: Seen) {
        match seen {
            Seen::CopyStarted { application_name, .. } => {
                self.copy_started(application_name.parse().unwrap_or_default());
            }
            Seen::Started { confirmed_flush, holder } => {
                self.slot_taken(&holder);
                self.connection_started(confirmed_flush);
            }
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

    /// Records a new holder. Requests of other processes may be stored beside the requests of this
    /// one.
    fn slot_taken(&mut self, holder: &SlotHolder) {
        self.streaming = holder.application_name.parse().unwrap_or_default();
        self.streaming_pid = holder.pid;
        self.rounds.insert(self.streaming, self.round);
        if self.replay_of(self.streaming).is_some() {
            self.find(Fault::TookLiveSlot, format!("process {}", self.streaming));
        }
        self.moved_at = Instant::now();
        self.note(Event::Streaming { process: self.streaming });
        let streaming = self.streaming;
        let replaying: BTreeSet<u64> = self.calls.values().map(|call| call.process).collect();
        let replaying: BTreeSet<u64> =
            replaying.into_iter().filter(|process| self.replay_of(*process).is_some()).collect();
        self.excuse_calls_in_flight(streaming, |process| !replaying.contains(&process));
    }

    /// Records that a session of this process starts while earlier requests may be in flight.
    pub(super) fn excuse_calls_in_flight(
        &mut self,
        beginning: u64,
        concerns: impl Fn(u64) -> bool,
    ) {
        let calls = self.calls.iter().map(|(call, of)| (*call, of.process));
        let concerned = calls.filter(|(_, process)| *process == beginning || concerns(*process));
        for (call, process) in concerned.collect::<Vec<_>>() {
            match process == beginning {
                // The previous session has this request in flight. The slot sends the rows again
                // behind it.
                true => {
                    self.allow_repeats(call);
                    self.calls.entry(call).and_modify(|call| call.is_late = true);
                }
                false => self.allow_any_repeats(call),
            }
        }
    }

    pub(super) fn took_over(&mut self, pid: i32) {
        self.note(Event::TookOver { from: self.streaming });
        let quiet = self.moved_at.max(self.status_at).elapsed();
        // A holder that was neither frozen nor disconnected lately is alive.
        let may_be_dead = self.silence_excused_until + SIGN_OF_LIFE_INTERVAL >= Instant::now();
        let is_quiet = quiet >= self.rules.take_over_after && may_be_dead;
        if pid == self.streaming_pid && !is_quiet {
            let text = format!("process {}, {quiet:?} after a sign of life", self.streaming);
            self.find(Fault::TookOverProgress, text);
        }
    }

    fn connection_started(&mut self, confirmed_flush: u64) {
        self.status_at = Instant::now();
        self.unsettled.clear();
        self.unsettled_bytes = 0;
        self.over_budget = 0;
        for index in std::mem::take(&mut self.passed_over) {
            self.rows[index].is_excused = true;
        }
        if std::mem::replace(&mut self.last_end, End::Broken) == End::Graceful {
            return;
        }
        // The server does not send rows before the confirmed or recorded position.
        let record = self.records.get(&self.streaming).copied().unwrap_or_default();
        let starts_at = confirmed_flush.max(self.floor).max(record);
        let of_slot = |row: &&mut RowState| row.stored > 0 && row.kind != RowOf::Copy;
        for row in self.rows.iter_mut().filter(of_slot) {
            let comes_again = row.recorded.is_none() && row.row.commit_lsn >= starts_at;
            if comes_again || row.recorded == Some(Status::Retrying) {
                row.allow_repeat();
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
        if flush > self.confirmed {
            (self.confirmed, self.moved_at) = (flush, Instant::now());
        }
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

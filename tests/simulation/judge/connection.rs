//! The connection: what is read beyond the budget, what is confirmed and how often.

use tokio::time::Instant;
use walrelay_testkit::walsender::Seen;

use super::facts::{End, Event, Fault, Hex, Status};
use super::state::{Repeat, State};

impl State {
    pub(super) fn seen(&mut self, seen: Seen) {
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

//! Rows that wait in memory behind the last rows of their key in dispatch state.
//!
//! A busy key gets new rows during each claim. If these went into the table, it would never be empty,
//! and the key would never return to its live lane. So once few rows are left in the table, the
//! rows behind them wait here. They go into the table after all if they use too much memory or WAL,
//! or if the rows before them are not delivered.

use std::collections::VecDeque;

use crate::flow_control::wal_budget::SpillMode;
use crate::lanes::lane::{Behind, LaneId, Row, State};
use crate::lanes::outputs::{ParkCause, RowToRecord};

use super::{ClaimAnswer, Lanes};

impl Lanes {
    /// The number of claimed rows up to which the rows behind them wait in memory.
    const LAST_ROWS_MAX: usize = 1_000;

    /// The maximum number of rows of a key that wait in memory.
    const WAITING_ROWS_MAX: usize = 10_000;

    /// Adds a row from the slot behind the rows of its key in the table (I4).
    pub(super) fn push_behind(&mut self, id: LaneId, row: Row) {
        match self.table[id].parked.as_mut().and_then(|parked| parked.waiting.as_mut()) {
            None => self.record_behind(id, row),
            Some(waiting) => {
                waiting.push_back(row);
                if waiting.len() >= Self::WAITING_ROWS_MAX {
                    self.record_waiting_of(id);
                }
            }
        }
    }

    /// Keeps the next rows of the key in memory from now on, if few are left in the table.
    pub(super) fn keep_waiting_behind(&mut self, id: LaneId, claimed: &ClaimAnswer) {
        let is_nearly_empty =
            claimed.held_for.is_none() && claimed.rows.len() <= Self::LAST_ROWS_MAX;
        let lane = &mut self.table[id];
        if is_nearly_empty
            && lane.is_ordered()
            && self.spill == SpillMode::Off
            && let Some(parked) = &mut lane.parked
            && parked.waiting.is_none()
        {
            parked.waiting = Some(VecDeque::new());
            self.keys_waiting += 1;
        }
    }

    fn take_waiting(&mut self, id: LaneId) -> VecDeque<Row> {
        let parked = self.table[id].parked.as_mut();
        let Some(waiting) = parked.and_then(|parked| parked.waiting.take()) else {
            return VecDeque::new();
        };
        self.keys_waiting -= 1;
        waiting
    }

    /// Hands a row over to the table, behind the rows of its key there.
    fn record_behind(&mut self, id: LaneId, row: Row) {
        let Some(parked) = &mut self.table[id].parked else { return };
        parked.append();
        self.outputs.rows_to_record.push(match (parked.behind, self.spill) {
            (Behind::Spilled, _) | (_, SpillMode::Everything) => {
                RowToRecord::aside(id, row, &ParkCause::Spilled(None), None)
            }
            (Behind::Queued, _) => RowToRecord::queued(id, row),
        });
    }

    /// Records the rows that wait in memory behind rows in the table. They would keep memory or WAL
    /// for too long.
    pub fn record_waiting(&mut self) {
        if self.keys_waiting == 0 {
            return;
        }
        let waiting: Vec<_> = self.lanes_waiting().collect();
        waiting.into_iter().for_each(|id| self.record_waiting_of(id));
    }

    /// The parked lanes whose next rows wait in memory.
    pub(super) fn lanes_waiting(&self) -> impl Iterator<Item = LaneId> {
        let waits = |id: &LaneId| {
            self.table[*id].parked.as_ref().is_some_and(|parked| parked.waiting.is_some())
        };
        self.table.ids().filter(waits)
    }

    /// As [`record_waiting`](Self::record_waiting), for one key.
    pub(super) fn record_waiting_of(&mut self, id: LaneId) {
        self.take_waiting(id).into_iter().for_each(|row| self.record_behind(id, row));
    }

    /// Returns a key without rows in the table to its live lane, with the rows that wait.
    pub(super) fn return_to_lane(&mut self, id: LaneId) {
        let waiting = self.take_waiting(id);
        let lane = &mut self.table[id];
        waiting.into_iter().for_each(|row| lane.enqueue(row));
        if !lane.queue.is_empty() {
            lane.state = State::Ready;
            self.ready.push_back(id);
        }
        self.unpark(id);
    }
}

//! Rows that become dead: Pub/Sub refuses them, or would always refuse them.
//!
//! A parked row also becomes dead when its attempts are used up: `delivery_failed` in `parked`.

use std::time::{Duration, Instant};

use crate::failure::PublishFailure;
use crate::lanes::lane::{Batch, LaneId, Origin, Row, State};
use crate::lanes::outputs::{Finished, ParkCause, RowToRecord};
use crate::message::Message;
use crate::tracker::Ticket;

use super::{Lanes, OnDead};

impl Lanes {
    /// The pause between checks of a key that a dead row holds. An operator's decision takes effect
    /// within two seconds.
    const HELD_PAUSE: Duration = Duration::from_secs(1);

    /// Adds a row that Pub/Sub would always refuse. The row is dead without being sent.
    pub fn push_dead(
        &mut self,
        message: Message,
        ticket: Ticket,
        failure: &PublishFailure,
        now: Instant,
    ) {
        let id = self.lane_of(message.topic(), message.ordering_key());
        self.dead(id, Row::new(message, Origin::Live(ticket)), failure, now);
        self.table.remove_if_unused(id);
    }

    /// Handles a batch that Pub/Sub refuses because of one of its rows. A single row is dead. The
    /// rows of a larger batch are sent again in smaller ones, to find the row.
    pub(super) fn refused_row(&mut self, mut batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        if batch.rows.len() == 1
            && let Some(row) = batch.rows.pop_front()
        {
            self.table[id].rest();
            self.table[id].refusals.careful = Some(1);
            self.dead(id, row, failure, now);
            return self.after_reply(id, now);
        }
        self.table[id].refusals.suspects = batch.rows.len();
        self.send_again(batch, failure, now);
    }

    /// Sends the rows of a refused batch again at once, before all other rows of their lane.
    pub(super) fn send_again(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        let lane = &mut self.table[id];
        lane.put_back(batch.rows);
        if lane.parked.is_some() && lane.holds_live_rows() {
            // The key was parked while the batch was outstanding, because an operator retries
            // earlier rows. The table restores the order.
            return self.park(id, &ParkCause::refused(failure), now);
        }
        lane.state = State::Ready;
        self.ready.push_back(id);
    }

    /// Records a row that can never be published. Its key continues or is held.
    pub(super) fn dead(&mut self, id: LaneId, row: Row, failure: &PublishFailure, now: Instant) {
        let hold = self.policy.on_dead == OnDead::Hold && self.table[id].is_ordered();
        if hold {
            // They go into the table before the dead row.
            self.record_waiting_of(id);
        }
        let lane = &self.table[id];
        let is_claimed = matches!(row.origin, Origin::Claimed { .. });
        match row.origin {
            Origin::Claimed { attempts } => {
                self.outputs.finished.push(Finished::dead(row.message, attempts + 1, failure));
            }
            Origin::Live(_) => {
                if hold && lane.parked.is_none() {
                    self.pause(id, now + Self::HELD_PAUSE);
                }
                if hold {
                    self.note_append(id);
                }
                self.outputs.rows_to_record.push(RowToRecord::dead(
                    hold.then_some(id),
                    row,
                    failure,
                ));
            }
        }
        if hold && self.table[id].holds_live_rows() != is_claimed {
            self.append_queue(id, None);
        }
    }
}

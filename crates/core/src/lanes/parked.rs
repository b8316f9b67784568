//! Keys with rows in dispatch state: parking, claiming back, and the return to a live lane.
//!
//! See the diagram in [`lane`](super::lane). Promises I4 across parking. Rows
//! of a parked key join the table behind its earlier rows. The key returns to its live lane once the
//! table answers that it holds no more rows. An answer that may be stale does not count.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::failure::{FailureClass, PublishFailure};
use crate::flow_control::wal_budget::SpillMode;
use crate::lanes::lane::{Batch, Lane, LaneId, Origin, Parked, Redelivery, Row, State};
use crate::lanes::outputs::{FailureCause, Finished, ParkCause, RowToRecord, Verdict};
use crate::message::{Message, Topic};
use crate::publish_health::FailedDelivery;

use super::Lanes;

/// A parked key whose rows should be read back now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimKey {
    /// The lane of the key, which the answer has to name.
    pub lane: LaneId,
    /// The topic of the key.
    pub topic: Topic,
    /// The ordering key. Empty for the unordered rows of the topic.
    pub ordering_key: Box<str>,
}

/// The store's answer to a [`ClaimKey`].
#[derive(Debug)]
pub struct ClaimAnswer {
    /// Rows in order, each with its attempts so far.
    pub rows: Vec<(Message, u32)>,
    /// If no row was returned: the delay until the next check. `None` if the table holds no more
    /// rows of the key to deliver.
    pub held_for: Option<Duration>,
}

impl Lanes {
    /// Adds a key that has rows in dispatch state, read before the first row from the slot. The key
    /// is due after `due_in`. Without `due_in`, the table holds no due time and the key is checked
    /// at once.
    pub fn load_parked(
        &mut self,
        topic: &Topic,
        ordering_key: &str,
        due_in: Option<Duration>,
        now: Instant,
    ) {
        self.now = Some(now);
        let id = self.lane_of(topic, ordering_key);
        self.pause(id, now + due_in.unwrap_or_default());
        if let Some(parked) = &mut self.table[id].parked {
            parked.is_timed = due_in.is_some();
        }
        self.rest_until_due_query(id);
    }

    /// Makes a key due that changed in the table without the relay: an operator retries its rows.
    ///
    /// A live key is parked first, so that the rows in its lane do not interleave (I3).
    pub fn mark_due(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        self.now = Some(now);
        let id = self.lane_of(topic, ordering_key);
        match self.table[id].parked {
            Some(Parked {
                redelivery: Redelivery::Claiming { .. } | Redelivery::Publishing,
                ..
            }) => {}
            Some(Parked { redelivery: Redelivery::Pausing { until }, .. }) if until <= now => {}
            Some(Parked { redelivery: Redelivery::Pausing { .. }, .. }) => self.pause(id, now),
            None => {
                self.pause(id, now);
                self.append_queue(id, None);
            }
        }
    }

    /// Up to `max` parked keys whose rows should be read back now.
    pub fn claims(&mut self, max: usize, now: Instant) -> Vec<ClaimKey> {
        let mut claims = Vec::new();
        while claims.len() < max {
            let Some(id) = self.claimable.pop_front() else { break };
            let lane = &self.table[id];
            let busy = lane.state != State::Empty && lane.is_ordered();
            let Some(parked) = &lane.parked else { continue };
            let Redelivery::Pausing { until } = parked.redelivery else { continue };
            if until > now {
                continue;
            }
            if busy || parked.rows_durable < parked.claim_after {
                // A batch of the live lane is still outstanding, or its rows are not durable yet.
                self.pause(id, now + Self::CLAIM_RETRY_PAUSE);
                continue;
            }
            let topic = Topic::clone(&lane.topic);
            let random = self.random.next_u32();
            if let Err(again_at) = self.health.may_claim(&topic, random, now) {
                self.pause_long(id, again_at);
                self.rest_if_lanes_scarce(id, now);
                continue;
            }
            let ordering_key = self.table[id].ordering_key.clone();
            self.set_redelivery(id, Redelivery::Claiming { appended: false });
            if let Some(claimed) = &mut self.table[id].parked {
                claimed.is_timed = false;
            }
            claims.push(ClaimKey { lane: id, topic, ordering_key });
        }
        claims
    }

    /// The delay after which a parked key that was not ready to be claimed is checked again.
    const CLAIM_RETRY_PAUSE: Duration = Duration::from_millis(20);

    /// Whether a parked key may be claimed now.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        !self.claimable.is_empty()
    }

    /// Applies the store's answer for a key. If the table has no row and none is on its way there,
    /// the key returns to its live lane.
    ///
    /// # Panics
    ///
    /// The key was not being claimed.
    pub fn claimed(&mut self, id: LaneId, claimed: ClaimAnswer, now: Instant) {
        let Some(Parked {
            redelivery: Redelivery::Claiming { appended },
            rows_handed_over,
            rows_durable,
            failures,
            ..
        }) = self.table[id].parked
        else {
            panic!("I4: {id:?} was answered without a claim");
        };
        self.keep_waiting_behind(id, &claimed);
        let lane = &mut self.table[id];
        if claimed.rows.is_empty() {
            match claimed.held_for {
                Some(held_for) => self.pause_long(id, now + held_for),
                None if appended || rows_durable < rows_handed_over => {
                    self.pause(id, now + Self::CLAIM_RETRY_PAUSE);
                }
                None => self.return_to_lane(id),
            }
            self.debug_check(id);
            return;
        }
        let rows = claimed
            .rows
            .into_iter()
            .map(|(message, attempts)| Row::new(message, Origin::Claimed { attempts }));
        // After a failed delivery, the row that caused it is unknown, so the first row is sent
        // alone.
        let careful = (failures > 0).then_some(1);
        if lane.is_ordered() {
            rows.for_each(|row| lane.enqueue(row));
            lane.refusals.careful = careful;
            lane.state = State::Ready;
            self.ready.push_back(id);
            self.set_redelivery(id, Redelivery::Publishing);
        } else {
            // Unordered rows are independent: they get a lane of their own, and the table may have
            // more.
            let mut loose = Lane::loose(Topic::clone(&lane.topic));
            rows.for_each(|row| loose.enqueue(row));
            loose.refusals.careful = careful;
            loose.state = State::Ready;
            let loose = self.table.insert(loose);
            self.ready.push_back(loose);
            self.pause(id, now);
        }
        self.debug_check(id);
    }

    /// Notes that the store could not answer. The key waits until `again_at`.
    pub fn claim_failed(&mut self, id: LaneId, again_at: Instant) {
        self.pause_long(id, again_at);
    }

    /// Notes that a row handed over for recording is durable in dispatch state.
    pub fn appended(&mut self, id: LaneId) {
        if let Some(parked) = &mut self.table[id].parked {
            assert!(
                parked.rows_durable < parked.rows_handed_over,
                "I4: {id:?} appended more than was handed over"
            );
            parked.rows_durable += 1;
        }
        if let Some(now) = self.now {
            self.rest_if_lanes_scarce(id, now);
        }
    }

    /// Handles a failed delivery from dispatch state: returns the rows and backs off.
    /// `failed` is the delivery, if the key is parked.
    pub(super) fn delivery_failed(
        &mut self,
        batch: Batch,
        failure: &PublishFailure,
        failed: Option<FailedDelivery>,
        now: Instant,
    ) {
        let id = batch.lane;
        let ordered = self.table[id].is_ordered();
        // Only a row that failed alone counts an attempt. An outage or a missing permission must
        // not make the row dead.
        let was_alone = batch.rows.len() == 1;
        let (failures, before) = self.count_failed_delivery(id, failed);
        let counts = was_alone
            && failure.class == FailureClass::Transient
            && self.spill == SpillMode::Off
            && before.is_some_and(|before| self.health.is_row_at_fault(batch.topic(), &before))
            && !self.health.is_outage(now);
        let delay = self.policy.redelivery.delay(failures, self.random.next_u32());
        let delay = self.health.retry_delay(delay, now);
        let tried = if ordered { 1 } else { batch.rows.len() };
        let mut rows = batch.rows;
        rows.append(&mut self.table[id].take_queue());
        let blame = match failure.class {
            FailureClass::Transient if !counts => FailureCause::Nobody,
            FailureClass::Transient | FailureClass::Operator | FailureClass::Row => {
                FailureCause::Row
            }
        };
        let mut is_timed = false;
        for (index, row) in rows.into_iter().enumerate() {
            let Origin::Claimed { attempts } = row.origin else {
                panic!("I4: a live row among claimed ones");
            };
            let was_tried = index < tried;
            let attempts = attempts + u32::from(was_tried && counts);
            let delay = match ordered {
                true => delay,
                false => self.policy.redelivery.delay(attempts.max(1), self.random.next_u32()),
            };
            let delay = self.health.stored_delay(delay, now);
            let verdict = match was_tried {
                true if counts && attempts >= self.policy.max_attempts => Verdict::Dead,
                true => Verdict::Again { after: Some(delay), blame },
                false => Verdict::Again { after: None, blame: FailureCause::Nobody },
            };
            is_timed |= matches!(verdict, Verdict::Again { after: Some(_), .. });
            self.outputs.finished.push(Finished::refused(row.message, attempts, failure, verdict));
        }
        let lane = &mut self.table[id];
        lane.rest();
        if let Some(parked) = &mut lane.parked {
            parked.is_timed = is_timed;
            self.pause_long(id, now + delay);
            self.rest_if_lanes_scarce(id, now);
        }
        self.table.remove_if_unused(id);
    }

    /// The parked key of a delivery from dispatch state. Rows without a key count with their topic.
    pub(super) fn parked_key(&self, id: LaneId) -> Option<LaneId> {
        let lane = &self.table[id];
        match lane.is_ordered() {
            true => Some(id),
            false => self.table.find(&lane.topic, ""),
        }
    }

    /// Counts a failed delivery of the key. Returns the consecutive failures and the previous
    /// failure.
    fn count_failed_delivery(
        &mut self,
        id: LaneId,
        failed: Option<FailedDelivery>,
    ) -> (u32, Option<FailedDelivery>) {
        let key = self.parked_key(id);
        match (key.and_then(|key| self.table[key].parked.as_mut()), failed) {
            (Some(parked), Some(failed)) => {
                parked.failures += 1;
                (parked.failures, parked.failed.replace(failed))
            }
            (None, _) | (_, None) => (1, None),
        }
    }

    /// Moves a stuck lane into dispatch state, in order.
    pub(super) fn park(&mut self, id: LaneId, why: &ParkCause, now: Instant) {
        let delay = self.delay_of(why);
        let lane = &mut self.table[id];
        lane.rest();
        if lane.is_ordered() {
            if lane.parked.is_none() {
                self.pause(id, now + delay);
            }
            self.append_queue(id, Some((why, delay)));
            if let Some(parked) = &mut self.table[id].parked {
                // Later rows of the key may already be in the table, so claims wait until these rows
                // are durable.
                parked.claim_after = parked.rows_handed_over;
                parked.is_timed = true;
            }
            return;
        }
        // Unordered rows are claimed back through the topic's lane for rows without a key.
        let rows = lane.take_queue();
        let topic = Topic::clone(&lane.topic);
        let listed = self.lane_of(&topic, "");
        if self.table[listed].parked.is_none() {
            self.pause(listed, now + delay);
        }
        for row in rows {
            self.note_append(listed);
            self.outputs.rows_to_record.push(RowToRecord::aside(listed, row, why, Some(delay)));
        }
        self.table.remove_if_unused(id);
    }

    /// Hands the queue of a parked lane over to dispatch state.
    pub(super) fn append_queue(&mut self, id: LaneId, aside: Option<(&ParkCause, Duration)>) {
        if !self.table[id].is_ordered() {
            return;
        }
        if self.table[id].state != State::Out {
            self.table[id].rest();
        }
        if matches!(aside, Some((ParkCause::Spilled(_), _))) {
            self.note_spilled(id);
        }
        let rows = self.table[id].take_queue();
        let (live, claimed): (VecDeque<Row>, VecDeque<Row>) =
            rows.into_iter().partition(|row| matches!(row.origin, Origin::Live(_)));
        for (index, row) in live.into_iter().enumerate() {
            self.note_append(id);
            let row_to_record = match aside {
                Some((why, delay)) => {
                    RowToRecord::aside(id, row, why, (index == 0).then_some(delay))
                }
                None => RowToRecord::queued(id, row),
            };
            self.outputs.rows_to_record.push(row_to_record);
        }
        for row in claimed {
            self.outputs.finished.push(Finished::released(row));
        }
    }

    pub(super) fn note_append(&mut self, id: LaneId) {
        if let Some(parked) = &mut self.table[id].parked {
            parked.append();
        }
    }

    /// Parks the key, or changes the time of its next check.
    pub(super) fn pause(&mut self, id: LaneId, until: Instant) {
        self.set_redelivery(id, Redelivery::Pausing { until });
        self.look_at(until, id);
    }

    /// Changes the time of the next check of a parked key, which may be far away.
    fn pause_long(&mut self, id: LaneId, until: Instant) {
        self.record_waiting_of(id);
        self.pause(id, until);
    }

    fn set_redelivery(&mut self, id: LaneId, redelivery: Redelivery) {
        let lane = &mut self.table[id];
        match &mut lane.parked {
            Some(parked) => parked.redelivery = redelivery,
            None => {
                lane.parked = Some(Parked::new(redelivery));
                self.parked_count += 1;
            }
        }
    }

    pub(super) fn unpark(&mut self, id: LaneId) {
        self.table[id].parked = None;
        self.parked_count -= 1;
        self.has_spilled &= self.parked_keys() > 0;
        self.table.remove_if_unused(id);
    }
}

impl Parked {
    pub(super) fn append(&mut self) {
        self.rows_handed_over += 1;
        if let Redelivery::Claiming { appended } = &mut self.redelivery {
            *appended = true;
        }
    }
}

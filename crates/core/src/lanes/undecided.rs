//! Rows that Pub/Sub has refused as invalid, until it is known whether the row or its topic is at
//! fault.
//!
//! Each of them is tried once more before it is dead: after another row of its topic is stored, or
//! after `--park-after` without a refusal of the topic. A second refusal makes it dead. If the topic
//! refuses many rows in a row, an operator has to act, and all refused rows are retried.
//!
//! A second try keeps the order of the key (I4). If a later row of the key is stored or recorded, or
//! may be stored, the refused row is dead without a second try.

use std::collections::VecDeque;
use std::time::Instant;

use crate::failure::{FailureClass, PublishFailure};
use crate::failure_code::FailureCode;
use crate::lanes::lane::{Batch, Lane, LaneId, Row, State, are_live};
use crate::lanes::outputs::RowToRecord;
use crate::lanes::undecided_rows::UndecidedRows;
use crate::message::Topic;

use super::{LanePolicy, Lanes, OnDead};

impl Lanes {
    /// Judges a refusal: if the topic refuses every row as invalid, an operator has to act.
    #[must_use]
    pub fn judge(
        &mut self,
        batch: &Batch,
        failure: PublishFailure,
        now: Instant,
    ) -> PublishFailure {
        if !self.is_undecided(&failure) {
            return failure;
        }
        // After a stored row, the last try of a row says nothing about its topic.
        let counts = batch.rows.len() == 1
            && (!batch.is_last_try() || self.health.refuses_as_invalid(batch.topic()));
        if self.health.note_invalid(batch.topic(), counts.then(|| batch.ordering_key()), now) {
            return PublishFailure { class: FailureClass::Operator, ..failure };
        }
        failure
    }

    /// Notes a refusal, after [`judge`](Self::judge). A single row that is refused as invalid is
    /// tried once more later. After that, it is dead.
    pub fn refused_or_undecided(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        if self.is_undecided(failure) && batch.rows.len() == 1 && !batch.is_last_try() {
            return self.hold_undecided(batch, failure, now);
        }
        let (topic, ordering_key) = (Topic::clone(batch.topic()), Box::from(batch.ordering_key()));
        self.refused(batch, failure, now);
        if self.undecided.contains_key(&topic) {
            self.decide_after(&topic, ordering_key, failure, now);
        }
    }

    fn hold_undecided(&mut self, mut batch: Batch, failure: &PublishFailure, now: Instant) {
        self.now = Some(now);
        let (id, topic) = (batch.lane, Topic::clone(batch.topic()));
        let rows = self.refused_rows(&batch);
        self.health.refused(&topic, failure, rows, now);
        let holds_key = self.policy.on_dead == OnDead::Hold && self.table[id].is_ordered();
        let waits = holds_key || !are_live(&batch.rows) || self.table[id].parked.is_some();
        let passed_over = if waits { None } else { batch.rows.pop_front() };
        let of_topic = self.undecided_of(topic, now);
        match passed_over {
            None => of_topic.batches.push((batch, failure.clone())),
            Some(row) => {
                of_topic.passed_over.push((row, failure.clone()));
                self.table[id].rest();
                self.table[id].refusals.careful = Some(1);
                self.after_reply(id, now);
            }
        }
        self.debug_check(id);
    }

    /// The undecided rows of a topic that has refused one more row just now.
    fn undecided_of(&mut self, topic: Topic, now: Instant) -> &mut UndecidedRows {
        let again_at = now + self.policy.park_after.min(UndecidedRows::QUIET_MAX);
        let nothing = || UndecidedRows { batches: Vec::new(), passed_over: Vec::new(), again_at };
        let of_topic = self.undecided.entry(topic).or_insert_with(nothing);
        of_topic.again_at = again_at;
        of_topic
    }

    /// Whether the row or its topic may be at fault. Rows over a limit that is checked here are dead
    /// at once. So are all rows without dispatch state, where nobody could discard a row that waits.
    fn is_undecided(&self, failure: &PublishFailure) -> bool {
        failure.class == FailureClass::Row
            && matches!(failure.code, FailureCode::Call(_))
            && self.policy.park_after < LanePolicy::NEVER_PARKS
    }

    /// The time of the next second try without further evidence.
    pub(super) fn next_second_try(&self) -> Option<Instant> {
        self.undecided.values().map(|of_topic| of_topic.again_at).min()
    }

    /// Tries rows once more that have waited long enough.
    pub(super) fn try_due_again(&mut self, now: Instant) {
        let due = self.undecided.iter().filter(|(_, of_topic)| of_topic.again_at <= now);
        let due: Vec<Topic> = due.map(|(topic, _)| Topic::clone(topic)).collect();
        due.iter().for_each(|topic| self.try_last_time(topic, now));
    }

    /// Tries all rows once more, because they must not retain WAL any longer.
    pub(super) fn try_all_again(&mut self, now: Instant) {
        let topics: Vec<Topic> = self.undecided.keys().map(Topic::clone).collect();
        topics.iter().for_each(|topic| self.try_last_time(topic, now));
    }

    /// Tries the rows of a topic once more that has just stored a row of this key. Earlier rows of
    /// the key would be published behind it.
    pub(super) fn try_again_after(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        self.key_is_dead(topic, ordering_key);
        self.try_last_time(topic, now);
    }

    fn try_last_time(&mut self, topic: &Topic, now: Instant) {
        if let Some(of_topic) = self.undecided.get_mut(topic) {
            of_topic.mark_last_try();
        }
        self.give_back(topic, now);
    }

    /// Decides after the refusal of another batch of the topic.
    fn decide_after(
        &mut self,
        topic: &Topic,
        ordering_key: Box<str>,
        failure: &PublishFailure,
        now: Instant,
    ) {
        match failure.class {
            FailureClass::Operator if self.health.is_at_fault(topic) => self.give_back(topic, now),
            // Later rows of the key may be stored, so the rows before them cannot be retried.
            FailureClass::Transient => self.key_is_dead(topic, &ordering_key),
            FailureClass::Operator | FailureClass::Row => {}
        }
    }

    /// Earlier rows of the key that its lane has passed over are dead.
    fn key_is_dead(&mut self, topic: &Topic, ordering_key: &str) {
        let rows = self.take_passed_over(topic, ordering_key);
        self.are_dead(rows);
    }

    fn are_dead(&mut self, passed_over: Vec<(Row, PublishFailure)>) {
        let dead = passed_over.into_iter();
        let dead = dead.map(|(row, failure)| RowToRecord::dead(None, row, &failure));
        self.outputs.rows_to_record.extend(dead);
    }

    /// Takes the rows of an ordering key that its lane has passed over. Rows without a key have no
    /// order to keep.
    fn take_passed_over(
        &mut self,
        topic: &Topic,
        ordering_key: &str,
    ) -> Vec<(Row, PublishFailure)> {
        let of_topic = self.undecided.get_mut(topic).filter(|_| !ordering_key.is_empty());
        let Some(of_topic) = of_topic else { return Vec::new() };
        let taken = of_topic.take_key(ordering_key);
        if of_topic.is_empty() {
            self.undecided.remove(topic);
        }
        taken
    }

    /// Puts the rows that an idle lane has passed over in front of its new row. If the topic works
    /// again, it would store the new row, and the others would be dead.
    pub(super) fn begin_with_passed_over(&mut self, id: LaneId) {
        let Lane { topic, ordering_key, state, parked, .. } = &self.table[id];
        if *state != State::Empty || parked.is_some() {
            return;
        }
        let (topic, ordering_key) = (Topic::clone(topic), ordering_key.clone());
        let rows = self.take_passed_over(&topic, &ordering_key);
        if !rows.is_empty() {
            self.put_in_front(id, rows);
        }
    }

    fn put_in_front(&mut self, id: LaneId, rows: Vec<(Row, PublishFailure)>) {
        let rows: VecDeque<Row> = rows.into_iter().map(|(row, _)| row).collect();
        let lane = &mut self.table[id];
        lane.put_back(rows);
        lane.refusals.careful = Some(1);
    }

    /// Returns the refused rows to their lanes, in front of the later rows of their keys. They are
    /// sent at once.
    fn give_back(&mut self, topic: &Topic, now: Instant) {
        let Some(mut of_topic) = self.undecided.remove(topic) else { return };
        for (batch, failure) in std::mem::take(&mut of_topic.batches) {
            let id = batch.lane;
            self.table[id].refusals.careful = Some(1);
            self.send_again(batch, &failure, now);
            self.debug_check(id);
        }
        while let Some((first, _)) = of_topic.passed_over.first() {
            let ordering_key: Box<str> = first.message.ordering_key().into();
            let of_key = of_topic.take_key(&ordering_key);
            self.give_back_key(topic, &ordering_key, of_key, now);
        }
    }

    fn give_back_key(
        &mut self,
        topic: &Topic,
        ordering_key: &str,
        rows: Vec<(Row, PublishFailure)>,
        now: Instant,
    ) {
        let id = match ordering_key {
            "" => self.table.insert(Lane::loose(Topic::clone(topic))),
            _ => self.lane_of(topic, ordering_key),
        };
        let lane = &self.table[id];
        if lane.parked.is_some() {
            // Later rows are in dispatch state, and may be claimed already.
            return self.are_dead(rows);
        }
        if lane.state == State::Out {
            // The reply for the later rows decides.
            return self.undecided_of(Topic::clone(topic), now).passed_over.extend(rows);
        }
        let is_ready = lane.state == State::Ready;
        self.put_in_front(id, rows);
        if !is_ready {
            self.table[id].state = State::Ready;
            self.ready.push_back(id);
        }
        self.debug_check(id);
    }
}

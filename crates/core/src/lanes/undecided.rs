//! Rows that Pub/Sub has refused as invalid, until it is known whether the row or its topic is at
//! fault.
//!
//! Once another row of the topic is stored, the refused rows are dead. If the topic refuses many
//! rows in a row, an operator has to act: the refused rows go back in front of their keys and are
//! retried. Without further evidence a row is dead after `--park-after`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::failure::{FailureClass, PublishFailure};
use crate::failure_code::FailureCode;
use crate::lanes::lane::{Batch, Lane, Row, State, are_live};
use crate::lanes::outputs::RowToRecord;
use crate::lanes::undecided_rows::{Held, Undecided, UndecidedRows};
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
        let is_alone = batch.rows.len() == 1;
        if self.health.note_invalid(batch.topic(), is_alone.then(|| batch.ordering_key()), now) {
            return PublishFailure { class: FailureClass::Operator, ..failure };
        }
        failure
    }

    /// Notes a refusal, after [`judge`](Self::judge). A single row that is refused as invalid
    /// becomes dead later.
    pub fn refused_or_undecided(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        if self.is_undecided(failure) && batch.rows.len() == 1 {
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
        let (row, goes_on) = match passed_over {
            Some(row) => (Held::PassedOver(row), true),
            None => (Held::Batch(batch), false),
        };
        let of_topic = self.undecided_of(topic, now);
        of_topic.rows.push(Undecided { row, failure: failure.clone() });
        if goes_on {
            self.table[id].rest();
            self.table[id].refusals.careful = Some(1);
            self.after_reply(id, now);
        }
        self.debug_check(id);
    }

    /// The undecided rows of a topic that has refused one more row just now.
    fn undecided_of(&mut self, topic: Topic, now: Instant) -> &mut UndecidedRows {
        let dead_at = now + self.policy.park_after.min(UndecidedRows::QUIET_MAX);
        let nothing = || UndecidedRows { rows: Vec::new(), dead_at };
        let of_topic = self.undecided.entry(topic).or_insert_with(nothing);
        of_topic.dead_at = dead_at;
        of_topic
    }

    /// Whether the row or its topic may be at fault. Rows over a limit that is checked here are dead
    /// at once. So are all rows without dispatch state, where nobody could discard a row that waits.
    fn is_undecided(&self, failure: &PublishFailure) -> bool {
        failure.class == FailureClass::Row
            && matches!(failure.code, FailureCode::Call(_))
            && self.policy.park_after < LanePolicy::NEVER_PARKS
    }

    /// The time at which the next undecided row is dead.
    pub(super) fn next_verdict(&self) -> Option<Instant> {
        self.undecided.values().map(|of_topic| of_topic.dead_at).min()
    }

    /// Decides about rows that have waited long enough.
    pub(super) fn decide_due(&mut self, now: Instant) {
        while let Some(topic) = self.due_verdict(now) {
            self.decide_dead(&topic, now);
        }
    }

    /// Decides about all rows, because they must not retain WAL any longer.
    pub(super) fn decide_all(&mut self, now: Instant) {
        while let Some(topic) = self.undecided.keys().next().map(Topic::clone) {
            self.decide_dead(&topic, now);
        }
    }

    fn due_verdict(&self, now: Instant) -> Option<Topic> {
        let due = self.undecided.iter().find(|(_, of_topic)| of_topic.dead_at <= now);
        due.map(|(topic, _)| Topic::clone(topic))
    }

    /// The refused rows of the topic are dead, because another row of the topic was stored or
    /// nothing else is known.
    pub(super) fn decide_dead(&mut self, topic: &Topic, now: Instant) {
        let Some(of_topic) = self.undecided.remove(topic) else { return };
        for one in of_topic.rows {
            self.undecided_is_dead(one, now);
        }
    }

    fn undecided_is_dead(&mut self, undecided: Undecided, now: Instant) {
        let Undecided { row, failure } = undecided;
        match row {
            Held::Batch(batch) => {
                let id = batch.lane;
                self.refused_row(batch, &failure, now);
                self.debug_check(id);
            }
            Held::PassedOver(row) => {
                self.outputs.rows_to_record.push(RowToRecord::dead(None, row, &failure));
            }
        }
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
            FailureClass::Operator if self.health.is_at_fault(topic) => {
                self.give_back(topic, failure, now);
            }
            // Later rows of the key may be stored, so the rows before them cannot be retried.
            FailureClass::Transient => self.key_is_dead(topic, &ordering_key, now),
            FailureClass::Operator | FailureClass::Row => {}
        }
    }

    fn key_is_dead(&mut self, topic: &Topic, ordering_key: &str, now: Instant) {
        let Some(of_topic) = self.undecided.get_mut(topic) else { return };
        let is_dead = |one: &mut Undecided| !ordering_key.is_empty() && one.is_of_key(ordering_key);
        let dead: Vec<_> = of_topic.rows.extract_if(.., is_dead).collect();
        if of_topic.rows.is_empty() {
            self.undecided.remove(topic);
        }
        dead.into_iter().for_each(|one| self.undecided_is_dead(one, now));
    }

    /// Returns the refused rows to their lanes, in front of the later rows of their keys, because
    /// an operator has to act.
    fn give_back(&mut self, topic: &Topic, failure: &PublishFailure, now: Instant) {
        let Some(of_topic) = self.undecided.remove(topic) else { return };
        let mut by_key: BTreeMap<Box<str>, Vec<Undecided>> = BTreeMap::new();
        for Undecided { row, failure: of_row } in of_topic.rows {
            match row {
                Held::Batch(batch) => self.retry_undecided(batch, failure, now),
                Held::PassedOver(row) => {
                    let of_key = by_key.entry(row.message.ordering_key().into()).or_default();
                    of_key.push(Undecided { row: Held::PassedOver(row), failure: of_row });
                }
            }
        }
        for (ordering_key, rows) in by_key {
            self.give_back_key(topic, &ordering_key, rows, (failure, now));
        }
    }

    fn retry_undecided(&mut self, batch: Batch, failure: &PublishFailure, now: Instant) {
        let id = batch.lane;
        let rows = self.refused_rows(&batch);
        let failed = self.health.note_refusal(batch.topic(), failure, rows, now);
        self.retry_later(batch, failure, failed, now);
        self.debug_check(id);
    }

    fn give_back_key(
        &mut self,
        topic: &Topic,
        ordering_key: &str,
        rows: Vec<Undecided>,
        (failure, now): (&PublishFailure, Instant),
    ) {
        let id = match ordering_key {
            "" => self.table.insert(Lane::loose(Topic::clone(topic))),
            _ => self.lane_of(topic, ordering_key),
        };
        let lane = &self.table[id];
        if lane.parked.is_some() {
            // Later rows are in dispatch state, and may be claimed already.
            return rows.into_iter().for_each(|one| self.undecided_is_dead(one, now));
        }
        if lane.state == State::Out {
            // The reply for the later rows decides.
            return self.undecided_of(Topic::clone(topic), now).rows.extend(rows);
        }
        let rows: VecDeque<Row> = rows.into_iter().filter_map(Undecided::into_row).collect();
        self.table[id].refusals.careful = Some(1);
        self.retry_live_later(id, rows, failure, now);
        self.debug_check(id);
    }
}

//! Keys that are held for a replay in place, and the history that is inserted before their pending
//! rows.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use pgoutput_parser::{Lsn, Position};
use prost::Message as _;
use tokio::time::Instant;
use walrelay_core::{Behind, ClaimKey, OnDead};
use walrelay_outbox_store::ParkedKey;

use super::held::{HeldKey, Hold, HoldPosition};
use super::{Entry, Key, Source, State, Table};
use crate::judge::{Row, Status};

impl Table {
    /// Requests the hold of a key. Returns false if an earlier replay of the key is unfinished.
    pub(crate) fn place_hold(&self, topic: &str, key: &str) -> bool {
        let mut state = self.state();
        let is_replayed =
            state.retrying(topic, key).any(|(_, entry)| entry.source == Source::Replay);
        if is_replayed || state.is_held(topic, key) {
            return false;
        }
        let name = (topic.to_owned(), key.to_owned());
        state.hold_changed_at.insert(name.clone(), Instant::now());
        state.holds.insert(name, Hold::default());
        true
    }

    /// Returns the keys whose holds the relay has answered.
    pub(crate) fn held(&self) -> Vec<HeldKey> {
        let state = self.state();
        let held = state.holds.iter().filter_map(|((topic, key), hold)| {
            let (topic, key) = (topic.clone(), key.clone());
            Some(HeldKey { topic, key, through: hold.through?, added: hold.added })
        });
        held.collect()
    }

    pub(crate) fn has_holds(&self) -> bool {
        !self.state().holds.is_empty()
    }

    /// Inserts the next row of a history before the pending rows of its key.
    pub(crate) fn add_history(&self, row: &Row) {
        let message = PubsubMessage {
            data: row.payload.clone().into_bytes().into(),
            ordering_key: row.key.clone(),
            attributes: [("commit_lsn".to_owned(), Lsn::new(row.commit_lsn).to_string())].into(),
            ..PubsubMessage::default()
        };
        let entry = Entry {
            row: row.number,
            topic: row.topic.clone(),
            key: row.key.clone(),
            body: message.encode_to_vec(),
            status: Status::Retrying,
            attempts: 0,
            next_attempt: None,
            version: 0,
            updated: Instant::now(),
            is_spilled: false,
            source: Source::Replay,
        };
        let place = (row.commit_lsn, row.tx_index, row.number);
        let mut state = self.state();
        if state.entries.contains_key(&place) {
            return;
        }
        state.versions += 1;
        let entry = Entry { version: state.versions, ..entry };
        if let Some(hold) = state.holds.get_mut(&(row.topic.clone(), row.key.clone())) {
            hold.added += 1;
        }
        self.judge.recorded(row.number, Status::Retrying);
        state.entries.insert(place, entry);
    }

    /// Lifts the hold of a key, whose history is then due first.
    pub(crate) fn lift_hold(&self, topic: &str, key: &str) {
        let mut state = self.state();
        let name: Key = (topic.to_owned(), key.to_owned());
        if state.holds.remove(&name).is_none() {
            return;
        }
        state.hold_changed_at.insert(name, Instant::now());
        self.judge.held(topic, key, None);
        if key.is_empty() {
            let replayed = state.entries.values_mut().filter(|entry| {
                entry.source == Source::Replay
                    && entry.status == Status::Retrying
                    && entry.topic == topic
                    && entry.key.is_empty()
            });
            replayed.for_each(|entry| {
                entry.next_attempt.get_or_insert_with(Instant::now);
            });
            return;
        }
        let first = state.retrying(topic, key).next().map(|(place, _)| *place);
        if let Some(entry) = first.and_then(|place| state.entries.get_mut(&place)) {
            entry.next_attempt = Some(Instant::now());
        }
    }

    /// Removes the unpublished rows of a key's replay.
    pub(crate) fn remove_replayed(&self, topic: &str, key: &str) {
        let mut state = self.state();
        let judge = &self.judge;
        state.entries.retain(|_, entry| {
            let is_open = matches!(entry.status, Status::Retrying | Status::Dead);
            let goes = entry.source == Source::Replay && is_open;
            let goes = goes && entry.topic == topic && entry.key == key;
            if goes {
                judge.recorded(entry.row, Status::Discarded);
            }
            !goes
        });
        let first = state.retrying(topic, key).next().map(|(place, _)| *place);
        if let Some(entry) = first.and_then(|place| state.entries.get_mut(&place)) {
            entry.next_attempt.get_or_insert_with(Instant::now);
        }
    }

    /// Starts the requested holds of these keys, which have no row in flight.
    pub(super) fn answer_holds(&self, keys: &[ClaimKey], wanted: &[Key], through: Position) {
        let mut state = self.state();
        for key in keys {
            let (topic, ordering_key) = (key.topic.to_string(), key.ordering_key.to_string());
            if !wanted.iter().any(|(one, other)| *one == topic && *other == ordering_key) {
                continue;
            }
            let first = state.first_waiting(self.rules.on_dead, &topic, &ordering_key);
            let Some(hold) = state.holds.get_mut(&(topic.clone(), ordering_key.clone())) else {
                continue;
            };
            if hold.through.is_none() {
                let tx_index = i64::from(i32::try_from(through.tx_index).unwrap_or(i32::MAX));
                let through = (through.commit_lsn.as_u64(), tx_index);
                let held = first.filter(|first| *first <= through);
                let held = held.map_or(through, |(lsn, index)| (lsn, index - 1));
                hold.through = Some(held);
                self.judge.held(&topic, &ordering_key, Some(held));
            }
        }
    }

    /// Returns every hold with its key and position.
    pub(crate) fn holds(&self) -> Vec<(String, String, Option<HoldPosition>)> {
        let state = self.state();
        let holds = state.holds.iter();
        holds.map(|((topic, key), hold)| (topic.clone(), key.clone(), hold.through)).collect()
    }
}

impl State {
    pub(super) fn is_held(&self, topic: &str, key: &str) -> bool {
        !self.holds.is_empty() && self.holds.contains_key(&(topic.to_owned(), key.to_owned()))
    }

    /// Returns whether the key is held, or was held after the given time.
    pub(super) fn was_held(&self, topic: &str, key: &str, since: Instant) -> bool {
        let lately = self.hold_changed_at.get(&(topic.to_owned(), key.to_owned()));
        self.is_held(topic, key) || lately.is_some_and(|at| *at >= since)
    }

    pub(super) fn wanted_holds(&self, limit: usize) -> Vec<Key> {
        let wanted = self.holds.iter().filter(|(_, hold)| hold.through.is_none());
        wanted.map(|(key, _)| key.clone()).take(limit).collect()
    }

    /// Returns the held keys, as a new session reads them.
    pub(super) fn held_keys(&self) -> Vec<ParkedKey> {
        let told = self.holds.iter().map(|((topic, ordering_key), hold)| ParkedKey {
            topic: topic.clone(),
            ordering_key: ordering_key.clone(),
            is_held: hold.through.is_some(),
            behind: Behind::Queued,
            next_attempt_in: None::<Duration>,
            attempts: 0,
        });
        told.collect()
    }

    /// Returns the first row of a key that is pending, or that holds the key.
    fn first_waiting(&self, on_dead: OnDead, topic: &str, key: &str) -> Option<HoldPosition> {
        if key.is_empty() {
            return None;
        }
        let retrying = self.retrying(topic, key).next().map(|(place, _)| *place);
        let dead = self.held_at(on_dead, topic, key);
        let first = retrying.into_iter().chain(dead).min()?;
        Some((first.0, i64::from(first.1)))
    }
}

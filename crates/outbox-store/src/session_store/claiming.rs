//! The rows that a session takes from dispatch state to publish them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use walrelay_core::{
    ClaimAnswer, ClaimKey, FailureClass, FailureCode, IncompleteMessage, Message, NotAMessage,
    Outcome, PublishFailure, Topic,
};
use walrelay_errors::Code;

use super::spilled::claimed_per_key;
use super::{HELD_PAUSE, SessionStore, owned, store_failure};
use crate::dispatch::{Claim, ClaimLimits, ClaimedRow, Key, ParkedKey};
use crate::store::StoreFailure;

/// Maximum rows of one key that are released after a claim without an answer. A claim leases fewer.
const RELEASE_ROWS_MAX: u32 = 5_000;

impl SessionStore {
    /// Releases the rows of a claim that failed after it had leased them, or whose answer was lost.
    /// Nobody else publishes rows of the slot, so they need not wait for the end of the lease.
    pub(super) async fn release_unanswered(&mut self) -> Result<(), StoreFailure> {
        if self.unanswered.is_empty() {
            return Ok(());
        }
        let store = self.store.clone();
        let unanswered = self.unanswered.clone();
        let keys: Vec<_> =
            unanswered.iter().map(|(topic, ordering_key)| Key { topic, ordering_key }).collect();
        let in_flight: Vec<String> = self.claims.keys().cloned().collect();
        let in_flight: Vec<&str> = in_flight.iter().map(String::as_str).collect();
        let client = self.client().await?;
        let released = store.release(client, &keys, &in_flight, RELEASE_ROWS_MAX).await;
        released.map_err(store_failure)?;
        self.unanswered.clear();
        Ok(())
    }

    /// Takes rows of these keys. If it fails, rows may be leased.
    pub(super) async fn take(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
    ) -> Result<(Vec<ClaimAnswer>, Vec<Claim>), StoreFailure> {
        let wanted: Vec<_> = keys.iter().map(Key::from).collect();
        // A row in memory costs more than twice its bytes.
        let rows = self.take_rows(&wanted, (bytes_max / 3) as u64).await?;
        let mut claimed: HashMap<(String, String), Vec<ClaimedRow>> = HashMap::new();
        for row in rows {
            let key = (row.topic.clone(), row.ordering_key.clone());
            claimed.entry(key).or_default().push(row);
        }
        let store = self.store.clone();
        let client = self.client().await?;
        // Read after the claim, because a key that has left the table may be live again.
        let empty: Vec<_> =
            keys.iter().filter(|key| !claimed.contains_key(&owned(key))).map(Key::from).collect();
        let held = match empty.is_empty() {
            true => Vec::new(),
            false => store.parked(client, &empty).await.map_err(store_failure)?,
        };
        let (mut in_flight, mut unreadable) = (Vec::new(), Vec::new());
        let answers: Vec<_> = keys
            .iter()
            .map(|key| match claimed.remove(&owned(key)) {
                Some(of_key) => readable(key, of_key, (&mut in_flight, &mut unreadable)),
                None => ClaimAnswer { rows: Vec::new(), held_for: held_for(key, &held) },
            })
            .collect();
        if !unreadable.is_empty() {
            let outcomes: Vec<_> =
                unreadable.iter().map(|(claim, outcome)| (Claim::clone(claim), outcome)).collect();
            let past = self.spilled.past;
            store
                .finish_before(self.client().await?, &outcomes, past)
                .await
                .map_err(store_failure)?;
        }
        Ok((answers, in_flight))
    }

    /// Reads spilled rows of these keys without a write, and claims rows of the other keys.
    async fn take_rows(
        &mut self,
        wanted: &[Key<'_>],
        bytes_max: u64,
    ) -> Result<Vec<ClaimedRow>, StoreFailure> {
        let (store, lease) = (self.store.clone(), self.lease);
        let per_key_rows = self.spilled.per_key_rows(wanted.len(), bytes_max);
        let readable = ClaimLimits { per_key_rows, bytes_max, lease };
        let client = self.client().await?;
        let mut rows = store.read_spilled(client, wanted, readable).await.map_err(store_failure)?;
        let spilled: HashSet<_> =
            rows.iter().map(|row| (row.topic.as_str(), row.ordering_key.as_str())).collect();
        let others: Vec<_> = wanted
            .iter()
            .filter(|key| !spilled.contains(&(key.topic, key.ordering_key)))
            .copied()
            .collect();
        drop(spilled);
        let bytes: u64 = rows.iter().map(|row| row.message.len() as u64).sum();
        if bytes < bytes_max || rows.is_empty() {
            let left = bytes_max - bytes.min(bytes_max);
            let share = claimed_per_key(others.len());
            let leased = ClaimLimits { per_key_rows: share, bytes_max: left, lease };
            rows.extend(store.claim(client, &others, leased).await.map_err(store_failure)?);
        }
        self.spilled.read(bytes, rows.len() as u64);
        Ok(rows)
    }
}

/// Returns the rows of a key up to one that is not a message, because somebody has edited it by
/// hand. That row becomes dead, and the rows behind it are released.
fn readable(
    key: &ClaimKey,
    rows: Vec<ClaimedRow>,
    (in_flight, unreadable): (&mut Vec<Claim>, &mut Vec<(Claim, Outcome)>),
) -> ClaimAnswer {
    let mut messages = Vec::with_capacity(rows.len());
    let mut is_broken = false;
    for row in rows {
        if is_broken {
            unreadable.push((row.claim, Outcome::released(row.attempts)));
            continue;
        }
        let topic = Topic::clone(&key.topic);
        let event_id = row.claim.event_id();
        match Message::from_encoded(topic, row.position, event_id, &row.message) {
            Ok(message) => {
                messages.push((message, row.attempts));
                in_flight.push(row.claim);
            }
            Err(error) => {
                is_broken = true;
                let failure = Arc::new(unreadable_failure(&row.message, &error));
                let why = failure.message.as_str();
                let error_code = Code::DeadRows.name();
                tracing::error!(
                    error_code,
                    event_id,
                    why,
                    "row is dead: its message cannot be published"
                );
                let dead = Outcome::Dead { attempts: row.attempts, failure };
                unreadable.push((row.claim, dead));
            }
        }
    }
    let held_for = messages.is_empty().then_some(HELD_PAUSE);
    ClaimAnswer { rows: messages, held_for }
}

/// Returns why the stored bytes cannot be published.
fn unreadable_failure(message: &[u8], error: &NotAMessage) -> PublishFailure {
    match IncompleteMessage::of(message) {
        Some(_) => {
            let why = "recorded without a value that is too large, and due all the same";
            PublishFailure::new(FailureClass::Row, FailureCode::TooLarge, why)
        }
        None => PublishFailure::new(FailureClass::Row, FailureCode::Unreadable, error.to_string()),
    }
}

/// Returns how long to wait with a key that had no claimable row. None if the key has no rows.
fn held_for(key: &ClaimKey, held: &[ParkedKey]) -> Option<Duration> {
    let same =
        |other: &&ParkedKey| *other.topic == *key.topic && *other.ordering_key == *key.ordering_key;
    let parked = held.iter().find(same)?;
    let wait = parked.next_attempt_in.unwrap_or(HELD_PAUSE);
    Some(wait.clamp(HELD_PAUSE / 10, HELD_PAUSE * 60))
}

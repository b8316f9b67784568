//! Reads dispatch state: the parked keys, with their first rows, and prunes finished rows.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_core::Behind;

use super::{DispatchStore, HeldKey, Key, seconds, unsigned, until};
use crate::store_error::StoreError;
use walrelay_pg_client::{Parameter, SqlText, sql};

/// A key that has rows in dispatch state. Its later rows must not be published before them.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedKey {
    pub topic: String,
    /// The ordering key. Empty means all rows of the topic without a key.
    pub ordering_key: String,
    /// Whether the first row is dead and stops the key, or a replay holds the key. No row may be
    /// published.
    pub is_held: bool,
    /// How later rows of the key are recorded. A row without a key is never behind another.
    pub behind: Behind,
    /// Time until the first row is due. None if it is due when the key is next claimed.
    pub next_attempt_in: Option<Duration>,
    /// Number of attempts for the first row.
    pub attempts: u32,
}

impl ParkedKey {
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        Key { topic: &self.topic, ordering_key: &self.ordering_key }
    }
}

impl std::fmt::Debug for ParkedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the key, because this output reaches logs.
        f.debug_struct("ParkedKey")
            .field("topic", &self.topic)
            .field("is_held", &self.is_held)
            .field("behind", &self.behind)
            .field("next_attempt_in", &self.next_attempt_in)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

impl DispatchStore {
    /// Returns all keys with retrying rows, and keys with dead rows if dead rows stop their key. A
    /// key that a replay holds appears a second time.
    pub async fn parked_keys(&self, client: &Client) -> Result<Vec<ParkedKey>, StoreError> {
        let mut keys = Vec::new();
        self.each_parked_key(client, &mut |key| keys.push(key)).await?;
        Ok(keys)
    }

    /// Passes each of these keys to `each` as it arrives, and returns their number. All keys
    /// together may not fit into memory.
    ///
    /// # Errors
    ///
    /// Some keys may already have been passed.
    pub async fn each_parked_key(
        &self,
        client: &Client,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreError> {
        let hold = self.holds_on_dead();
        let params: [Parameter<'_>; 3] =
            [(&self.slot, Type::TEXT), (&hold, Type::BOOL), (&self.before, Type::PG_LSN)];
        let mut count = 0;
        let rows = client.query_typed_raw(&ALL_KEYS, params).await;
        let mut rows = pin!(rows.map_err(StoreError::sql("read parked keys"))?);
        while let Some(row) = rows.try_next().await.map_err(StoreError::sql("read parked keys"))? {
            each(parked_key(&row)?);
            count += 1;
        }
        for held in self.holds(client).await? {
            let HeldKey { topic, ordering_key, is_held, .. } = held;
            each(ParkedKey {
                topic,
                ordering_key,
                is_held,
                behind: Behind::Queued,
                next_attempt_in: None,
                attempts: 0,
            });
            count += 1;
        }
        Ok(count)
    }

    /// Returns the keys among these that are still parked. A key that is missing from the answer
    /// may return to its lane.
    pub async fn parked(
        &self,
        client: &Client,
        keys: &[Key<'_>],
    ) -> Result<Vec<ParkedKey>, StoreError> {
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        client
            .query_typed(
                &HEADS,
                &[
                    (&self.slot, Type::TEXT),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&topics, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&self.before, Type::PG_LSN),
                ],
            )
            .await
            .map_err(StoreError::sql("read parked keys"))?
            .iter()
            .map(parked_key)
            .collect()
    }

    /// Deletes rows that were published or discarded longer than `retention` ago, oldest first. One
    /// call deletes a bounded number, so that other commands need not wait. Returns that number.
    /// The caller repeats the call until it returns 0.
    ///
    /// Keeps rows that the slot has not confirmed. The server would stream them again, and no
    /// record would show that they are settled.
    pub async fn prune(&self, client: &Client, retention: Duration) -> Result<u64, StoreError> {
        client
            .execute_typed(
                &PRUNE,
                &[
                    (&self.slot, Type::TEXT),
                    (&seconds(retention), Type::FLOAT8),
                    (&PRUNE_ROWS_MAX, Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("prune dispatch state"))
    }
}

/// Maximum rows of one `DELETE` in each state, so that the statement stays short and frees its
/// locks.
const PRUNE_ROWS_MAX: i64 = 2_500;

// Leaves out rows that an operator has locked. Waiting for them, while the operator waits for a row
// of ours, would be a deadlock.
static PRUNE: SqlText = SqlText::new(|| sql!("keys.sql", "prune"));

/// Finds every parked key and its first row by jumping from key to key, because a key may have any
/// number of rows.
static ALL_KEYS: SqlText = SqlText::new(|| sql!("keys.sql", "all_keys"));

/// The same for some keys. Unordered rows have no head, so the first due time is used. For a key
/// that a replay holds the time is unknown, and a notification reports that the key continues.
static HEADS: SqlText = SqlText::new(|| sql!("keys.sql", "heads"));

fn parked_key(row: &Row) -> Result<ParkedKey, StoreError> {
    let next_attempt_in: Option<f64> = row.get("next_attempt_in");
    Ok(ParkedKey {
        topic: row.get("topic"),
        ordering_key: row.get("ordering_key"),
        is_held: row.get("is_held"),
        behind: if row.get("is_spilled") { Behind::Spilled } else { Behind::Queued },
        next_attempt_in: next_attempt_in.map(until),
        attempts: unsigned(row.get("attempts"), "app_outbox_dispatch.attempts")?,
    })
}

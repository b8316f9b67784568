//! Holds on keys for an in-place replay, and the history that is inserted before the pending rows.
//!
//! ```text
//!  place ──▶ wanted ── the relay stops the key ──▶ held through P ── history through P ──▶ lifted
//! ```
//!
//! While a key has a hold, no row of the key is claimed, so the key is never live (I4). Its rows
//! from the slot wait in the table, after position P. Rows of the history have their original
//! positions, which are not after P. Once the hold is lifted, the key's rows are published in
//! position order, like any key's.

use std::borrow::Cow;

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Transaction};
use walrelay_core::PublishFailure;
use walrelay_pg_client::{Parameter, SqlText, sql};

use super::recorded::taken_suffix;
use super::stored_text::{AllowedCharacters, ERROR_BYTES_MAX, NAME_BYTES_MAX, storable};
use super::{DispatchStore, Key, signed};
use crate::store_error::StoreError;

#[derive(Clone, PartialEq, Eq)]
pub struct HeldKey {
    pub topic: String,
    /// The ordering key. Empty means all rows of the topic without a key.
    pub ordering_key: String,
    pub replay_id: String,
    /// Whether the relay has confirmed the hold.
    pub is_held: bool,
}

impl std::fmt::Debug for HeldKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the key, because this output reaches logs.
        let Self { topic, is_held, .. } = self;
        f.debug_struct("HeldKey")
            .field("topic", topic)
            .field("is_held", is_held)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPauseCounts {
    /// Number of holds that the relay has not confirmed.
    pub wanted: u64,
    /// Number of holds that the relay has confirmed.
    pub held: u64,
    /// The last commit that the history of any held key may include.
    pub through: Lsn,
}

/// Number of rows of one replay, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayedRows {
    /// Rows that are still to be published.
    pub retrying: u64,
    /// Retrying rows that wait behind a dead row, if dead rows stop their key.
    pub behind_dead: u64,
    /// Other rows of the keys that wait behind a dead row of this replay, if dead rows stop their
    /// key.
    pub others_behind_dead: u64,
    /// Rows that Pub/Sub refused.
    pub dead: u64,
    /// Rows that Pub/Sub has stored or an operator has discarded.
    pub finished: u64,
}

/// Rows of the history of one key, in order.
#[derive(Clone, Copy)]
pub struct History<'a> {
    pub key: Key<'a>,
    pub rows: &'a [HistoryRow<'a>],
    pub source: HistorySource,
}

/// A row of a key's history.
#[derive(Clone, Copy)]
pub struct HistoryRow<'a> {
    pub position: Position,
    pub event_id: &'a str,
    pub event_type: Option<&'a str>,
    /// The encoded `PubsubMessage`.
    pub message: &'a [u8],
}

impl std::fmt::Debug for HistoryRow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the message, because this output reaches logs.
        f.debug_struct("HistoryRow").field("position", &self.position).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for History<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the key and messages, because this output reaches logs.
        f.debug_struct("History").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistorySource {
    /// The WAL. A row after the hold's position waits behind the hold.
    Log,
    /// The table. Only the id shows whether a row already waits behind the hold.
    Table,
}

impl DispatchStore {
    pub async fn holds(&self, client: &Client) -> Result<Vec<HeldKey>, StoreError> {
        let rows = client
            .query_typed(sql!("key_pause.sql", "holds"), &[(&self.slot, Type::TEXT)])
            .await
            .map_err(StoreError::sql("read which keys are held"))?;
        Ok(rows.iter().map(held_key).collect())
    }

    /// Returns keys whose hold the relay has not confirmed, the longest waiting first.
    pub async fn wanted_holds(
        &self,
        client: &Client,
        limit: u32,
    ) -> Result<Vec<HeldKey>, StoreError> {
        let rows = client
            .query_typed(
                sql!("key_pause.sql", "wanted_holds"),
                &[(&self.slot, Type::TEXT), (&i64::from(limit), Type::INT8)],
            )
            .await
            .map_err(StoreError::sql("read which keys are to be held"))?;
        Ok(rows.iter().map(held_key).collect())
    }

    /// Returns the process id that streams the slot.
    pub async fn streaming_pid(&self, client: &Client) -> Result<Option<i32>, StoreError> {
        let row = client
            .query_typed_opt(
                "SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = $1",
                &[(&self.slot, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("read who streams the slot"))?;
        Ok(row.and_then(|row| row.get("active_pid")))
    }

    /// Confirms the requested holds of these keys and returns how many it confirmed. The caller has
    /// no request of these keys in flight, has recorded the rows that it read, and reads no row
    /// before `through` again. It publishes nothing of these keys until the holds are lifted.
    ///
    /// Each key is held through `through`, or through the position before its first pending row. If
    /// a session other than `streaming_pid` streams the slot, nothing is confirmed, except during a
    /// recovery, where another session of the process holds the slot.
    pub async fn answer_holds(
        &self,
        client: &Client,
        keys: &[Key<'_>],
        through: Position,
        streaming_pid: Option<i32>,
    ) -> Result<u64, StoreError> {
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        // The last row of the last transaction has no greater index.
        let tx_index = i32::try_from(through.tx_index).unwrap_or(i32::MAX);
        client
            .execute_typed(
                &ANSWER,
                &[
                    (&self.slot, Type::TEXT),
                    (&topics, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&PgLsn::from(through.commit_lsn.as_u64()), Type::PG_LSN),
                    (&tx_index, Type::INT4),
                    (&streaming_pid, Type::INT4),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&self.is_during_recovery(), Type::BOOL),
                ],
            )
            .await
            .map_err(StoreError::sql("answer which keys are held"))
    }

    /// Requests a hold on each of these keys, all or none. If another replay has one of the keys,
    /// returns that replay.
    pub async fn request_pauses(
        &self,
        transaction: &Transaction<'_>,
        replay_id: &str,
        keys: &[Key<'_>],
    ) -> Result<Option<String>, StoreError> {
        let failed = "ask for keys to be held";
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        let params: [Parameter<'_>; 4] = [
            (&self.slot, Type::TEXT),
            (&replay_id, Type::TEXT),
            (&topics, Type::TEXT_ARRAY),
            (&ordering_keys, Type::TEXT_ARRAY),
        ];
        let placed = transaction
            .execute_typed(sql!("key_pause.sql", "request_pauses"), &params)
            .await
            .map_err(StoreError::sql(failed))?;
        let all_placed = placed == keys.len() as u64;
        let sql = if all_placed { &*STILL_REPLAYED } else { &*HELD_BY };
        let other = transaction.query_typed(sql, &params).await.map_err(StoreError::sql(failed))?;
        self.notify(transaction).await?;
        Ok(other.first().map(|row| row.get("replay_id")))
    }

    pub async fn replay_holds(
        &self,
        client: &Client,
        replay_id: &str,
    ) -> Result<KeyPauseCounts, StoreError> {
        let row = client
            .query_typed_one(
                sql!("key_pause.sql", "replay_holds"),
                &[(&self.slot, Type::TEXT), (&replay_id, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("read which keys are held"))?;
        let through: Option<PgLsn> = row.get("through");
        Ok(KeyPauseCounts {
            wanted: row.get::<_, i64>("wanted").unsigned_abs(),
            held: row.get::<_, i64>("held").unsigned_abs(),
            through: through.map_or(Lsn::ZERO, |lsn| Lsn::new(lsn.into())),
        })
    }

    /// Inserts history rows of a key before its pending rows. Rows that the hold does not cover, or
    /// that are already there, are left out. Returns the number of new rows, which is 0 if this
    /// replay does not hold the key.
    ///
    /// A row is recorded as `<id>@<replay id>`, so that an id always names one row.
    ///
    /// # Errors
    ///
    /// The caller may add the rows again.
    pub async fn add_history(
        &self,
        client: &Client,
        replay_id: &str,
        history: History<'_>,
    ) -> Result<u64, StoreError> {
        let History { key, rows, source } = history;
        let mut columns = HistoryColumns::default();
        for row in rows {
            columns.push(row)?;
        }
        client
            .execute_typed(
                &ADD,
                &[
                    (&self.slot, Type::TEXT),
                    (&replay_id, Type::TEXT),
                    (&key.topic, Type::TEXT),
                    (&key.ordering_key, Type::TEXT),
                    (&columns.event_id, Type::TEXT_ARRAY),
                    (&columns.place, Type::TEXT_ARRAY),
                    (&columns.commit_lsn, Type::PG_LSN_ARRAY),
                    (&columns.tx_index, Type::INT4_ARRAY),
                    (&columns.message, Type::BYTEA_ARRAY),
                    (&(source == HistorySource::Table), Type::BOOL),
                    (&columns.event_type, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(StoreError::sql("add rows of a replay"))
    }

    /// Marks a history row as dead, because it can never be published. The key must be held, so that
    /// no relay publishes the row before. Returns whether the row is there.
    pub async fn mark_history_dead(
        &self,
        client: &Client,
        replay_id: &str,
        position: Position,
        failure: &PublishFailure,
    ) -> Result<bool, StoreError> {
        let commit_lsn = PgLsn::from(position.commit_lsn.as_u64());
        let tx_index = signed(position.tx_index, "index within the transaction")?;
        let error = AllowedCharacters::Ascii.line(&failure.message, ERROR_BYTES_MAX);
        let marked = client
            .execute_typed(
                sql!("key_pause.sql", "mark_dead"),
                &[
                    (&self.slot, Type::TEXT),
                    (&replay_id, Type::TEXT),
                    (&commit_lsn, Type::PG_LSN),
                    (&tx_index, Type::INT4),
                    (&failure.code.as_str(), Type::TEXT),
                    (&error, Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql("record a dead row of a replay"))?;
        Ok(marked > 0)
    }

    /// Lifts all holds of a replay and notifies the relay. The keys continue, with the history
    /// first.
    pub async fn lift_pauses(
        &self,
        transaction: &Transaction<'_>,
        replay_id: &str,
    ) -> Result<(), StoreError> {
        let failed = "let keys continue";
        let of_replay: [Parameter<'_>; 2] = [(&self.slot, Type::TEXT), (&replay_id, Type::TEXT)];
        transaction.execute_typed(&LIFT, &of_replay).await.map_err(StoreError::sql(failed))?;
        transaction
            .execute_typed(sql!("key_pause.sql", "lift_pauses"), &of_replay)
            .await
            .map_err(StoreError::sql(failed))?;
        self.notify(transaction).await
    }

    /// Removes the unpublished rows of a replay and returns their number. A row that is in flight
    /// is still published.
    pub async fn remove_replayed(
        &self,
        transaction: &Transaction<'_>,
        replay_id: &str,
    ) -> Result<u64, StoreError> {
        let failed = "take back rows of a replay";
        let removed = transaction
            .query_typed_one(&REMOVE, &[(&self.slot, Type::TEXT), (&replay_id, Type::TEXT)])
            .await
            .map_err(StoreError::sql(failed))?;
        self.notify(transaction).await?;
        Ok(removed.get::<_, i64>("removed").unsigned_abs())
    }

    pub async fn replayed_rows(
        &self,
        client: &Client,
        replay_id: &str,
    ) -> Result<ReplayedRows, StoreError> {
        let row = client
            .query_typed_one(
                &REPLAYED,
                &[
                    (&self.slot, Type::TEXT),
                    (&replay_id, Type::TEXT),
                    (&self.holds_on_dead(), Type::BOOL),
                ],
            )
            .await
            .map_err(StoreError::sql("count the rows of a replay"))?;
        let count = |column| row.get::<_, i64>(column).unsigned_abs();
        Ok(ReplayedRows {
            retrying: count("retrying"),
            behind_dead: count("behind_dead"),
            others_behind_dead: count("others_behind_dead"),
            dead: count("dead"),
            finished: count("finished"),
        })
    }
}

fn held_key(row: &tokio_postgres::Row) -> HeldKey {
    HeldKey {
        topic: row.get("topic"),
        ordering_key: row.get("ordering_key"),
        replay_id: row.get("replay_id"),
        is_held: row.get("is_held"),
    }
}

/// The rows of a history, column by column.
#[derive(Default)]
struct HistoryColumns<'a> {
    event_id: Vec<Cow<'a, str>>,
    place: Vec<String>,
    commit_lsn: Vec<PgLsn>,
    tx_index: Vec<i32>,
    event_type: Vec<Option<Cow<'a, str>>>,
    message: Vec<&'a [u8]>,
}

impl<'a> HistoryColumns<'a> {
    fn push(&mut self, row: &HistoryRow<'a>) -> Result<(), StoreError> {
        let HistoryRow { position, event_id, event_type, message } = *row;
        let id = storable(event_id, NAME_BYTES_MAX);
        let place = taken_suffix(position);
        // A shortened id may equal another row's id.
        let id = if id == event_id { id } else { Cow::Owned(format!("{id}{place}")) };
        self.event_id.push(id);
        self.place.push(place);
        self.commit_lsn.push(position.commit_lsn.as_u64().into());
        self.tx_index.push(signed(position.tx_index, "index within the transaction")?);
        self.event_type.push(event_type.map(|it| storable(it, NAME_BYTES_MAX)));
        self.message.push(message);
        Ok(())
    }
}

// The index of each state gives the first pending row. The process that streams is read from memory
// when the statement runs. A session that takes the slot later reads the hold when it starts.
static ANSWER: SqlText = SqlText::new(|| sql!("key_pause.sql", "answer"));

/// Finds another replay that holds one of the keys. Probes one index for each key, as the next
/// statement does. With a join, the planner could compare each key with each row.
static HELD_BY: SqlText = SqlText::new(|| sql!("key_pause.sql", "held_by"));

/// A key with unpublished replayed rows is still being replayed, although its hold is lifted.
static STILL_REPLAYED: SqlText = SqlText::new(|| sql!("key_pause.sql", "still_replayed"));

// Two outbox tables may use equal ids. If a row of another position has the id, the position is
// appended.
static ADD: SqlText = SqlText::new(|| sql!("key_pause.sql", "add"));

static LIFT: SqlText = SqlText::new(|| sql!("key_pause.sql", "lift"));

// If the key has no other hold, the first row behind the removed rows becomes due. A head whose
// outcome the relay is writing is in flight, and waiting for its lock could deadlock.
static REMOVE: SqlText = SqlText::new(|| sql!("key_pause.sql", "remove"));

static REPLAYED: SqlText = SqlText::new(|| sql!("key_pause.sql", "replayed"));

//! Reading dispatch state: which keys are parked, what is recorded, how much there is.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::types::{PgLsn, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::{DispatchStore, Key, position_of, seconds, unsigned, until};
use crate::store_error::StoreError;

/// A key that has rows in dispatch state, and so must not be published past them.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedKey {
    /// Full name of the topic.
    pub topic: String,
    /// The ordering key; empty stands for all rows of the topic that have none.
    pub ordering_key: String,
    /// Rows that are retrying.
    pub rows: u64,
    /// Dead rows that hold the key or will; zero unless dead rows hold their key.
    pub dead_rows: u64,
    /// Whether the first row is a dead one, so that nothing of the key may go out.
    pub is_held: bool,
    /// When the first row is due; None when it is due whenever the key is next claimed.
    pub next_attempt_in: Option<Duration>,
    /// How often the first row has been tried.
    pub attempts: u32,
}

impl ParkedKey {
    /// The key alone.
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        Key { topic: &self.topic, ordering_key: &self.ordering_key }
    }
}

impl std::fmt::Debug for ParkedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key: this reaches logs.
        f.debug_struct("ParkedKey")
            .field("topic", &self.topic)
            .field("rows", &self.rows)
            .field("dead_rows", &self.dead_rows)
            .field("next_attempt_in", &self.next_attempt_in)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

/// How many rows there are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchCounts {
    /// Will be published again.
    pub retrying: u64,
    /// Wait for an operator.
    pub dead: u64,
    /// Stored by Pub/Sub.
    pub published: u64,
    /// Given up by an operator.
    pub discarded: u64,
}

impl DispatchStore {
    /// All keys that have rows retrying or, where dead rows hold their key, dead ones.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn parked_keys(&self, client: &Client) -> Result<Vec<ParkedKey>, StoreError> {
        let mut keys = Vec::new();
        self.each_parked_key(client, &mut |key| keys.push(key)).await?;
        Ok(keys)
    }

    /// Tells each of them as it comes from the server, and how many there were: together they may be
    /// more than memory holds.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended; some were told by then.
    pub async fn each_parked_key(
        &self,
        client: &Client,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreError> {
        let sql = format!(
            "{SUMMARY} FROM ({FIRST_ROWS} WHERE {PARKED} GROUP BY d.topic, d.ordering_key) AS f"
        );
        let hold = self.holds_on_dead();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.slot, Type::TEXT), (&hold, Type::BOOL)];
        let mut count = 0;
        let rows = client.query_typed_raw(&sql, params).await;
        let mut rows = pin!(rows.map_err(StoreError::sql("read parked keys"))?);
        while let Some(row) = rows.try_next().await.map_err(StoreError::sql("read parked keys"))? {
            each(parked_key(&row)?);
            count += 1;
        }
        Ok(count)
    }

    /// Those of these keys that still have such rows: a key that is missing from the answer may
    /// return to its lane.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn parked(
        &self,
        client: &Client,
        keys: &[Key<'_>],
    ) -> Result<Vec<ParkedKey>, StoreError> {
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        let sql = format!(
            "{SUMMARY} FROM unnest($3, $4) AS k(topic, ordering_key) {}",
            first_rows_of_each()
        );
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&topics, Type::TEXT_ARRAY), (&ordering_keys, Type::TEXT_ARRAY)];
        self.keys(client, &sql, &params).await
    }

    /// Keys that can be claimed now because a row of theirs is due, longest due first, from at most
    /// `limit` due rows.
    ///
    /// This is how an operator's `retry`, and plain SQL that sets `next_attempt_at`, reach a running
    /// relay; also rows whose lease is over. Cheap while nothing is due. Keys with rows in flight are
    /// among them when an operator made those due: leave them until their outcomes are in.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn due_keys(
        &self,
        client: &Client,
        limit: u32,
    ) -> Result<Vec<ParkedKey>, StoreError> {
        self.due_keys_except(client, &[], limit).await
    }

    /// The same, without the keys of these topics: they would take the place of others.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn due_keys_except(
        &self,
        client: &Client,
        topics: &[&str],
        limit: u32,
    ) -> Result<Vec<ParkedKey>, StoreError> {
        let sql =
            format!("{SUMMARY} FROM ({DUE_KEYS}) AS k {} ORDER BY k.since", first_rows_of_each());
        let limit = i64::from(limit);
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&limit, Type::INT8), (&topics, Type::TEXT_ARRAY)];
        self.keys(client, &sql, &params).await
    }

    /// The positions of all recorded rows at and after `lsn`, in order, whatever became of them.
    ///
    /// The server may stream these again after a restart; they must neither be published nor parked
    /// again.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn recorded_since(
        &self,
        client: &Client,
        lsn: Lsn,
    ) -> Result<Vec<Position>, StoreError> {
        client
            .query_typed(
                "SELECT commit_lsn, tx_index FROM public.app_outbox_dispatch
                  WHERE slot = $1 AND commit_lsn >= $2
                  ORDER BY commit_lsn, tx_index",
                &[(&self.slot, Type::TEXT), (&PgLsn::from(lsn.as_u64()), Type::PG_LSN)],
            )
            .await
            .map_err(StoreError::sql("read recorded positions"))?
            .iter()
            .map(position_of)
            .collect()
    }

    /// How many rows there are in each state.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn counts(&self, client: &Client) -> Result<DispatchCounts, StoreError> {
        // Each count from its own partial index, which holds no messages; a scan of the table would
        // read them all.
        let row = client
            .query_typed_one(
                "SELECT
                   (SELECT count(*) FROM public.app_outbox_dispatch WHERE slot = $1 AND status = 'retrying') AS retrying,
                   (SELECT count(*) FROM public.app_outbox_dispatch WHERE slot = $1 AND status = 'dead') AS dead,
                   (SELECT count(*) FROM public.app_outbox_dispatch WHERE slot = $1 AND status = 'published') AS published,
                   (SELECT count(*) FROM public.app_outbox_dispatch WHERE slot = $1 AND status = 'discarded') AS discarded",
                &[(&self.slot, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("count rows in dispatch state"))?;
        Ok(DispatchCounts {
            retrying: count(&row, "retrying"),
            dead: count(&row, "dead"),
            published: count(&row, "published"),
            discarded: count(&row, "discarded"),
        })
    }

    /// Deletes rows published or discarded for longer than `retention`; returns how many.
    ///
    /// Keeps those the slot has not confirmed yet: the server would stream them again, and nothing
    /// would say that they are settled.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended; rows may have been deleted.
    pub async fn prune(&self, client: &Client, retention: Duration) -> Result<u64, StoreError> {
        let mut deleted_count = 0;
        loop {
            let deleted = client
                .execute_typed(
                    PRUNE,
                    &[
                        (&self.slot, Type::TEXT),
                        (&seconds(retention), Type::FLOAT8),
                        (&PRUNE_ROWS_MAX, Type::INT8),
                    ],
                )
                .await
                .map_err(StoreError::sql("prune dispatch state"))?;
            deleted_count += deleted;
            if i64::try_from(deleted).unwrap_or(i64::MAX) < PRUNE_ROWS_MAX {
                return Ok(deleted_count);
            }
        }
    }

    async fn keys(
        &self,
        client: &Client,
        sql: &str,
        further: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<ParkedKey>, StoreError> {
        let hold = self.holds_on_dead();
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> =
            vec![(&self.slot, Type::TEXT), (&hold, Type::BOOL)];
        params.extend(further.iter().cloned());
        client
            .query_typed(sql, &params)
            .await
            .map_err(StoreError::sql("read parked keys"))?
            .iter()
            .map(parked_key)
            .collect()
    }
}

/// Rows of one `DELETE`, so that it stays short and frees its locks.
const PRUNE_ROWS_MAX: i64 = 5_000;

const PRUNE: &str = "
DELETE FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY (ARRAY(
   SELECT event_id FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status IN ('published', 'discarded')
      AND updated_at < now() - make_interval(secs => $2)
      AND commit_lsn < coalesce(
            (SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
            'FFFFFFFF/FFFFFFFF')
    LIMIT $3))
   AND status IN ('published', 'discarded')";

/// The rows that make their key parked.
const PARKED: &str = "d.slot = $1 AND (d.status = 'retrying' OR ($2 AND d.status = 'dead' AND d.ordering_key <> ''))";

/// Each key of `d` with what its first row holds, in one pass and without sorting each key: the least
/// array is that of the first row, because arrays compare from the left and positions come first.
const FIRST_ROWS: &str = "
SELECT d.topic, d.ordering_key,
       count(*) FILTER (WHERE d.status = 'retrying') AS retrying,
       count(*) FILTER (WHERE d.status = 'dead') AS dead,
       min(d.next_attempt_at) AS first_due,
       min(ARRAY[d.commit_lsn - '0/0', d.tx_index, extract(epoch FROM d.next_attempt_at), d.attempts])
         FILTER (WHERE d.status = 'retrying') AS head,
       min(ARRAY[d.commit_lsn - '0/0', d.tx_index]) FILTER (WHERE d.status = 'dead') AS dead_head
  FROM public.app_outbox_dispatch d";

/// What is told of a key. Unordered rows have no head: of them it is the moment the first is due.
const SUMMARY: &str = "
SELECT f.topic, f.ordering_key, f.retrying, f.dead,
       f.dead_head IS NOT NULL AND (f.head IS NULL OR f.dead_head < f.head) AS is_held,
       (CASE WHEN f.ordering_key = '' THEN extract(epoch FROM f.first_due) ELSE f.head[3] END
         - extract(epoch FROM now()))::float8 AS next_attempt_in,
       coalesce(f.head[4], 0)::int AS attempts";

/// Keys with a due row, unless a claim would give nothing: because the head is not due itself, or
/// because a dead row stands before it. Without that the same keys would fill the limit for ever.
const DUE_KEYS: &str = "
SELECT topic, ordering_key, min(next_attempt_at) AS since
  FROM (
    SELECT r.topic, r.ordering_key, r.next_attempt_at
      FROM public.app_outbox_dispatch r
     WHERE r.slot = $1 AND r.status = 'retrying' AND r.next_attempt_at <= now()
       AND r.topic <> ALL ($4)
       AND (r.ordering_key = '' OR EXISTS (
         SELECT
           FROM (
             SELECT h.next_attempt_at, h.commit_lsn, h.tx_index
               FROM public.app_outbox_dispatch h
              WHERE h.slot = $1 AND h.topic = r.topic AND h.ordering_key = r.ordering_key
                AND h.status = 'retrying'
              ORDER BY h.commit_lsn, h.tx_index
              LIMIT 1
           ) AS head
          WHERE (head.next_attempt_at IS NULL OR head.next_attempt_at <= now())
            AND NOT ($2 AND EXISTS (
              SELECT
                FROM public.app_outbox_dispatch x
               WHERE x.slot = $1 AND x.topic = r.topic AND x.ordering_key = r.ordering_key
                 AND x.status = 'dead'
                 AND (x.commit_lsn, x.tx_index) < (head.commit_lsn, head.tx_index)))))
     ORDER BY r.next_attempt_at
     LIMIT $3
  ) AS due
 GROUP BY topic, ordering_key";

/// For each key of `k`, so that its rows are found through the index.
fn first_rows_of_each() -> String {
    format!(
        "CROSS JOIN LATERAL ({FIRST_ROWS}
          WHERE d.topic = k.topic AND d.ordering_key = k.ordering_key AND {PARKED}
          GROUP BY d.topic, d.ordering_key) AS f"
    )
}

fn parked_key(row: &Row) -> Result<ParkedKey, StoreError> {
    let next_attempt_in: Option<f64> = row.get("next_attempt_in");
    Ok(ParkedKey {
        topic: row.get("topic"),
        ordering_key: row.get("ordering_key"),
        rows: count(row, "retrying"),
        dead_rows: count(row, "dead"),
        is_held: row.get("is_held"),
        next_attempt_in: next_attempt_in.map(until),
        attempts: unsigned(row.get("attempts"), "app_outbox_dispatch.attempts")?,
    })
}

/// A `count(*)`, which is never negative.
fn count(row: &Row, column: &str) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}

//! Finds the keys that can be claimed now. The query runs often, so its cost does not depend on the
//! number of parked rows.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::DispatchStore;
use crate::store_error::StoreError;

/// The result of one query for due keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DueKeys {
    /// Topic and ordering key, longest due first.
    pub keys: Vec<(String, String)>,
    /// Whether rows that are due but cannot be claimed filled the result. They have been moved
    /// away, so another query may find more keys.
    pub has_more: bool,
}

impl DispatchStore {
    /// Returns keys that can be claimed now because a row of theirs is due, longest due first, at
    /// most `limit`. Keys of the topics in `except` are left out, because they would displace other
    /// keys.
    ///
    /// An operator's `retry`, plain SQL that sets `next_attempt_at`, and rows whose lease ended
    /// reach a running relay this way. A key with rows in flight is included if an operator made
    /// these rows due. The caller leaves such a key until it has the outcomes.
    ///
    /// Reads at most `limit` rows of each topic. If a topic has that many, rows that cannot be
    /// claimed lose their due time, or every query would read them again. A row behind its head
    /// gets a null `next_attempt_at`. A head is postponed if it is behind a dead row that stops its
    /// key, or if a replay holds the key.
    ///
    /// # Errors
    ///
    /// The server refused the statement, or the connection ended.
    pub async fn due_keys(
        &self,
        client: &Client,
        except: &[&str],
        limit: u32,
    ) -> Result<DueKeys, StoreError> {
        let rows = client
            .query_typed(
                DUE,
                &[
                    (&self.slot, Type::TEXT),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&except, Type::TEXT_ARRAY),
                    (&i64::from(limit), Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("look for due keys"))?;
        let has_more = rows.first().is_some_and(|row| row.get::<_, i64>("moved") > 0);
        let key = |row: &tokio_postgres::Row| {
            Some((row.get::<_, Option<_>>("topic")?, row.get::<_, Option<_>>("ordering_key")?))
        };
        Ok(DueKeys { keys: rows.iter().filter_map(key).collect(), has_more })
    }
}

// Topics are found by jumping from one to the next, and due rows through the index of rows with a
// time. Every other subquery reads one row through an index. `EXISTS` is not used for dead rows and
// holds: with statistics from a time without parked rows, the planner would scan the table.
//
// A row behind its head loses its time only under a lock on the head. A change that makes the row
// the head must first change the current head. A head that is stopped is postponed only while its
// time is the one that we read. The change that ends the stop also sets that time.
const DUE: &str = "
WITH RECURSIVE topics AS (
  (SELECT topic FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying' ORDER BY topic LIMIT 1)
  UNION ALL
  SELECT (SELECT d.topic FROM public.app_outbox_dispatch d
           WHERE d.slot = $1 AND d.status = 'retrying' AND d.topic > t.topic ORDER BY d.topic LIMIT 1)
    FROM topics t
   WHERE t.topic IS NOT NULL
), wanted AS MATERIALIZED (
  SELECT topic FROM topics WHERE topic <> ALL ($3)
), seen AS MATERIALIZED (
  SELECT w.topic, r.ordering_key, r.event_id, r.next_attempt_at, h.event_id AS head,
         h.next_attempt_at AS head_at, h.event_id = r.event_id AS is_head,
         $2 AND coalesce((
           SELECT (x.topic, x.ordering_key) = (w.topic, r.ordering_key)
                  AND (x.commit_lsn, x.tx_index) < (h.commit_lsn, h.tx_index)
             FROM public.app_outbox_dispatch x
            WHERE x.slot = $1 AND x.status = 'dead'
              AND (x.topic, x.ordering_key) >= (w.topic, r.ordering_key)
            ORDER BY x.topic, x.ordering_key, x.commit_lsn, x.tx_index
            LIMIT 1
         ), false) OR coalesce((
           SELECT true FROM public.app_outbox_hold o
            WHERE o.slot = $1 AND o.topic = w.topic AND o.ordering_key = r.ordering_key
            LIMIT 1
         ), false) AS is_held,
         count(*) OVER (PARTITION BY w.topic) >= $4 AS is_crowded
    FROM wanted w
   CROSS JOIN LATERAL (
     SELECT d.event_id, d.ordering_key, d.next_attempt_at
       FROM public.app_outbox_dispatch d
      WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key <> ''
        AND d.next_attempt_at <= now()
      ORDER BY d.next_attempt_at
      LIMIT $4
   ) AS r
   CROSS JOIN LATERAL (
     SELECT d.event_id, d.commit_lsn, d.tx_index, d.next_attempt_at
       FROM public.app_outbox_dispatch d
      WHERE d.slot = $1 AND d.topic = w.topic AND d.ordering_key = r.ordering_key
        AND d.status = 'retrying'
      ORDER BY d.commit_lsn, d.tx_index
      LIMIT 1
   ) AS h
), locked AS MATERIALIZED (
  SELECT event_id, next_attempt_at
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') = 'retrying'
     AND event_id = ANY (ARRAY(
       SELECT head FROM seen WHERE is_crowded AND (is_held OR NOT is_head)))
     FOR UPDATE SKIP LOCKED
), waiting AS MATERIALIZED (
  SELECT event_id
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') = 'retrying' AND next_attempt_at <= now()
     AND event_id = ANY (ARRAY(
       SELECT s.event_id FROM seen s JOIN locked l ON l.event_id = s.head
        WHERE s.is_crowded AND NOT s.is_head))
     FOR UPDATE SKIP LOCKED
), behind AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = NULL
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM waiting))
  RETURNING 1
), held AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = now() + interval '10 minutes'
   WHERE slot = $1 AND event_id = ANY (ARRAY(
       SELECT s.event_id FROM seen s JOIN locked l USING (event_id, next_attempt_at)
        WHERE s.is_crowded AND s.is_held AND s.is_head))
  RETURNING 1
), due AS (
  SELECT topic, ordering_key, min(since) AS since
    FROM (
      SELECT topic, ordering_key, next_attempt_at AS since
        FROM seen
       WHERE NOT is_held AND (head_at IS NULL OR head_at <= now())
      UNION ALL
      SELECT w.topic, '', loose.next_attempt_at
        FROM (SELECT topic FROM wanted
               WHERE (SELECT true FROM public.app_outbox_hold o
                       WHERE o.slot = $1 AND o.topic = wanted.topic AND o.ordering_key = ''
                       LIMIT 1) IS NULL
              OFFSET 0) AS w
       CROSS JOIN LATERAL (
         SELECT d.next_attempt_at
           FROM public.app_outbox_dispatch d
          WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key = ''
            AND d.next_attempt_at <= now()
          ORDER BY d.next_attempt_at
          LIMIT 1
       ) AS loose
    ) AS found
   GROUP BY topic, ordering_key
   ORDER BY since
   LIMIT $4
)
SELECT d.topic, d.ordering_key, m.moved
  FROM (SELECT (SELECT count(*) FROM behind) + (SELECT count(*) FROM held) AS moved) AS m
  LEFT JOIN due d ON true
 ORDER BY d.since";

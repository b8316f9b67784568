//! Operators' commands: list, show, retry, edit, discard. They are safe while the relay runs.

use std::time::{Duration, SystemTime};

use pgoutput_parser::Position;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row, Transaction};
use walrelay_core::Fault;

use super::stored_text::{ERROR_BYTES_MAX, MOMENT, prepend_line, storable_line};
use super::{DISPATCH_CHANNEL, DispatchStatus, DispatchStore, position_of, seconds, unsigned};
use crate::store_error::StoreError;
use walrelay_pg_client::{Parameter, SCHEMA, SqlText, sql};

/// A selection of rows. A field that is None matches all rows.
#[derive(Debug, Clone, Default)]
pub struct DispatchFilter {
    pub status: Option<DispatchStatus>,
    /// Only rows of this topic, by its full name.
    pub topic: Option<String>,
    pub ordering_key: Option<String>,
    /// Only rows parked longer ago than this.
    pub older_than: Option<Duration>,
    pub limit: u32,
}

/// A row without its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchRow {
    /// The outbox id, or `<id>@<commit_lsn>/<tx_index>` where two rows share one.
    pub event_id: String,
    pub position: Position,
    pub topic: String,
    /// The ordering key. Empty means unordered.
    pub ordering_key: String,
    pub event_type: Option<String>,
    pub status: DispatchStatus,
    pub attempts: u32,
    /// Time when the row is due, or the end of its lease.
    pub next_attempt_at: Option<SystemTime>,
    /// A gRPC code, or our own reason.
    pub error_code: Option<String>,
    /// A line for each attempt, newest first.
    pub last_error: Option<String>,
    /// Pub/Sub's message id, once published.
    pub message_id: Option<String>,
    pub message_bytes: u64,
    pub parked_at: SystemTime,
    /// Time when the row was last claimed or changed.
    pub updated_at: SystemTime,
}

impl DispatchRow {
    /// Returns whether the recorded message lacks the row's headers because they could not be read.
    #[must_use]
    pub fn lacks_headers(&self) -> bool {
        self.ended_with(Fault::HEADERS_CODE)
    }

    /// Returns whether a retry cannot publish the row, because the recorded message lacks a part of
    /// the row.
    #[must_use]
    pub fn needs_edit(&self) -> bool {
        self.lacks_headers() || self.ended_with(Fault::TOO_LARGE_CODE)
    }

    fn ended_with(&self, code: &str) -> bool {
        match self.status {
            DispatchStatus::Dead | DispatchStatus::Discarded => {
                self.error_code.as_deref() == Some(code)
            }
            DispatchStatus::Retrying | DispatchStatus::Published => false,
        }
    }
}

/// A row with its message.
#[derive(Clone, PartialEq, Eq)]
pub struct DispatchDetail {
    pub row: DispatchRow,
    /// The encoded `PubsubMessage`, or an [incomplete one](walrelay_core::IncompleteMessage).
    pub message: Vec<u8>,
}

impl std::fmt::Debug for DispatchDetail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatchDetail").field("row", &self.row).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetrySelection {
    /// These rows, by their ids in dispatch state.
    Events(Vec<String>),
    AllDead,
    /// All dead or retrying rows of a topic, by its full name.
    Topic(String),
}

impl DispatchStore {
    /// Returns the rows that match, in position order.
    pub async fn list(
        &self,
        client: &Client,
        filter: &DispatchFilter,
    ) -> Result<Vec<DispatchRow>, StoreError> {
        // spliced: the columns that `dispatch_row` reads.
        let sql = format!(
            "SELECT {COLUMNS} FROM {SCHEMA}.app_outbox_dispatch
              WHERE slot = $1 AND ($2 IS NULL OR status = $2) AND ($3 IS NULL OR topic = $3)
                AND ($4 IS NULL OR ordering_key = $4)
                AND ($5 IS NULL OR parked_at < now() - make_interval(secs => $5))
              ORDER BY commit_lsn, tx_index, event_id
              LIMIT $6"
        );
        client
            .query_typed(
                &sql,
                &[
                    (&self.slot, Type::TEXT),
                    (&filter.status.map(DispatchStatus::as_str), Type::TEXT),
                    (&filter.topic, Type::TEXT),
                    (&filter.ordering_key, Type::TEXT),
                    (&filter.older_than.map(seconds), Type::FLOAT8),
                    (&i64::from(filter.limit), Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("list dispatch state"))?
            .iter()
            .map(dispatch_row)
            .collect()
    }

    /// Returns one row with its message.
    pub async fn show(
        &self,
        client: &Client,
        event_id: &str,
    ) -> Result<DispatchDetail, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS}, message FROM {SCHEMA}.app_outbox_dispatch WHERE slot = $1 AND event_id = $2"
        );
        let row = client
            .query_typed_opt(&sql, &[(&self.slot, Type::TEXT), (&event_id, Type::TEXT)])
            .await
            .map_err(StoreError::sql("show a row of dispatch state"))?
            .ok_or_else(|| self.unknown(event_id))?;
        Ok(DispatchDetail { row: dispatch_row(&row)?, message: row.get("message") })
    }

    /// Returns the first ids of rows that begin like this, six at most.
    pub async fn ids_like(&self, client: &Client, start: &str) -> Result<Vec<String>, StoreError> {
        let sql = sql!("operator_commands.sql", "ids_like");
        let rows = client.query_typed(sql, &[(&self.slot, Type::TEXT), (&start, Type::TEXT)]).await;
        let rows = rows.map_err(StoreError::sql("look for ids in dispatch state"))?;
        Ok(rows.iter().map(|row| row.get("event_id")).collect())
    }

    /// Makes these rows due now with all attempts available again, and notifies the relay. Returns
    /// the number of selected rows.
    ///
    /// Rows before them in their key become due also, because they have to be published first.
    /// Discarded rows may be retried, but published rows may not.
    ///
    /// # Errors
    ///
    /// One of the ids is unknown, published or recorded without a part of its row. Then no row is
    /// retried.
    pub async fn retry(
        &self,
        client: &mut Client,
        selection: &RetrySelection,
    ) -> Result<u64, StoreError> {
        let failed = "retry rows of dispatch state";
        let transaction = client.transaction().await.map_err(StoreError::sql(failed))?;
        let (condition, params): (_, Vec<Parameter<'_>>) = match selection {
            RetrySelection::Events(event_ids) => {
                ("event_id = ANY ($2)", vec![(event_ids, Type::TEXT_ARRAY)])
            }
            RetrySelection::AllDead => ("status = 'dead'", Vec::new()),
            RetrySelection::Topic(topic) => {
                ("topic = $2 AND status IN ('retrying', 'dead')", vec![(topic, Type::TEXT)])
            }
        };
        let mut all_params: Vec<Parameter<'_>> = vec![(&self.slot, Type::TEXT)];
        all_params.extend(params);
        transaction
            .query_typed(&lock_sql(condition), &all_params)
            .await
            .map_err(StoreError::sql(failed))?;
        if let RetrySelection::Events(event_ids) = selection {
            for event_id in event_ids {
                let status = self.lock(&transaction, event_id).await?;
                refuse(event_id, status, &[DispatchStatus::Published], "retried")?;
            }
            self.refuse_incomplete(&transaction, event_ids).await?;
        }
        let retried: i64 = transaction
            .query_typed_one(&retry_sql(condition), &all_params)
            .await
            .map_err(StoreError::sql(failed))?
            .get("retried");
        self.notify(&transaction).await?;
        transaction.commit().await.map_err(StoreError::sql(failed))?;
        Ok(u64::try_from(retried).unwrap_or_default())
    }

    /// Replaces the recorded message, makes the row due now and notifies the relay.
    ///
    /// If the row is in flight, it is published with the old message and then, after any outcome,
    /// once more with the new one. Topic and ordering key stay the same. The caller ensures that
    /// the message carries the same ordering key.
    ///
    /// # Errors
    ///
    /// The row does not exist or is published.
    pub async fn edit(
        &self,
        client: &mut Client,
        event_id: &str,
        message: &[u8],
    ) -> Result<(), StoreError> {
        let failed = "edit a row of dispatch state";
        let transaction = client.transaction().await.map_err(StoreError::sql(failed))?;
        let status = self.lock(&transaction, event_id).await?;
        refuse(event_id, status, &[DispatchStatus::Published], "edited")?;
        // spliced: the history.
        let sql = format!(
            "UPDATE {SCHEMA}.app_outbox_dispatch AS d
                SET message = $3, status = 'retrying', attempts = 0, next_attempt_at = now(),
                    error_code = NULL, last_error = {}, updated_at = {NEW_UPDATED_AT},
                    edited_at = now()
              WHERE slot = $1 AND event_id = $2",
            prepend_line(&format!("format('edited at %s', {MOMENT})"), "d.last_error"),
        );
        transaction
            .execute_typed(
                &sql,
                &[(&self.slot, Type::TEXT), (&event_id, Type::TEXT), (&message, Type::BYTEA)],
            )
            .await
            .map_err(StoreError::sql(failed))?;
        self.notify(&transaction).await?;
        transaction.commit().await.map_err(StoreError::sql(failed))
    }

    /// Discards a row, records the reason, and notifies the relay, so that the rows behind it
    /// continue.
    ///
    /// # Errors
    ///
    /// The row does not exist or is finished.
    pub async fn discard(
        &self,
        client: &mut Client,
        event_id: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let failed = "discard a row of dispatch state";
        let transaction = client.transaction().await.map_err(StoreError::sql(failed))?;
        let status = self.lock(&transaction, event_id).await?;
        let finished = [DispatchStatus::Published, DispatchStatus::Discarded];
        refuse(event_id, status, &finished, "discarded")?;
        // spliced: the history.
        let sql = format!(
            "UPDATE {SCHEMA}.app_outbox_dispatch AS d
                SET status = 'discarded', next_attempt_at = NULL, last_error = {}, updated_at = {NEW_UPDATED_AT}
              WHERE slot = $1 AND event_id = $2",
            prepend_line(&format!("format('discarded at %s: %s', {MOMENT}, $3)"), "d.last_error"),
        );
        let reason = storable_line(reason, ERROR_BYTES_MAX);
        let row: [Parameter<'_>; 2] = [(&self.slot, Type::TEXT), (&event_id, Type::TEXT)];
        transaction
            .execute_typed(&sql, &[row[0].clone(), row[1].clone(), (&reason, Type::TEXT)])
            .await
            .map_err(StoreError::sql(failed))?;
        transaction.execute_typed(&WAKE_NEXT, &row).await.map_err(StoreError::sql(failed))?;
        self.notify(&transaction).await?;
        transaction.commit().await.map_err(StoreError::sql(failed))
    }

    /// Locks one row and returns its state.
    pub(super) async fn lock(
        &self,
        transaction: &Transaction<'_>,
        event_id: &str,
    ) -> Result<DispatchStatus, StoreError> {
        transaction
            .query_typed_opt(
                sql!("operator_commands.sql", "lock"),
                &[(&self.slot, Type::TEXT), (&event_id, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("lock a row of dispatch state"))?
            .ok_or_else(|| self.unknown(event_id))?
            .get::<_, &str>("status")
            .parse()
    }

    /// Refuses rows whose message lacks a part of the row.
    async fn refuse_incomplete(
        &self,
        transaction: &Transaction<'_>,
        event_ids: &[String],
    ) -> Result<(), StoreError> {
        let codes = [Fault::HEADERS_CODE, Fault::TOO_LARGE_CODE];
        let found = transaction
            .query_typed_opt(
                sql!("operator_commands.sql", "refuse_incomplete"),
                &[
                    (&self.slot, Type::TEXT),
                    (&event_ids, Type::TEXT_ARRAY),
                    (&codes.as_slice(), Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(StoreError::sql("read rows of dispatch state"))?;
        let Some(row) = found else { return Ok(()) };
        let event_id = row.get("event_id");
        Err(match row.get::<_, &str>("error_code") {
            Fault::HEADERS_CODE => StoreError::WithoutHeaders { event_id },
            _ => StoreError::WithoutValue { event_id },
        })
    }

    /// Makes the relay check for due rows once the transaction has committed.
    pub(super) async fn notify(&self, transaction: &Transaction<'_>) -> Result<(), StoreError> {
        transaction
            .execute_typed(
                "SELECT pg_notify($1, $2)",
                &[(&DISPATCH_CHANNEL, Type::TEXT), (&self.slot, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("notify the relay"))?;
        Ok(())
    }

    fn unknown(&self, event_id: &str) -> StoreError {
        StoreError::UnknownEvent { slot: self.slot.clone(), event_id: event_id.to_owned() }
    }
}

pub(super) fn refuse(
    event_id: &str,
    status: DispatchStatus,
    refused: &[DispatchStatus],
    action: &'static str,
) -> Result<(), StoreError> {
    if refused.contains(&status) {
        let event_id = event_id.to_owned();
        return Err(StoreError::AlreadyFinished { event_id, status: status.to_string(), action });
    }
    Ok(())
}

pub(super) const COLUMNS: &str = "event_id, commit_lsn, tx_index, topic, ordering_key, event_type, status, attempts,
    next_attempt_at, error_code, last_error, message_id, octet_length(message)::int8 AS message_bytes,
    parked_at, updated_at";

/// SQL for a value of `updated_at` that no claim has.
pub(super) const NEW_UPDATED_AT: &str =
    "greatest(clock_timestamp(), updated_at + interval '1 microsecond')";

/// After a discard, makes the key's first row due. A row whose outcome the relay is writing is in
/// flight. If we waited for it while the relay waits for our row, both would deadlock.
static WAKE_NEXT: SqlText = SqlText::new(|| sql!("operator_commands.sql", "wake_next"));

/// Locks every row that a retry changes before it changes any. The order is the relay's order for
/// writing outcomes. With another order each could wait for the other.
fn lock_sql(condition: &str) -> String {
    // spliced: the condition of the selection.
    format!(
        "WITH chosen AS MATERIALIZED (
           SELECT event_id, topic, ordering_key
             FROM {SCHEMA}.app_outbox_dispatch
            WHERE slot = $1 AND {condition}
         ), touched AS MATERIALIZED (
           SELECT event_id FROM chosen
            UNION
           SELECT d.event_id
             FROM (SELECT DISTINCT topic, ordering_key FROM chosen WHERE ordering_key <> '') AS k
             JOIN {SCHEMA}.app_outbox_dispatch d
               ON d.slot = $1 AND d.topic = k.topic AND d.ordering_key = k.ordering_key
              AND d.status = 'retrying' AND d.next_attempt_at IS NOT NULL
         )
         SELECT count(*)
           FROM (
             SELECT event_id
               FROM {SCHEMA}.app_outbox_dispatch
              WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM touched))
              ORDER BY event_id
                FOR UPDATE
           ) AS locked"
    )
}

// A retrying row keeps its `updated_at`, so an outcome in flight still counts, because the message
// has not changed. Only the first row of a key gets a time. The rows behind it follow it, and a
// time of their own would be read every second.
fn retry_sql(condition: &str) -> String {
    let line = format!("format('retry asked for at %s', {MOMENT})");
    let history = prepend_line(&line, "d.last_error");
    // spliced: the condition of the selection, and the history.
    format!(
        "WITH chosen AS MATERIALIZED (
           SELECT event_id, topic, ordering_key, commit_lsn, tx_index
             FROM {SCHEMA}.app_outbox_dispatch
            WHERE slot = $1 AND {condition}
         ), heads AS MATERIALIZED (
           SELECT k.topic, k.ordering_key, least(k.chosen, r.retrying) AS head
             FROM (SELECT topic, ordering_key, min(ARRAY[commit_lsn - '0/0', tx_index]) AS chosen
                     FROM chosen
                    WHERE ordering_key <> ''
                    GROUP BY topic, ordering_key) AS k
             LEFT JOIN LATERAL (
               SELECT ARRAY[commit_lsn - '0/0', tx_index] AS retrying
                 FROM {SCHEMA}.app_outbox_dispatch
                WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
                  AND status = 'retrying'
                ORDER BY commit_lsn, tx_index
                LIMIT 1
             ) AS r ON true
         ), retried AS (
           UPDATE {SCHEMA}.app_outbox_dispatch AS d
              SET status = 'retrying', attempts = 0,
                  next_attempt_at = CASE WHEN c.ordering_key = '' OR c.is_head THEN now() END,
                  last_error = CASE WHEN d.status = 'retrying' THEN d.last_error ELSE {history} END,
                  updated_at = CASE WHEN d.status = 'retrying' THEN d.updated_at ELSE {bumped} END
             FROM (SELECT c.event_id, c.ordering_key,
                          ARRAY[c.commit_lsn - '0/0', c.tx_index] = h.head AS is_head
                     FROM chosen c
                     LEFT JOIN heads h USING (topic, ordering_key)) AS c
            WHERE d.slot = $1 AND d.event_id = c.event_id AND d.status <> 'published'
           RETURNING 1
         ), woken AS (
           UPDATE {SCHEMA}.app_outbox_dispatch AS d
              SET next_attempt_at =
                    CASE WHEN ARRAY[d.commit_lsn - '0/0', d.tx_index] = h.head THEN now() END
             FROM heads h
            WHERE d.slot = $1 AND d.topic = h.topic AND d.ordering_key = h.ordering_key
              AND d.status = 'retrying'
              AND (d.next_attempt_at IS NOT NULL
                   OR ARRAY[d.commit_lsn - '0/0', d.tx_index] = h.head)
              AND d.event_id NOT IN (SELECT event_id FROM chosen)
         )
         SELECT count(*) AS retried FROM retried",
        bumped = NEW_UPDATED_AT.replace("updated_at", "d.updated_at"),
    )
}

pub(super) fn dispatch_row(row: &Row) -> Result<DispatchRow, StoreError> {
    let message_bytes: i64 = row.get("message_bytes");
    Ok(DispatchRow {
        event_id: row.get("event_id"),
        position: position_of(row)?,
        topic: row.get("topic"),
        ordering_key: row.get("ordering_key"),
        event_type: row.get("event_type"),
        status: row.get::<_, &str>("status").parse()?,
        attempts: unsigned(row.get("attempts"), "app_outbox_dispatch.attempts")?,
        next_attempt_at: row.get("next_attempt_at"),
        error_code: row.get("error_code"),
        last_error: row.get("last_error"),
        message_id: row.get("message_id"),
        message_bytes: u64::try_from(message_bytes).unwrap_or_default(),
        parked_at: row.get("parked_at"),
        updated_at: row.get("updated_at"),
    })
}

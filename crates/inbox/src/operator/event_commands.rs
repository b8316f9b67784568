//! The commands for failed events: list, show, retry, edit, discard.
//!
//! Every change locks the key's row first and reads the event again, because a consumer may process
//! the event (C5).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use walrelay_pg_client::{SqlClient, sql};

use crate::attributes::Attributes;
use crate::error::InboxError;
use crate::event::EventFields;
use crate::operator::admin::{failed, has_inbox, refuse_hidden, refuse_hidden_changes, unknown};

/// The rows to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InboxFilter {
    /// Only rows of this status.
    pub status: Option<String>,
    /// Only rows of this ordering key.
    pub ordering_key: Option<String>,
    /// Only rows received longer ago than this.
    pub older_than: Option<Duration>,
    /// The maximum number of rows.
    pub limit: u32,
}

/// The events to retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboxSelection {
    /// The events with these ids.
    Events(Vec<String>),
    /// Every dead event of the consumer's generation.
    AllDead,
}

/// The new contents of a stored message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replacement {
    /// The new payload.
    pub data: Option<Vec<u8>>,
    /// The new attributes, all of them. The handler reads the event's fields from these from now
    /// on. The event's identity stays.
    pub attributes: Option<BTreeMap<String, String>>,
}

/// A consumer and its current generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerGeneration {
    consumer: String,
    generation: i32,
}

const COLUMNS: &str = sql!("event_commands.sql", "columns");

const ROWS: &str = sql!("event_commands.sql", "rows");

impl ConsumerGeneration {
    /// Finds the consumer of this name, or the only consumer if no name is given.
    ///
    /// # Errors
    ///
    /// Fails if no consumer or several consumers match, or if the database reports an error.
    pub async fn find(client: &SqlClient, name: Option<&str>) -> Result<Self, InboxError> {
        refuse_hidden(client).await?;
        let sql = sql!("event_commands.sql", "find");
        let rows = client.query(sql, &[&name]).await.map_err(failed("read the consumers"))?;
        match rows.as_slice() {
            [] => Err(unknown(name.unwrap_or("of any name"))),
            [row] => Ok(Self { consumer: row.get(0), generation: row.get(1) }),
            several => Err(InboxError::SeveralConsumers {
                names: several
                    .iter()
                    .map(|row| row.get::<_, String>(0))
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// Returns all consumers of the database. Empty if the database has no inbox.
    ///
    /// # Errors
    ///
    /// Fails if the database reports an error.
    pub async fn all(client: &SqlClient) -> Result<Vec<Self>, InboxError> {
        if !has_inbox(client).await? {
            return Ok(Vec::new());
        }
        refuse_hidden(client).await?;
        let sql = "SELECT consumer, generation FROM public.app_inbox_consumer ORDER BY consumer";
        let rows = client.query(sql, &[]).await.map_err(failed("read the consumers"))?;
        Ok(rows.iter().map(|row| Self { consumer: row.get(0), generation: row.get(1) }).collect())
    }

    /// Returns the consumer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.consumer
    }

    /// Returns the current generation.
    #[must_use]
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// Returns the first two columns of the consumer's rows: name and generation.
    pub(crate) fn place(&self) -> (&str, i32) {
        (&self.consumer, self.generation)
    }

    /// Returns rows as JSON objects, in the order in which keys drain.
    ///
    /// # Errors
    ///
    /// Fails if the database reports an error.
    pub async fn list(
        &self,
        client: &SqlClient,
        filter: &InboxFilter,
    ) -> Result<Vec<Value>, InboxError> {
        // spliced: COLUMNS and ROWS, which `show` also reads.
        let sql = format!(
            "SELECT ({COLUMNS})::text {ROWS}
                AND CASE WHEN $3::text IS NULL THEN i.status IN ('retrying', 'dead') ELSE i.status = $3 END
                AND ($4::text IS NULL OR i.ordering_key = $4)
                AND ($5::float8 IS NULL OR i.received_at < now() - make_interval(secs => $5))
              ORDER BY i.commit_lsn, i.tx_index, i.arrival LIMIT $6"
        );
        let age = filter.older_than.map(|age| age.as_secs_f64());
        let limit = i64::from(filter.limit);
        let rows = client
            .query(
                &sql,
                &[
                    &self.consumer,
                    &self.generation,
                    &filter.status,
                    &filter.ordering_key,
                    &age,
                    &limit,
                ],
            )
            .await;
        Ok(rows.map_err(failed("list the inbox"))?.iter().map(object).collect())
    }

    /// Returns one row with its message. The data are shown as JSON or text where possible.
    ///
    /// # Errors
    ///
    /// Fails if there is no such event, or if the database reports an error.
    pub async fn show(&self, client: &SqlClient, event_id: &str) -> Result<Value, InboxError> {
        // spliced: COLUMNS and ROWS, which `list` also reads.
        let sql = format!(
            "SELECT (({COLUMNS})::jsonb || jsonb_build_object(
                'message', convert_from(i.message, 'UTF8')::jsonb))::text,
                decode(convert_from(i.message, 'UTF8')::jsonb ->> 'data', 'base64')
              {ROWS} AND i.event_id = $3"
        );
        let row = client.query_opt(&sql, &[&self.consumer, &self.generation, &event_id]).await;
        let row = row.map_err(failed("read the event"))?;
        let row = row.ok_or_else(|| self.missing(event_id))?;
        let mut found = object(&row);
        if let Some(data) = row.get::<_, Option<Vec<u8>>>(1) {
            let stored = &mut found["message"]["data"];
            *stored = contents(&data, stored.take());
        }
        Ok(found)
    }

    /// Makes events due at once, and resets the attempts of dead events. Returns the number of
    /// events.
    ///
    /// # Errors
    ///
    /// Fails if an event does not exist or is finished, or if the database reports an error. Events
    /// before the failing one remain due.
    pub async fn retry(
        &self,
        client: &mut SqlClient,
        selection: &InboxSelection,
    ) -> Result<u64, InboxError> {
        let ids = match selection {
            InboxSelection::Events(ids) => ids.clone(),
            InboxSelection::AllDead => {
                let sql = sql!("event_commands.sql", "dead_events");
                let rows = client.query(sql, &[&self.consumer, &self.generation]).await;
                rows.map_err(failed("find dead events"))?.iter().map(|row| row.get(0)).collect()
            }
        };
        for id in &ids {
            let change = Change { set: RETRY, parts: &[], done: "tried again" };
            self.change(client, id, change).await?;
        }
        Ok(ids.len() as u64)
    }

    /// Replaces parts of a stored message, and makes the event due.
    ///
    /// # Errors
    ///
    /// Fails if the event does not exist or is finished, or if the database reports an error.
    pub async fn edit(
        &self,
        client: &mut SqlClient,
        event_id: &str,
        replacement: &Replacement,
    ) -> Result<(), InboxError> {
        let set = format!(
            "last_error = left(concat_ws(E'\\n', {EDITED_AT}, last_error), 4000), edited_at = now(),
             message = convert_to((convert_from(message, 'UTF8')::jsonb || jsonb_strip_nulls(
               jsonb_build_object('data', translate(encode($4::bytea, 'base64'), E'\\n', ''),
                                  'attributes', $5::text, 'event_type', $6::text,
                                  'aggregate_type', $7::text, 'aggregate_id', $8::text,
                                  'version', $9::int8, 'schema_version', $10::int4,
                                  'occurred_at', $11::timestamptz)))::text, 'UTF8'),
             event_type = coalesce($6, event_type), version = coalesce($9, version),
             occurred_at = coalesce($11, occurred_at), {RETRY}"
        );
        let attributes = replacement.attributes.as_ref().map(Attributes::of);
        let attributes = attributes.as_ref().map(Attributes::as_json);
        let says = replacement.attributes.as_ref().map(|map| EventFields::of(&map.into()));
        let says = says.unwrap_or_default();
        let parts: [&(dyn tokio_postgres::types::ToSql + Sync); 8] = [
            &replacement.data,
            &attributes,
            &says.event_type,
            &says.aggregate_type,
            &says.aggregate_id,
            &says.version,
            &says.schema_version,
            &says.occurred_at,
        ];
        self.change(client, event_id, Change { set: &set, parts: &parts, done: "edited" }).await
    }

    /// Discards an event for good. The reason stays in its row.
    ///
    /// # Errors
    ///
    /// Fails if the event does not exist or is finished, or if the database reports an error.
    pub async fn discard(
        &self,
        client: &mut SqlClient,
        event_id: &str,
        reason: &str,
    ) -> Result<(), InboxError> {
        let set = "status = 'discarded', next_attempt_at = NULL, message = NULL, done_at = now(),
             last_error = left(concat_ws(E'\\n', 'discarded: ' || $4::text, last_error), 4000)";
        let change = Change { set, parts: &[&reason], done: DISCARDED };
        self.change(client, event_id, change).await
    }

    async fn change(
        &self,
        client: &mut SqlClient,
        event_id: &str,
        change: Change<'_>,
    ) -> Result<(), InboxError> {
        let action = format!("{} an event", change.done);
        refuse_hidden_changes(client).await?;
        let transaction = client.transaction().await.map_err(failed(&action))?;
        self.change_locked(&transaction, event_id, change).await?;
        transaction.commit().await.map_err(failed(&action))
    }

    async fn change_locked(
        &self,
        transaction: &Transaction<'_>,
        event_id: &str,
        change: Change<'_>,
    ) -> Result<(), InboxError> {
        let broke = || failed("change an event of the inbox");
        let find = sql!("event_commands.sql", "ordering_key");
        let row = transaction.query_opt(find, &[&self.consumer, &self.generation, &event_id]).await;
        let Some(row) = row.map_err(broke())? else { return Err(self.missing(event_id)) };
        let key: String = row.get(0);
        let keys: Vec<&str> = if key.is_empty() { Vec::new() } else { vec![&key] };
        // Waits for a consumer that has locked the key. The next statement sees that consumer's
        // changes.
        let lock = "SELECT cardinality(public.app_inbox_lock($1, $2, $3, true))";
        let locked = transaction.query_one(lock, &[&self.consumer, &self.generation, &keys]).await;
        locked.map_err(broke())?;
        // spliced: the assignments of the change.
        let sql = format!(
            "UPDATE public.app_inbox SET {}
              WHERE consumer = $1 AND generation = $2 AND event_id = $3
                AND status IN ('retrying', 'dead') AND message IS NOT NULL",
            change.set
        );
        let mut parameters: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
            vec![&self.consumer, &self.generation, &event_id];
        parameters.extend(change.parts);
        if transaction.execute(&sql, &parameters).await.map_err(broke())? == 0 {
            return Err(InboxError::AlreadyFinished {
                event_id: event_id.to_owned(),
                action: change.done,
            });
        }
        if change.done == DISCARDED {
            // No event waits for this version any more.
            let give_up = sql!("event_commands.sql", "give_up_version");
            transaction
                .execute(give_up, &[&self.consumer, &self.generation, &event_id])
                .await
                .map_err(broke())?;
        }
        let heads = "SELECT public.app_inbox_heads($1, $2, $3)";
        let done = transaction.execute(heads, &[&self.consumer, &self.generation, &keys]).await;
        done.map(drop).map_err(broke())
    }

    /// Counts the decisions that a new generation would start without.
    ///
    /// # Errors
    ///
    /// Fails if the database reports an error.
    pub async fn decided(&self, client: &SqlClient) -> Result<OperatorDecisions, InboxError> {
        // Events that `--dedupe position` skipped do not count, because nobody decided on them.
        let sql = sql!("event_commands.sql", "decided");
        let row = client.query_one(sql, &[&self.consumer, &self.generation]).await;
        let row = row.map_err(failed("count what was decided"))?;
        Ok(OperatorDecisions { edited: row.get(0), discarded: row.get(1), unfinished: row.get(2) })
    }

    /// Returns the generation's events from before a time.
    ///
    /// # Errors
    ///
    /// Fails if the database reports an error.
    pub async fn earlier(
        &self,
        client: &SqlClient,
        than: SystemTime,
    ) -> Result<EarlierEvents, InboxError> {
        let sql = sql!("event_commands.sql", "earlier");
        let row = client.query_one(sql, &[&self.consumer, &self.generation, &than]).await;
        let row = row.map_err(failed("look for earlier events"))?;
        Ok(EarlierEvents { events: row.get(0), first: row.get(1), pruned_before: row.get(2) })
    }

    fn missing(&self, event_id: &str) -> InboxError {
        InboxError::UnknownEvent { consumer: self.consumer.clone(), event_id: event_id.to_owned() }
    }
}

/// Makes an event due if no event of its key is before it, and resets the attempts of a dead event.
/// An event that waits for a version stops waiting, because the operator knows that the version
/// will not arrive.
const RETRY: &str = "attempts = CASE status WHEN 'dead' THEN 0 ELSE attempts END,
     next_attempt_at = CASE WHEN ordering_key = '' OR next_attempt_at < 'infinity' THEN now() END,
     status = 'retrying', done_at = NULL,
     error_code = CASE error_code WHEN 'VERSION_GAP' THEN 'GAP_ACCEPTED' ELSE error_code END";

const DISCARDED: &str = "discarded";

/// A line of the error history. A handler's errors cannot imitate the line, because their lines
/// begin with the attempt.
const EDITED_AT: &str = "'edited at ' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

/// The operators' decisions about events of a generation, and its unfinished events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorDecisions {
    /// The events whose payload or attributes were replaced.
    pub edited: i64,
    /// The events that were discarded.
    pub discarded: i64,
    /// The events that are pending or dead.
    pub unfinished: i64,
}

/// The events of a generation from before a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EarlierEvents {
    /// The events that occurred before the time and are not discarded. Events without a time count
    /// by their arrival.
    pub events: i64,
    /// The time of the first of these events.
    pub first: Option<SystemTime>,
    /// The time before which finished events were deleted, if any were.
    pub pruned_before: Option<SystemTime>,
}

/// Returns data in a readable form: parsed JSON, else text, else base64 as stored.
fn contents(data: &[u8], stored: Value) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        Err(_) => json!({ "base64": stored }),
    }
}

struct Change<'a> {
    set: &'a str,
    parts: &'a [&'a (dyn tokio_postgres::types::ToSql + Sync)],
    done: &'static str,
}

/// Parses the JSON object in the first column.
pub(crate) fn object(row: &Row) -> Value {
    serde_json::from_str(row.get(0)).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_shown_as_what_they_are() {
        let stored = || json!("AAAA");
        assert_eq!(contents(b"{\"total\": 12.5}", stored()), json!({ "total": 12.5 }));
        assert_eq!(contents("héllo".as_bytes(), stored()), json!("héllo"));
        assert_eq!(contents(&[0xff, 0], stored()), json!({ "base64": "AAAA" }));
    }
}

//! The commands for failed events: list, show, retry, edit, discard.
//!
//! Every change locks the key's row first and reads the event again, because a consumer may process
//! the event (C5).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};
use walrelay_envelope::Position;
use walrelay_pg_client::{SCHEMA, SqlClient, SqlText, in_schema, sql};

use walrelay_inbox::Attributes;
use walrelay_inbox::EventFields;
use walrelay_inbox::InboxError;
use walrelay_inbox::access::{failed, has_inbox, refuse_hidden, refuse_hidden_changes, unknown};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InboxQuery {
    pub state: InboxState,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    /// Only events whose last failure has this code.
    pub error_code: Option<String>,
    /// Only events received longer ago than this.
    pub older_than: Option<Duration>,
    /// Only events received before this [moment](ConsumerGeneration::moment), which is also the
    /// reference for ages. The selection does not grow while pages are read.
    pub until: Option<SystemTime>,
}

impl InboxQuery {
    fn age_seconds(&self) -> Option<f64> {
        self.older_than.map(|age| age.as_secs_f64())
    }
}

/// The states of events that an operator selects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InboxState {
    /// Unfinished events: dead and retrying.
    #[default]
    Open,
    Only(&'static str),
    Any,
}

impl InboxState {
    /// All states of an event.
    pub const NAMES: [&'static str; 5] = ["done", "late", "retrying", "dead", "discarded"];

    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Open => vec!["retrying", "dead"],
            Self::Only(name) => vec![name],
            Self::Any => Self::NAMES.to_vec(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct InboxPage<'a> {
    /// Only events behind this position.
    pub position: Option<Position>,
    /// Only events behind the event of this id.
    pub event_id: Option<&'a str>,
    pub limit: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxEvent {
    pub event_id: String,
    pub status: String,
    pub attempts: u32,
    /// Its ordering key. Empty: without order.
    pub ordering_key: String,
    pub event_type: Option<String>,
    pub version: Option<i64>,
    /// The commit LSN, as Postgres prints it.
    pub commit_lsn: Option<String>,
    pub tx_index: Option<u32>,
    pub occurred_at: Option<SystemTime>,
    /// Time when the event was received first.
    pub received_at: SystemTime,
    pub done_at: Option<SystemTime>,
    pub next_attempt_at: Option<SystemTime>,
    /// Whether later events of its key wait for it.
    pub holds_its_key: bool,
    /// A SQLSTATE, or our own reason.
    pub error_code: Option<String>,
    /// A line for each attempt, newest first.
    pub last_error: Option<String>,
    pub message_bytes: u64,
}

fn event_of(row: &Row) -> InboxEvent {
    InboxEvent {
        event_id: row.get("event_id"),
        status: row.get("status"),
        attempts: row.get::<_, i32>("attempts").unsigned_abs(),
        ordering_key: row.get("ordering_key"),
        event_type: row.get("event_type"),
        version: row.get("version"),
        commit_lsn: row.get("commit_lsn"),
        tx_index: row.get::<_, Option<i32>>("tx_index").map(i32::unsigned_abs),
        occurred_at: row.get("occurred_at"),
        received_at: row.get("received_at"),
        done_at: row.get("done_at"),
        next_attempt_at: row.get("next_attempt_at"),
        holds_its_key: row.get("holds_its_key"),
        error_code: row.get("error_code"),
        last_error: row.get("last_error"),
        message_bytes: row.get::<_, i32>("message_bytes").unsigned_abs().into(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub attributes: BTreeMap<String, String>,
    pub data: Vec<u8>,
}

/// The new contents of a stored message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replacement {
    pub data: Option<Vec<u8>>,
    /// The new attributes, all of them. The handler reads the event's fields from these from now
    /// on. The event's identity stays.
    pub attributes: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerGeneration {
    consumer: String,
    generation: i32,
}

static COLUMNS: SqlText = SqlText::new(|| sql!("event_commands.sql", "columns"));

static ROWS: SqlText = SqlText::new(|| sql!("event_commands.sql", "rows"));

static CONDITION: SqlText = SqlText::new(|| sql!("event_commands.sql", "condition"));

static BEHIND: SqlText = SqlText::new(|| sql!("event_commands.sql", "behind"));

impl ConsumerGeneration {
    /// Finds the consumer of this name, or the only consumer if no name is given.
    ///
    /// # Errors
    ///
    /// The database has no inbox, or no consumer or several consumers match.
    pub async fn find(client: &SqlClient, name: Option<&str>) -> Result<Self, InboxError> {
        if !has_inbox(client).await? {
            let problem = "this database has none".to_owned();
            return Err(InboxError::Inbox { problem });
        }
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
    pub async fn all(client: &SqlClient) -> Result<Vec<Self>, InboxError> {
        if !has_inbox(client).await? {
            return Ok(Vec::new());
        }
        refuse_hidden(client).await?;
        let sql = in_schema!(
            "SELECT consumer, generation FROM public.app_inbox_consumer ORDER BY consumer"
        );
        let rows = client.query(sql, &[]).await.map_err(failed("read the consumers"))?;
        Ok(rows.iter().map(|row| Self { consumer: row.get(0), generation: row.get(1) }).collect())
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.consumer
    }

    #[must_use]
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// Returns the first two columns of the consumer's rows: name and generation.
    pub(crate) fn place(&self) -> (&str, i32) {
        (&self.consumer, self.generation)
    }

    /// Returns the parameters of [`CONDITION`].
    fn conditions<'a>(
        &'a self,
        query: &'a InboxQuery,
        states: &'a Vec<&'static str>,
        age_seconds: &'a Option<f64>,
    ) -> [&'a (dyn ToSql + Sync); 8] {
        [
            &self.consumer,
            &self.generation,
            states,
            &query.ordering_key,
            &query.error_code,
            age_seconds,
            &query.until,
            &query.event_type,
        ]
    }

    /// Returns a page of events, in the order in which keys drain.
    pub async fn page(
        &self,
        client: &SqlClient,
        query: &InboxQuery,
        page: InboxPage<'_>,
    ) -> Result<Vec<InboxEvent>, InboxError> {
        // spliced: parts that `show` and `count` also read.
        let sql = format!("SELECT {COLUMNS} {ROWS} {CONDITION} {BEHIND} LIMIT $12");
        let (states, age) = (query.state.names(), query.age_seconds());
        let lsn = page.position.map(|position| position.commit_lsn.to_string());
        let tx_index = page.position.map(|position| i64::from(position.tx_index));
        let limit = i64::from(page.limit);
        let mut parameters = self.conditions(query, &states, &age).to_vec();
        let behind: [&(dyn ToSql + Sync); 4] = [&page.event_id, &lsn, &tx_index, &limit];
        parameters.extend(behind);
        let rows = client.query(&sql, &parameters).await.map_err(failed("list the inbox"))?;
        Ok(rows.iter().map(event_of).collect())
    }

    pub async fn count(&self, client: &SqlClient, query: &InboxQuery) -> Result<u64, InboxError> {
        // spliced: parts that `page` also reads.
        let sql = format!("SELECT count(*) {ROWS} {CONDITION}");
        let (states, age) = (query.state.names(), query.age_seconds());
        let parameters = self.conditions(query, &states, &age);
        let row = client.query_one(&sql, &parameters).await.map_err(failed("count the inbox"))?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    /// Returns the time of the database's server.
    pub async fn moment(&self, client: &SqlClient) -> Result<SystemTime, InboxError> {
        let row = client.query_one("SELECT now()", &[]).await;
        Ok(row.map_err(failed("read the server's clock"))?.get(0))
    }

    /// Returns the first ids of events that begin like this, six at most.
    pub async fn ids_like(
        &self,
        client: &SqlClient,
        start: &str,
    ) -> Result<Vec<String>, InboxError> {
        let sql = sql!("event_commands.sql", "ids_like");
        let rows = client.query(sql, &[&self.consumer, &self.generation, &start]).await;
        let rows = rows.map_err(failed("look for ids in the inbox"))?;
        Ok(rows.iter().map(|row| row.get("event_id")).collect())
    }

    /// Returns one event with its message. Only unfinished events have one.
    ///
    /// # Errors
    ///
    /// Fails if there is no such event.
    pub async fn show(
        &self,
        client: &SqlClient,
        event_id: &str,
    ) -> Result<(InboxEvent, Option<StoredMessage>), InboxError> {
        // spliced: parts that `page` also reads.
        let sql = format!(
            "SELECT {COLUMNS}, convert_from(i.message, 'UTF8')::jsonb ->> 'attributes' AS attributes,
                    decode(convert_from(i.message, 'UTF8')::jsonb ->> 'data', 'base64') AS data
              {ROWS} AND i.event_id = $3"
        );
        let row = client.query_opt(&sql, &[&self.consumer, &self.generation, &event_id]).await;
        let row = row.map_err(failed("read the event"))?;
        let row = row.ok_or_else(|| self.missing(event_id))?;
        let attributes: Option<&str> = row.get("attributes");
        let message = attributes.map(|attributes| StoredMessage {
            attributes: serde_json::from_str(attributes).unwrap_or_default(),
            data: row.get::<_, Option<Vec<u8>>>("data").unwrap_or_default(),
        });
        Ok((event_of(&row), message))
    }

    /// Makes events due at once, and resets the attempts of dead events. Returns the number of
    /// events.
    ///
    /// # Errors
    ///
    /// Fails if an event does not exist or is finished. Events before the failing one remain due.
    pub async fn retry(&self, client: &mut SqlClient, ids: &[String]) -> Result<u64, InboxError> {
        for id in ids {
            let change = Change { set: RETRY, parts: &[], done: "tried again" };
            self.change(client, id, change).await?;
        }
        Ok(ids.len() as u64)
    }

    /// Replaces parts of a stored message, and makes the event due.
    ///
    /// # Errors
    ///
    /// Fails if the event does not exist or is finished.
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
        let says = replacement.attributes.as_ref().map(EventFields::of_map);
        let says = says.unwrap_or_default();
        let parts: [&(dyn ToSql + Sync); 8] = [
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
    /// Fails if the event does not exist or is finished.
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
        let lock = in_schema!("SELECT cardinality(public.app_inbox_lock($1, $2, $3, true))");
        let locked = transaction.query_one(lock, &[&self.consumer, &self.generation, &keys]).await;
        locked.map_err(broke())?;
        // spliced: the assignments of the change.
        let sql = format!(
            "UPDATE {SCHEMA}.app_inbox SET {}
              WHERE consumer = $1 AND generation = $2 AND event_id = $3
                AND status IN ('retrying', 'dead') AND message IS NOT NULL",
            change.set
        );
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
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
        let heads = in_schema!("SELECT public.app_inbox_heads($1, $2, $3)");
        let done = transaction.execute(heads, &[&self.consumer, &self.generation, &keys]).await;
        done.map(drop).map_err(broke())
    }

    /// Counts the decisions that a new generation would start without.
    pub async fn decided(&self, client: &SqlClient) -> Result<OperatorDecisions, InboxError> {
        // Events that `--dedupe position` skipped do not count, because nobody decided on them.
        let sql = sql!("event_commands.sql", "decided");
        let row = client.query_one(sql, &[&self.consumer, &self.generation]).await;
        let row = row.map_err(failed("count what was decided"))?;
        Ok(OperatorDecisions { edited: row.get(0), discarded: row.get(1), unfinished: row.get(2) })
    }

    /// Returns the generation's events from before a time.
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

struct Change<'a> {
    set: &'a str,
    parts: &'a [&'a (dyn ToSql + Sync)],
    done: &'static str,
}

/// Parses the JSON object in the first column.
pub(crate) fn object(row: &Row) -> Value {
    serde_json::from_str(row.get(0)).unwrap_or(Value::Null)
}

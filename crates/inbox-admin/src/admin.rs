//! The operators' commands on a consumer's database.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use walrelay_pg_client::{SCHEMA, SqlClient, TableAccess, in_schema, quote_literal, sql};

use walrelay_inbox::UnfinishedRebuild;
use walrelay_inbox::access::{failed, has_inbox, refuse_hidden, refuse_hidden_consumers, unknown};
use walrelay_inbox::{InboxError, prune_step};

type Sql = tokio_postgres::Error;

#[must_use]
pub fn registering(consumer: &str, subscription: &str) -> String {
    format!(
        "INSERT INTO {SCHEMA}.app_inbox_consumer (consumer, subscription) VALUES ({}, {}) ON CONFLICT DO NOTHING",
        quote_literal(consumer),
        quote_literal(subscription)
    )
}

/// Registers a consumer. Returns false if it is already registered with this subscription.
///
/// # Errors
///
/// Fails if the consumer reads another subscription.
pub async fn register(
    client: &SqlClient,
    consumer: &str,
    subscription: &str,
) -> Result<bool, InboxError> {
    let sql = registering(consumer, subscription);
    let is_new = client.execute(&sql, &[]).await.map_err(failed("record the consumer"))? == 1;
    refuse_other_subscription(client, consumer, subscription).await?;
    Ok(is_new)
}

async fn refuse_other_subscription(
    client: &SqlClient,
    consumer: &str,
    subscription: &str,
) -> Result<(), InboxError> {
    match self::subscription(client, consumer).await {
        Ok(found) if found != subscription => Err(InboxError::OtherSubscription {
            consumer: consumer.to_owned(),
            subscription: found,
        }),
        Ok(_) | Err(InboxError::Unregistered { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Fails if there is no such consumer.
pub async fn subscription(client: &SqlClient, consumer: &str) -> Result<String, InboxError> {
    refuse_hidden_consumers(client, TableAccess::Read).await?;
    let sql = in_schema!("SELECT subscription FROM public.app_inbox_consumer WHERE consumer = $1");
    let row = client.query_opt(sql, &[&consumer]).await.map_err(failed("read the consumer"))?;
    row.map(|row| row.get(0)).ok_or_else(|| unknown(consumer))
}

#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredConsumer {
    pub consumer: String,
    /// The full name of its subscription.
    pub subscription: String,
    /// The time since the latest prune horizon, or `None` if no finished event was ever deleted.
    pub pruned_ago: Option<Duration>,
    pub rebuild: Option<UnfinishedRebuild>,
    /// The identity of its row. Consumers of two databases differ in it.
    pub row: String,
}

/// Returns the consumer of this name, or all consumers. Empty if the database has no inbox.
pub async fn registered(
    client: &SqlClient,
    name: Option<&str>,
) -> Result<Vec<RegisteredConsumer>, InboxError> {
    if !has_inbox(client).await? {
        return Ok(Vec::new());
    }
    refuse_hidden_consumers(client, TableAccess::Read).await?;
    let sql = sql!("admin.sql", "registered");
    let rows = client.query(sql, &[&name]).await.map_err(failed("read the consumers"))?;
    let of = |row: &tokio_postgres::Row| RegisteredConsumer {
        consumer: row.get(0),
        subscription: row.get(1),
        pruned_ago: row
            .get::<_, Option<f64>>(2)
            .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        rebuild: UnfinishedRebuild::of_row(row, 3),
        row: row.get(6),
    };
    Ok(rows.iter().map(of).collect())
}

/// Fails if there is no such consumer.
pub async fn pause(client: &SqlClient, consumer: &str) -> Result<(), InboxError> {
    update(client, consumer, "pause", "paused = true").await
}

/// The wait of one attempt. Batches queued behind the lock also wait, and the pause refuses them
/// anyway.
const PAUSE_TIMEOUT: &str = "SET LOCAL lock_timeout = '5s'";

/// Waits, in one attempt, until no batch from before a pause is being applied.
///
/// # Errors
///
/// Fails with [`InboxError::is_in_the_way`] if a batch is still being applied.
pub async fn quiesce(client: &SqlClient, consumer: &str) -> Result<(), InboxError> {
    // spliced: the consumer, because a batch of statements takes no parameters.
    // not a command: the name of an advisory lock.
    let waiting = format!(
        "BEGIN; {PAUSE_TIMEOUT}; SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended( \
           'walrelay inbox ' || {}, 0)); COMMIT",
        quote_literal(consumer)
    );
    let waited = client.batch_execute(&waiting).await;
    if waited.is_err() {
        client.batch_execute("ROLLBACK").await.map_err(failed("end the transaction"))?;
    }
    waited.map_err(failed("wait for batches that began before"))
}

/// Moves a consumer that has applied no event to this subscription. Returns whether the consumer
/// was moved. Another subscription might not redeliver events that were already read.
pub async fn move_unused(
    client: &SqlClient,
    consumer: &str,
    subscription: &str,
) -> Result<bool, InboxError> {
    let sql = sql!("admin.sql", "move_unused");
    let moved = client.execute(sql, &[&consumer, &subscription]).await;
    Ok(moved.map_err(failed("record the subscription"))? == 1)
}

/// Returns whether a consumer has applied no event.
///
/// # Errors
///
/// Fails if row level security hides rows.
pub async fn is_unused(client: &SqlClient, consumer: &str) -> Result<bool, InboxError> {
    refuse_hidden(client).await?;
    let row = client.query_one(sql!("admin.sql", "is_unused"), &[&consumer]).await;
    Ok(row.map_err(failed("look whether the inbox is empty"))?.get(0))
}

/// Returns the other consumers of this database that read the subscription.
pub async fn other_readers(
    client: &SqlClient,
    consumer: &str,
    subscription: &str,
) -> Result<Vec<String>, InboxError> {
    let sql = sql!("admin.sql", "other_readers");
    let rows = client.query(sql, &[&consumer, &subscription]).await;
    let rows = rows.map_err(failed("look for other consumers"))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Fails if there is no such consumer.
pub async fn resume(client: &SqlClient, consumer: &str) -> Result<(), InboxError> {
    update(client, consumer, "resume", "paused = false").await
}

/// The wait of one lock attempt of a rebuild. Batches and readers queued behind the lock also wait.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '5s'";

/// A new generation, in the live tables.
#[derive(Debug, Clone, Copy)]
pub struct NewGeneration<'a> {
    pub subscription: &'a str,
    /// The SQL that empties the tables.
    pub reset: &'a str,
}

/// Begins a new generation that reads another subscription, and runs the reset in the same
/// transaction. Waits until no batch of the consumer is being applied. Returns the generation.
///
/// # Errors
///
/// Fails if there is no such consumer, or if the reset or another statement fails. After
/// [`InboxError::is_in_the_way`], the caller may retry.
pub async fn rebuild(
    client: &mut SqlClient,
    consumer: &str,
    new: NewGeneration<'_>,
) -> Result<i32, InboxError> {
    let NewGeneration { subscription, reset } = new;
    refuse_hidden_consumers(client, TableAccess::Update).await?;
    let transaction = client.transaction().await.map_err(failed("begin a transaction"))?;
    transaction.batch_execute(LOCK_TIMEOUT).await.map_err(failed("limit the wait"))?;
    // First, because it waits for running batches, whose effects the reset must also remove.
    let beginning = in_schema!("SELECT public.app_inbox_new_generation($1)");
    let row = transaction.query_one(beginning, &[&consumer]).await;
    let generation = row.map_err(failed("begin a generation"))?.get(0);
    transaction.batch_execute(&contained(reset)).await.map_err(reset_failed)?;
    let moving = in_schema!(
        "UPDATE public.app_inbox_consumer SET subscription = $2, updated_at = now() WHERE consumer = $1"
    );
    let moved = transaction.execute(moving, &[&consumer, &subscription]).await;
    moved.map_err(failed("record the subscription"))?;
    transaction.commit().await.map_err(failed("commit the generation"))?;
    Ok(generation)
}

/// Wraps statements into one in which the server refuses transaction control, so that no part takes
/// effect alone.
pub(crate) fn contained(statements: &str) -> String {
    format!("DO {}", quote_literal(&format!("BEGIN EXECUTE {}; END", quote_literal(statements))))
}

/// Blames an error on the reset SQL, unless another transaction or the server caused the error.
fn reset_failed(source: Sql) -> InboxError {
    let code = source.code().map_or("", SqlState::code);
    let is_others =
        code == "55P03" || ["08", "25", "40", "53", "57"].contains(&code.get(..2).unwrap_or("08"));
    if is_others { failed("run the reset")(source) } else { InboxError::Reset(source) }
}

async fn update(
    client: &SqlClient,
    consumer: &str,
    verb: &str,
    set: &str,
) -> Result<(), InboxError> {
    refuse_hidden_consumers(client, TableAccess::Update).await?;
    let sql = format!(
        "UPDATE {SCHEMA}.app_inbox_consumer SET {set}, updated_at = now() WHERE consumer = $1"
    );
    let changed = client.execute(&sql, &[&consumer]).await;
    match changed.map_err(failed(&format!("{verb} the consumer")))? {
        0 => Err(unknown(consumer)),
        _ => Ok(()),
    }
}

/// Waits until no batch of the consumer is being applied, and blocks further batches until the
/// transaction ends.
pub(crate) async fn stop_batches(
    transaction: &Transaction<'_>,
    consumer: &str,
) -> Result<(), InboxError> {
    // not a command: the name of an advisory lock.
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended('walrelay inbox ' || $1, 0))";
    let waited = transaction.execute(sql, &[&consumer]).await;
    waited.map(drop).map_err(failed("wait for batches of the consumer"))
}

/// Deletes finished rows older than this, and all rows of earlier generations, which no command
/// reads any more. Returns the number of rows.
pub async fn prune(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<u64, InboxError> {
    let mut total = 0;
    loop {
        let step = prune_step(client, consumer, older_than).await?;
        total += step.rows;
        if !step.has_more {
            return Ok(total);
        }
    }
}

//! The position of an ordering key, and the command that resets it.
//!
//! A message with a forged position far in the future would make `--dedupe position` skip every
//! later event. The reset locks the key's row first and reads the row again, because a consumer may
//! have moved the position (C5).

use tokio_postgres::{GenericClient, Row};
use walrelay_pg_client::{SqlClient, in_schema, sql};

use walrelay_inbox::InboxError;
use walrelay_inbox::access::{failed, refuse_hidden_changes, unknown};

/// The position of a key, and the number of events skipped because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPosition {
    generation: i32,
    /// The position as in `16/B374D848/3`. `None` if the key has no position.
    pub position: Option<String>,
    /// The system identifier of the server that wrote the position's WAL, if the messages carried
    /// one.
    pub system_identifier: Option<String>,
    /// The time at which the key reached the position, as Postgres prints a time.
    pub moved_at: Option<String>,
    /// The highest version that was applied or discarded.
    pub version: Option<i64>,
    /// The number of events that prove the position wrong.
    pub implausible: i32,
    /// The number of events that were skipped because they are behind this position.
    pub skipped: i64,
}

impl KeyPosition {
    /// Fails if the consumer or the key does not exist.
    pub async fn of(
        client: &SqlClient,
        consumer: &str,
        ordering_key: &str,
    ) -> Result<Self, InboxError> {
        refuse_hidden_changes(client).await?;
        let known =
            in_schema!("SELECT generation FROM public.app_inbox_consumer WHERE consumer = $1");
        let known = client.query_opt(known, &[&consumer]).await;
        let known = known.map_err(failed("read the consumer"))?;
        let generation = known.ok_or_else(|| unknown(consumer))?.get(0);
        Self::read(&**client, consumer, generation, ordering_key).await
    }

    async fn read(
        client: &(impl GenericClient + Sync),
        consumer: &str,
        generation: i32,
        ordering_key: &str,
    ) -> Result<Self, InboxError> {
        let sql = sql!("reset_key.sql", "read");
        let row = client.query_opt(sql, &[&consumer, &generation, &ordering_key]).await;
        let row = row.map_err(failed("read the key"))?;
        let row = row.ok_or_else(|| InboxError::UnknownKey {
            consumer: consumer.to_owned(),
            ordering_key: ordering_key.to_owned(),
        })?;
        Ok(Self::of_row(&row, generation))
    }

    fn of_row(row: &Row, generation: i32) -> Self {
        Self {
            generation,
            position: row.get(0),
            system_identifier: row.get(1),
            moved_at: row.get(2),
            version: row.get(3),
            implausible: row.get(4),
            skipped: row.get(5),
        }
    }
}

/// Resets the position of a key if the position still equals `seen`, and deletes the rows of the
/// events skipped because of it. Returns the number of deleted rows. Their events are applied when
/// they are republished.
///
/// # Errors
///
/// Fails if the key has moved since.
pub async fn reset_key(
    client: &mut SqlClient,
    consumer: &str,
    ordering_key: &str,
    seen: &KeyPosition,
) -> Result<u64, InboxError> {
    let broke = || failed("reset the key");
    let generation = seen.generation;
    let transaction = client.transaction().await.map_err(broke())?;
    let keys = vec![ordering_key];
    let lock = in_schema!("SELECT cardinality(public.app_inbox_lock($1, $2, $3, true))");
    let locked = transaction.query_one(lock, &[&consumer, &generation, &keys]).await;
    locked.map_err(broke())?;
    let now = KeyPosition::read(&transaction, consumer, generation, ordering_key).await?;
    if now.position != seen.position || now.system_identifier != seen.system_identifier {
        return Err(InboxError::KeyMoved { ordering_key: ordering_key.to_owned() });
    }
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&consumer, &generation, &ordering_key];
    let forget = sql!("reset_key.sql", "forget_skipped");
    let forgotten = transaction.execute(forget, &parameters).await.map_err(broke())?;
    let reset = sql!("reset_key.sql", "reset_key");
    transaction.execute(reset, &parameters).await.map_err(broke())?;
    transaction.commit().await.map_err(broke())?;
    Ok(forgotten)
}

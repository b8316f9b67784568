//! Deletes the positions of ordering keys that had no event for a long time.
//!
//! A key is deleted only if no row of the inbox belongs to it. It must have changed last before the
//! horizon of the deleted rows. Pub/Sub no longer delivers an event of it again. Without its
//! position, a consumer could neither skip events behind it nor notice a missing version. So only a
//! consumer that needs neither may delete keys.

use std::time::Duration;

use tokio_postgres::types::Type;
use walrelay_pg_client::{Parameter, SqlClient, sql};

use crate::access::failed;
use crate::error::InboxError;

/// Keys deleted in one transaction. Each transaction reads the inbox once, so there are more keys
/// than rows in a step.
const BATCH_KEYS: i64 = 50_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleKeysStep {
    pub(crate) keys: u64,
    /// Whether more keys may be left.
    pub(crate) has_more: bool,
}

/// Deletes some idle keys of the current generation, in one transaction. Keys that a batch has
/// locked stay.
pub(crate) async fn delete_idle_keys(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<IdleKeysStep, InboxError> {
    let action = "delete idle keys of the inbox";
    client.batch_execute("BEGIN").await.map_err(failed(action))?;
    let deleted = delete_locked(client, consumer, older_than).await;
    let end = if deleted.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await.map_err(failed(action))?;
    deleted.map_err(failed(action))
}

/// Locks idle keys, and then deletes those that are still idle. Only a second statement sees the
/// row of a batch that committed while the first one was looking.
async fn delete_locked(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<IdleKeysStep, tokio_postgres::Error> {
    let seconds = older_than.as_secs_f64();
    let lock = sql!("idle_keys.sql", "lock");
    let (consumer, seconds): (Parameter<'_>, Parameter<'_>) =
        ((&consumer, Type::TEXT), (&seconds, Type::FLOAT8));
    let parameters = [consumer.clone(), seconds.clone(), (&BATCH_KEYS, Type::INT8)];
    let locked = client.query_typed(lock, &parameters).await?;
    let keys: Vec<String> = locked.iter().map(|row| row.get(0)).collect();
    let has_more = keys.len() as u64 == BATCH_KEYS.unsigned_abs();
    let delete = sql!("idle_keys.sql", "delete");
    let of_keys = [consumer, seconds, (&keys, Type::TEXT_ARRAY)];
    let deleted = client.execute_typed(delete, &of_keys).await?;
    Ok(IdleKeysStep { keys: deleted, has_more })
}

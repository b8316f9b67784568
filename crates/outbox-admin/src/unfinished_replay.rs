//! Unfinished replays and backfills: the anchors that they need, and the keys that they hold.

use pgoutput_parser::Lsn;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, GenericClient};

use crate::admin_error::AdminError;
use walrelay_outbox_store::read_recorded_system_identifier;
use walrelay_pg_client::{lock_is_taken, sql};

/// A replay or a backfill that has begun and is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReplay {
    /// Name of the replay.
    pub id: String,
    /// The slot whose rows it publishes.
    pub slot: String,
    /// Whether it reads the table instead of the WAL.
    pub is_backfill: bool,
}

/// Returns a replay or backfill of these slots that is not finished or still holds keys, if there
/// is one.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn unfinished_replay(
    client: &Client,
    slots: &[String],
) -> Result<Option<OpenReplay>, AdminError> {
    replay_of(client, slots).await
}

pub(crate) async fn replay_of<C: GenericClient + Sync>(
    client: &C,
    slots: &[String],
) -> Result<Option<OpenReplay>, AdminError> {
    let found = client
        .query_typed(sql!("unfinished_replay.sql", "replay_of"), &[(&slots, Type::TEXT_ARRAY)])
        .await
        .map_err(AdminError::sql("look for replays that are not finished"))?;
    Ok(found.first().map(|row| OpenReplay {
        id: row.get("id"),
        slot: row.get("slot"),
        is_backfill: row.get("is_backfill"),
    }))
}

/// Returns an unfinished replay of this slot that needs the anchor's WAL before `up_to`, if there
/// is one. An in-place replay needs it only while it holds keys. After that its rows are in
/// dispatch state.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn replay_that_needs_anchor(
    client: &Client,
    slot: &str,
    (anchor, up_to): (&str, Lsn),
) -> Result<Option<String>, AdminError> {
    let system = read_recorded_system_identifier(client, slot).await?;
    let row = client
        .query_typed_opt(
            sql!("unfinished_replay.sql", "replay_that_needs_anchor"),
            &[
                (&slot, Type::TEXT),
                (&anchor, Type::TEXT),
                (&system, Type::TEXT),
                (&PgLsn::from(up_to.as_u64()), Type::PG_LSN),
            ],
        )
        .await
        .map_err(AdminError::sql("look for replays that need the anchor"))?;
    Ok(row.map(|row| row.get("id")))
}

/// An in-place replay or backfill that holds keys of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PausingReplay {
    /// Name of the replay.
    pub id: String,
    /// The command that continues it.
    pub command: String,
    /// Number of held keys.
    pub keys: u64,
    /// Whether a process is running it now.
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

/// Returns the replays that hold or request keys of this slot, the one with the most keys first.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn pausing_replays(
    client: &Client,
    slot: &str,
) -> Result<Vec<PausingReplay>, AdminError> {
    let failed = || AdminError::sql("look which keys are held");
    // The tables are missing before `walrelay init`, and a role may lack privileges.
    let may_read = client
        .query_typed_one(sql!("unfinished_replay.sql", "may_read"), &[])
        .await
        .map_err(failed())?;
    if !may_read.get::<_, bool>("holds") {
        return Ok(Vec::new());
    }
    let backfills = match may_read.get("replays") {
        true => "SELECT id FROM public.app_outbox_replay WHERE anchor = ''",
        false => "SELECT ''",
    };
    let done = is_being_done("replay_id");
    // spliced: the table of replays, if the role may read it, and a test of a lock.
    let sql = format!(
        "SELECT replay_id AS id, count(*) AS keys,
                CASE WHEN replay_id IN ({backfills}) THEN 'backfill' ELSE 'replay' END AS command,
                {done} AS is_being_done
           FROM public.app_outbox_hold WHERE slot = $1
          GROUP BY replay_id ORDER BY keys DESC, id"
    );
    let rows = client.query_typed(&sql, &[(&slot, Type::TEXT)]).await.map_err(failed())?;
    let holding = rows.iter().map(|row| PausingReplay {
        id: row.get("id"),
        command: row.get("command"),
        keys: row.get::<_, i64>("keys").unsigned_abs(),
        is_being_done: row.get("is_being_done"),
    });
    Ok(holding.collect())
}

/// An unfinished replay or backfill to a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicReplay {
    /// Name of the replay.
    pub id: String,
    /// The command that continues it.
    pub command: String,
    /// The topic that it publishes to.
    #[serde(rename = "to_topic")]
    pub topic: String,
    /// Whether a process is running it now.
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

/// Returns this slot's unfinished replays to a topic, the oldest first, at most ten.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn open_topic_replays(
    client: &Client,
    slot: &str,
) -> Result<Vec<TopicReplay>, AdminError> {
    let failed = || AdminError::sql("look which replays are not finished");
    // The table is missing before `walrelay init`, and a role may lack privileges.
    let may_read = client
        .query_typed_one(sql!("unfinished_replay.sql", "may_read_replays"), &[])
        .await
        .map_err(failed())?;
    if !may_read.get::<_, bool>("replays") {
        return Ok(Vec::new());
    }
    // spliced: a test of a lock.
    let sql = format!(
        "SELECT id, CASE anchor WHEN '' THEN 'backfill' ELSE 'replay' END AS command,
                request ->> 'to_topic' AS topic, {} AS is_being_done
           FROM public.app_outbox_replay
          WHERE slot = $1 AND finished_at IS NULL AND request ->> 'to_topic' IS NOT NULL
          ORDER BY started_at, id LIMIT 10",
        is_being_done("id")
    );
    let rows = client.query_typed(&sql, &[(&slot, Type::TEXT)]).await.map_err(failed())?;
    let open = rows.iter().map(|row| TopicReplay {
        id: row.get("id"),
        command: row.get("command"),
        topic: row.get("topic"),
        is_being_done: row.get("is_being_done"),
    });
    Ok(open.collect())
}

/// Returns SQL for whether a process runs the replay in this column. Such a process has the lock of
/// `take_replay`.
fn is_being_done(id: &str) -> String {
    lock_is_taken(&format!("'walrelay replay ' || {id}"))
}

/// Returns an in-place replay with rows that are still to be published, if there is one.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn replay_to_be_published(
    client: &Client,
    slot: &str,
) -> Result<Option<String>, AdminError> {
    let row = client
        .query_typed_opt(
            sql!("unfinished_replay.sql", "replay_to_be_published"),
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("look for rows of replays in dispatch state"))?;
    Ok(row.map(|row| row.get("replay_id")))
}

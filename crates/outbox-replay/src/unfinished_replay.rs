//! Unfinished replays: the anchors that they need, and the keys that they pause.

use pgoutput_parser::Lsn;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, GenericClient, Row};
use walrelay_outbox_store::read_recorded_system_identifier;
use walrelay_pg_client::{SCHEMA, in_schema, lock_is_taken, sql};

use crate::admin_error::AdminError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReplay {
    pub id: String,
    pub slot: String,
}

fn open_of(row: &Row) -> OpenReplay {
    OpenReplay { id: row.get("id"), slot: row.get("slot") }
}

/// Returns a replay of these slots that is not finished or still pauses keys, if there is one.
pub async fn unfinished_replay<C: GenericClient + Sync>(
    client: &C,
    slots: &[String],
) -> Result<Option<OpenReplay>, AdminError> {
    let found = client
        .query_typed(
            sql!("unfinished_replay.sql", "unfinished_replay"),
            &[(&slots, Type::TEXT_ARRAY)],
        )
        .await
        .map_err(AdminError::sql("look for replays that are not finished"))?;
    Ok(found.first().map(open_of))
}

/// Returns an unfinished replay of any slot that reads the tables and publishes to a topic, if there
/// is one. In place, the pauses of the keys show which rows are still to be read.
pub async fn open_replay_of_tables(client: &Client) -> Result<Option<OpenReplay>, AdminError> {
    let found = client.query_typed_opt(sql!("unfinished_replay.sql", "replay_of_table"), &[]).await;
    let found = found.map_err(AdminError::sql("look for replays of the tables"))?;
    Ok(found.as_ref().map(open_of))
}

/// Returns an unfinished replay of this slot that needs the anchor's WAL before `up_to`, if there
/// is one. An in-place replay needs it only while it holds keys. After that its rows are in
/// dispatch state.
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

/// A replay in place that pauses keys of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PausingReplay {
    /// Name of the replay.
    pub id: String,
    /// Number of paused keys.
    pub keys: u64,
    /// Whether a process is running it now.
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

/// Returns the replays that hold or request keys of this slot, the one with the most keys first.
pub async fn pausing_replays(
    client: &Client,
    slot: &str,
) -> Result<Vec<PausingReplay>, AdminError> {
    const ACTION: &str = "read which keys are paused";
    if !may_read(client, in_schema!("public.app_outbox_hold"), ACTION).await? {
        return Ok(Vec::new());
    }
    // spliced: a test of a lock.
    let sql = format!(
        "SELECT replay_id AS id, count(*) AS keys, {} AS is_being_done
           FROM {SCHEMA}.app_outbox_hold WHERE slot = $1
          GROUP BY replay_id ORDER BY keys DESC, id",
        is_being_done("replay_id")
    );
    let rows = client.query_typed(&sql, &[(&slot, Type::TEXT)]).await;
    let pausing = |row: &Row| PausingReplay {
        id: row.get("id"),
        keys: row.get::<_, i64>("keys").unsigned_abs(),
        is_being_done: row.get("is_being_done"),
    };
    Ok(rows.map_err(AdminError::sql(ACTION))?.iter().map(pausing).collect())
}

/// Returns whether the table exists and the role may read it. The table is missing before
/// `walrelay init`, and a role may lack the privilege.
async fn may_read(client: &Client, table: &str, action: &'static str) -> Result<bool, AdminError> {
    let sql = sql!("unfinished_replay.sql", "may_read");
    let row = client.query_typed_one(sql, &[(&table, Type::TEXT)]).await;
    Ok(row.map_err(AdminError::sql(action))?.get(0))
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicReplay {
    pub id: String,
    #[serde(rename = "to_topic")]
    pub topic: String,
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

/// Returns this slot's unfinished replays to a topic, the oldest first, at most ten.
pub async fn open_topic_replays(
    client: &Client,
    slot: &str,
) -> Result<Vec<TopicReplay>, AdminError> {
    const ACTION: &str = "read which replays are not finished";
    if !may_read(client, in_schema!("public.app_outbox_replay"), ACTION).await? {
        return Ok(Vec::new());
    }
    // spliced: a test of a lock.
    let sql = format!(
        "SELECT id, to_topic AS topic, {} AS is_being_done
           FROM {SCHEMA}.app_outbox_replay
          WHERE slot = $1 AND finished_at IS NULL AND destination = 'topic'
          ORDER BY started_at, id LIMIT 10",
        is_being_done("id")
    );
    let rows = client.query_typed(&sql, &[(&slot, Type::TEXT)]).await;
    let open = |row: &Row| TopicReplay {
        id: row.get("id"),
        topic: row.get("topic"),
        is_being_done: row.get("is_being_done"),
    };
    Ok(rows.map_err(AdminError::sql(ACTION))?.iter().map(open).collect())
}

/// Returns SQL for whether a process runs the replay in this column. Such a process has the lock of
/// `take_replay`.
fn is_being_done(id: &str) -> String {
    // not a command: the name of an advisory lock.
    lock_is_taken(&format!("'walrelay replay ' || {id}"))
}

/// Returns an in-place replay with rows that are still to be published, if there is one.
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

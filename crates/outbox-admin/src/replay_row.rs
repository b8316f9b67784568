//! The progress of each replay, in `app_outbox_replay`, from which it resumes.

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};

use crate::admin_error::AdminError;
use crate::rows::unsettled_rows::AggregateKey;
use walrelay_pg_client::sql;

/// One replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRow {
    /// Name of the replay, and the attribute of its messages.
    pub id: String,
    /// The slot whose rows are replayed.
    pub slot: String,
    /// The anchor whose copy is streamed. Empty if the table is read.
    pub anchor: String,
    /// System identifier of the server that the positions belong to.
    pub system_identifier: String,
    /// The request, as JSON.
    pub request: String,
    /// Position where the replay begins.
    pub from: Lsn,
    /// Position where the replay ends.
    pub to: Lsn,
    /// Position before which every row is published.
    pub settled: Lsn,
    /// Number of published rows.
    pub rows: u64,
    /// How the replay ended. None if it may be resumed.
    pub end: Option<ReplayEnd>,
}

impl ReplayRow {
    /// Returns the command that continues the replay. One reads the WAL, the other the table.
    #[must_use]
    pub fn command(&self) -> &'static str {
        if self.anchor.is_empty() { "backfill" } else { "replay" }
    }
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// Every row is published.
    Done,
    /// An operator gave the replay up.
    GivenUp,
}

/// Records a replay. Deletes replays that ended more than a month ago.
///
/// # Errors
///
/// There is no such table, the server refused the statement, or the connection ended.
pub async fn begin_replay(client: &Client, row: &ReplayRow) -> Result<(), AdminError> {
    let lsn = |lsn: Lsn| PgLsn::from(lsn.as_u64());
    client
        .execute_typed(
            sql!("replay_row.sql", "begin_replay"),
            &[
                (&row.id, Type::TEXT),
                (&row.slot, Type::TEXT),
                (&row.anchor, Type::TEXT),
                (&row.system_identifier, Type::TEXT),
                (&row.request, Type::TEXT),
                (&lsn(row.from), Type::PG_LSN),
                (&lsn(row.to), Type::PG_LSN),
                (&lsn(row.settled), Type::PG_LSN),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Returns whether this session now owns this replay, until the session ends.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn take_replay(client: &Client, id: &str) -> Result<bool, AdminError> {
    let name = format!("walrelay replay {id}");
    let row = client
        .query_typed_one(
            "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
            &[(&name, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("take the replay"))?;
    Ok(row.get(0))
}

/// Reads the replay of this name.
///
/// # Errors
///
/// There is no such table, the server refused the statement, or the connection ended.
pub async fn read_replay(client: &Client, id: &str) -> Result<Option<ReplayRow>, AdminError> {
    let row = client
        .query_typed_opt(sql!("replay_row.sql", "read_replay"), &[(&id, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read app_outbox_replay"))?;
    Ok(row.as_ref().map(replay_of))
}

/// Reads the replays of these slots, newest first.
///
/// # Errors
///
/// There is no such table, the server refused the statement, or the connection ended.
pub async fn read_replays(client: &Client, slots: &[String]) -> Result<Vec<ReplayRow>, AdminError> {
    let rows = client
        .query_typed(sql!("replay_row.sql", "read_replays"), &[(&slots, Type::TEXT_ARRAY)])
        .await
        .map_err(AdminError::sql("read app_outbox_replay"))?;
    Ok(rows.iter().map(replay_of).collect())
}

fn replay_of(row: &Row) -> ReplayRow {
    let lsn = |column| Lsn::new(row.get::<_, PgLsn>(column).into());
    ReplayRow {
        id: row.get("id"),
        slot: row.get("slot"),
        anchor: row.get("anchor"),
        system_identifier: row.get("system_identifier"),
        request: row.get("request"),
        from: lsn("from_lsn"),
        to: lsn("to_lsn"),
        settled: lsn("settled_lsn"),
        rows: u64::try_from(row.get::<_, i64>("rows_published")).unwrap_or_default(),
        end: match (row.get("is_over"), row.get("is_given_up")) {
            (false, _) => None,
            (true, false) => Some(ReplayEnd::Done),
            (true, true) => Some(ReplayEnd::GivenUp),
        },
    }
}

/// Records the progress of a replay: its position and number of rows.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn advance_replay(
    client: &Client,
    id: &str,
    (settled, rows): (Lsn, u64),
) -> Result<(), AdminError> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    client
        .execute_typed(
            sql!("replay_row.sql", "advance_replay"),
            &[
                (&id, Type::TEXT),
                (&PgLsn::from(settled.as_u64()), Type::PG_LSN),
                (&rows, Type::INT8),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records the table and the aggregate at which a backfill continues.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn note_resumption(
    client: &Client,
    id: &str,
    (table, key): (usize, &AggregateKey),
) -> Result<(), AdminError> {
    let table = i32::try_from(table).unwrap_or(i32::MAX);
    client
        .execute_typed(
            sql!("replay_row.sql", "note_resumption"),
            &[
                (&id, Type::TEXT),
                (&table, Type::INT4),
                (&key.aggregate_type, Type::TEXT),
                (&key.aggregate_id, Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records that a replay leaves out rows that can never be published.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn note_skip_dead(client: &Client, id: &str) -> Result<(), AdminError> {
    client
        .execute_typed(sql!("replay_row.sql", "note_skip_dead"), &[(&id, Type::TEXT)])
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records that a replay is finished.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn finish_replay(client: &Client, id: &str, rows: u64) -> Result<(), AdminError> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    client
        .execute_typed(
            sql!("replay_row.sql", "finish_replay"),
            &[(&id, Type::TEXT), (&rows, Type::INT8)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

/// Records that a replay was given up and is not resumed.
///
/// # Errors
///
/// The server refused the statement, or the connection ended.
pub async fn give_up_replay(client: &Client, id: &str, rows: u64) -> Result<(), AdminError> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    client
        .execute_typed(
            sql!("replay_row.sql", "give_up_replay"),
            &[(&id, Type::TEXT), (&rows, Type::INT8)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_replay"))?;
    Ok(())
}

//! How far a slot is settled, in `app_outbox_relay`: what tells a lost slot from a first start.

use std::time::{Duration, SystemTime};
use walrelay_pg_client::{QualifiedName, SqlError};

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};

use crate::condition::{self, Condition, NotedCondition, noted_in};
use crate::store_error::StoreError;
use walrelay_pg_replication::SlotState;

/// The row of one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayRow {
    /// The server whose positions these are; those of another mean nothing here.
    pub system_identifier: String,
    /// The timeline it was written on; zero when the row is older than this column.
    pub timeline: u32,
    /// Raised by whatever moves the slot by an operator's will.
    pub generation: u64,
    /// The watermark.
    pub settled_lsn: Lsn,
    /// Every committed transaction below this one is settled.
    pub settled_xid: u64,
    /// When it was written.
    pub updated_at: SystemTime,
    /// How long ago that was, by the server's clock.
    pub age: Duration,
    /// What an operator has begun with the slot and not finished, by its kind.
    pub operation: Option<String>,
    /// How the relay was doing when that changed last.
    pub condition: Option<NotedCondition>,
}

impl RelayRow {
    /// Whether this row was written for another slot of the same name: the log of this one begins
    /// behind what is settled. One that streams was looked at when it began.
    #[must_use]
    pub fn is_of_another_slot(&self, slot: &SlotState) -> bool {
        // A row without a timeline was not written before the slot was confirmed.
        self.timeline != 0
            && self.operation.is_none()
            && slot.active_pid.is_none()
            && slot.restart_lsn.is_some_and(|restart| restart > self.settled_lsn)
    }
}

/// A moment in the server's life, by transaction and by position.
///
/// Once the watermark has passed `wal_end`, every committed transaction below `xmin` is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// Every transaction below it had ended.
    pub xmin: u64,
    /// Every commit of theirs lies before it.
    pub wal_end: Lsn,
}

/// The row of this slot; None before it was ever written.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_relay_row(client: &Client, slot: &str) -> Result<Option<RelayRow>, StoreError> {
    let row = client
        .query_typed_opt(
            // Through jsonb, because a column that the table does not have yet is then null.
            &format!(
                "SELECT system_identifier, settled_lsn, settled_xid::text AS settled_xid, updated_at,
                    coalesce((to_jsonb(r) ->> 'timeline')::int, 0) AS timeline,
                    coalesce((to_jsonb(r) ->> 'generation')::int8, 0) AS generation,
                    to_jsonb(r) -> 'operation' ->> 'kind' AS operation,
                    extract(epoch FROM clock_timestamp() - updated_at)::float8 AS age,
                    {}
               FROM public.app_outbox_relay r WHERE slot = $1",
                condition::COLUMNS
            ),
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("read app_outbox_relay"))?;
    row.map(|row| {
        Ok(RelayRow {
            system_identifier: row.get("system_identifier"),
            timeline: u32::try_from(row.get::<_, i32>("timeline")).unwrap_or_default(),
            generation: u64::try_from(row.get::<_, i64>("generation")).unwrap_or_default(),
            settled_lsn: Lsn::new(row.get::<_, PgLsn>("settled_lsn").into()),
            settled_xid: parse_xid(row.get("settled_xid"), "app_outbox_relay.settled_xid")?,
            updated_at: row.get("updated_at"),
            age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
            operation: row.get("operation"),
            condition: noted_in(&row),
        })
    })
    .transpose()
}

/// The row that a session writes to: of this slot, on this timeline, of this generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRow {
    /// The slot.
    pub slot: String,
    /// The timeline of the session's server.
    pub timeline: u32,
    /// What the row said when the session began.
    pub generation: u64,
}

/// What the server answers when the row was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// How far the slot is confirmed.
    pub confirmed: Lsn,
    /// The horizon of this moment.
    pub horizon: Horizon,
}

impl OwnRow {
    /// Notes how far the slot is settled, and the transaction id where one is known. Returns None when the
    /// row is not the session's any more: then nothing was written.
    ///
    /// One statement reads the horizon also, because this is written ten times a second: see
    /// [`read_horizon`] for why the position is never before the snapshot.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn write(
        &self,
        client: &Client,
        settled_lsn: Lsn,
        settled_xid: Option<u64>,
    ) -> Result<Option<Written>, StoreError> {
        let (timeline, generation) = self.columns()?;
        let written = client
            .query_typed_opt(
                &format!(
                    "UPDATE public.app_outbox_relay
                        SET settled_lsn = greatest(settled_lsn, $4),
                            settled_xid = greatest(settled_xid::text::numeric, $5::numeric)::text::xid8,
                            updated_at = now()
                      WHERE slot = $1 AND timeline = $2 AND generation = $3
                  RETURNING {CONFIRMED} AS confirmed, {HORIZON}"
                ),
                &[
                    (&self.slot, Type::TEXT),
                    (&timeline, Type::INT4),
                    (&generation, Type::INT8),
                    (&PgLsn::from(settled_lsn.as_u64()), Type::PG_LSN),
                    (&settled_xid.map(|xid| xid.to_string()), Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql("write app_outbox_relay"))?;
        let written = written.as_ref();
        written
            .map(|row| Ok(Written { confirmed: confirmed(row), horizon: horizon(row)? }))
            .transpose()
    }

    /// Whether the row is still the session's.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn is_ours(&self, client: &Client) -> Result<bool, StoreError> {
        let row = client
            .query_typed_opt(
                "SELECT generation FROM public.app_outbox_relay WHERE slot = $1",
                &[(&self.slot, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("read app_outbox_relay"))?;
        let found = row.map_or(0, |row| row.get::<_, i64>("generation"));
        Ok(u64::try_from(found).unwrap_or_default() == self.generation)
    }

    /// Notes how the relay is doing, of a session that streams as this server process. Nothing is written where
    /// the row is not the session's any more.
    ///
    /// # Errors
    ///
    /// The column is missing; the server refused, or the connection ended.
    pub(crate) async fn note_condition(
        &self,
        client: &Client,
        streaming_pid: Option<i32>,
        condition: &Condition,
    ) -> Result<(), StoreError> {
        let (timeline, generation) = self.columns()?;
        client
            .execute_typed(
                "UPDATE public.app_outbox_relay
                    SET condition = jsonb_build_object(
                          'phase', $4, 'reasons', to_jsonb($5), 'pid', $6, 'at', clock_timestamp())
                  WHERE slot = $1 AND timeline = $2 AND generation = $3",
                &[
                    (&self.slot, Type::TEXT),
                    (&timeline, Type::INT4),
                    (&generation, Type::INT8),
                    (&condition.phase(), Type::TEXT),
                    (condition.reasons(), Type::TEXT_ARRAY),
                    (&streaming_pid, Type::INT4),
                ],
            )
            .await
            .map_err(StoreError::sql("note the relay's condition in app_outbox_relay"))?;
        Ok(())
    }

    fn columns(&self) -> Result<(i32, i64), StoreError> {
        let timeline = i32::try_from(self.timeline).map_err(|_| {
            StoreError::Sql(SqlError::OutOfRange { what: "timeline", value: self.timeline.into() })
        })?;
        let generation = i64::try_from(self.generation).map_err(|_| {
            StoreError::Sql(SqlError::OutOfRange { what: "generation", value: self.generation })
        })?;
        Ok((timeline, generation))
    }
}

/// How far slot `$1` is confirmed: no session is sent what lies before. Where there is no slot nobody is sent
/// anything.
const CONFIRMED: &str = "
    coalesce((SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
             'FFFFFFFF/FFFFFFFF')";

fn confirmed(row: &Row) -> Lsn {
    Lsn::new(row.get::<_, PgLsn>("confirmed").into())
}

/// How far this slot is confirmed; everything where there is none.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub(crate) async fn read_confirmed(client: &Client, slot: &str) -> Result<Lsn, StoreError> {
    let sql = format!("SELECT {CONFIRMED} AS confirmed");
    let row = client.query_typed_one(&sql, &[(&slot, Type::TEXT)]).await;
    Ok(confirmed(&row.map_err(StoreError::sql("read how far the slot is confirmed"))?))
}

/// The slot `$1`, with the 64-bit form of its `catalog_xmin` as `oldest`. The server tells 32 bits; the
/// epoch is that of the newest transaction, or the one before.
pub const SLOT_WITH_OLDEST: &str = "
    SELECT slot_name, confirmed_flush_lsn,
           (CASE WHEN epoch + xmin > newest THEN epoch + xmin - 4294967296
                 ELSE epoch + xmin END)::text::xid8 AS oldest
      FROM (SELECT slot_name, confirmed_flush_lsn, catalog_xmin::text::bigint AS xmin,
                   newest, newest / 4294967296 * 4294967296 AS epoch
              FROM pg_replication_slots,
                   (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest) AS n
             WHERE slot_name = $1) AS slot";

/// Takes the row of a slot for a session on this timeline, and says which row that is.
///
/// A slot that has none yet gets one from what the slot itself says: what it has confirmed is settled,
/// and every transaction below its `catalog_xmin` had ended by then (snapbuild.c moves the one only
/// once the other has passed). From then on a lost slot is known as one. A row of an earlier timeline
/// is taken along: it is in this history, and so is everything up to what it says is settled.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn take_relay_row(
    client: &Client,
    slot: &str,
    system_identifier: &str,
    timeline: u32,
) -> Result<OwnRow, StoreError> {
    let row = OwnRow { slot: slot.to_owned(), timeline, generation: 0 };
    let (on_timeline, _) = row.columns()?;
    let generation: i64 = client
        .query_typed_one(
            &format!(
                "WITH begun AS (
               INSERT INTO public.app_outbox_relay
                      (slot, system_identifier, timeline, generation, settled_lsn, settled_xid)
               SELECT slot_name, $2, $3, 1, confirmed_flush_lsn, oldest
                 FROM ({SLOT_WITH_OLDEST}) AS slot
                WHERE confirmed_flush_lsn IS NOT NULL AND oldest IS NOT NULL
               ON CONFLICT (slot) DO NOTHING
               RETURNING generation
             ), taken AS (
               UPDATE public.app_outbox_relay SET timeline = $3
                WHERE slot = $1 AND timeline <> $3
             )
             SELECT coalesce((SELECT generation FROM begun),
                             (SELECT generation FROM public.app_outbox_relay WHERE slot = $1), 0)"
            ),
            &[(&slot, Type::TEXT), (&system_identifier, Type::TEXT), (&on_timeline, Type::INT4)],
        )
        .await
        .map_err(StoreError::sql("take the row in app_outbox_relay"))?
        .get(0);
    Ok(OwnRow { generation: u64::try_from(generation).unwrap_or_default(), ..row })
}

/// Oids of this database and of these tables: what makes a transaction id on record one of this place. An
/// upgrade keeps them, a copy of the data does not.
const ORIGIN: &str = "
    jsonb_build_object(
      'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
      'tables', (SELECT jsonb_object_agg(name, to_regclass(name)::oid::text) FROM unnest($2::text[]) AS name))";

/// Notes which database and tables the record is about.
///
/// # Errors
///
/// The column is missing; the server refused, or the connection ended.
pub(crate) async fn note_origin(
    client: &Client,
    slot: &str,
    tables: &[QualifiedName],
) -> Result<(), StoreError> {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let sql = format!(
        "UPDATE public.app_outbox_relay SET origin = {ORIGIN}
          WHERE slot = $1 AND origin IS DISTINCT FROM {ORIGIN}"
    );
    client
        .execute_typed(&sql, &[(&slot, Type::TEXT), (&names, Type::TEXT_ARRAY)])
        .await
        .map_err(StoreError::sql("note the origin of transaction ids in app_outbox_relay"))?;
    Ok(())
}

/// Whether the transaction ids on record still hold here: it is the database that they were written in,
/// with these tables, and it has come past them.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn is_same_origin(
    client: &Client,
    slot: &str,
    tables: &[QualifiedName],
) -> Result<bool, StoreError> {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let sql = format!(
        "SELECT to_jsonb(r) -> 'origin' = {ORIGIN}
                AND pg_snapshot_xmax(pg_current_snapshot()) >= settled_xid AS is_same
           FROM public.app_outbox_relay r WHERE slot = $1"
    );
    let row = client
        .query_typed_opt(&sql, &[(&slot, Type::TEXT), (&names, Type::TEXT_ARRAY)])
        .await
        .map_err(StoreError::sql("compare the origin of transaction ids"))?;
    Ok(row.and_then(|row| row.get::<_, Option<bool>>("is_same")).unwrap_or(false))
}

/// Notes that an operator has moved the slot on, so that what was skipped is not taken for a gap.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn advance_relay_row(client: &Client, slot: &str, to: Lsn) -> Result<(), StoreError> {
    client
        .execute_typed(
            "UPDATE public.app_outbox_relay SET settled_lsn = greatest(settled_lsn, $2), updated_at = now()
              WHERE slot = $1",
            &[(&slot, Type::TEXT), (&PgLsn::from(to.as_u64()), Type::PG_LSN)],
        )
        .await
        .map_err(StoreError::sql("move app_outbox_relay on"))?;
    Ok(())
}

/// A slot whose recovery has begun and is not finished, if there is one: it needs rows of the outbox.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn recovering_slot(client: &Client) -> Result<Option<String>, StoreError> {
    let sql = "SELECT slot FROM public.app_outbox_relay r
                WHERE to_jsonb(r) -> 'operation' ->> 'kind' = 'recovery' LIMIT 1";
    let row = client.query_typed_opt(sql, &[]).await;
    Ok(row.map_err(StoreError::sql("read app_outbox_relay"))?.map(|row| row.get("slot")))
}

/// The end of the log that is safely on disk; None on a server in recovery.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_wal_end(client: &Client) -> Result<Option<Lsn>, StoreError> {
    let row = client
        .query_typed_one(
            "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END AS wal_end",
            &[],
        )
        .await
        .map_err(StoreError::sql("read the end of the log"))?;
    Ok(row.get::<_, Option<PgLsn>>("wal_end").map(|at| Lsn::new(at.into())))
}

/// Removes the row, so that the next start is a first start.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn delete_relay_row(client: &Client, slot: &str) -> Result<(), StoreError> {
    client
        .execute_typed(
            "DELETE FROM public.app_outbox_relay WHERE slot = $1",
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("delete from app_outbox_relay"))?;
    Ok(())
}

/// The horizon of this moment.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_horizon(client: &Client) -> Result<Horizon, StoreError> {
    // The snapshot is taken before the statement runs, hence before the position is read. A commit is
    // in the log before its transaction leaves the snapshot, so every commit below `xmin` lies before
    // the position; but possibly not yet written out (synchronous_commit = off), so it has to be the
    // position of inserting, not that of writing.
    let row = client.query_typed_one(&format!("SELECT {HORIZON}"), &[]).await;
    horizon(&row.map_err(StoreError::sql("read the horizon"))?)
}

const HORIZON: &str = "
    pg_snapshot_xmin(pg_current_snapshot())::text AS xmin, pg_current_wal_insert_lsn() AS wal_end";

fn horizon(row: &Row) -> Result<Horizon, StoreError> {
    Ok(Horizon {
        xmin: parse_xid(row.get("xmin"), "pg_current_snapshot()")?,
        wal_end: Lsn::new(row.get::<_, PgLsn>("wal_end").into()),
    })
}

fn parse_xid(text: &str, column: &'static str) -> Result<u64, StoreError> {
    text.parse().map_err(|_| {
        StoreError::Sql(SqlError::UnexpectedValue {
            column,
            value: text.to_owned(),
            expected: "a transaction id",
        })
    })
}

//! The settled position of a slot, in `app_outbox_relay`. It distinguishes a lost slot from a first
//! start.

use std::time::{Duration, SystemTime};

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};
use walrelay_pg_client::{
    HORIZON_AGE_MAX, QualifiedName, SCHEMA, SqlError, SqlText, in_schema, sql,
};
use walrelay_pg_replication::SlotState;

use crate::relay_condition::{Condition, StoredCondition, condition_of_row};
use crate::store_error::StoreError;

/// The row of one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayRow {
    /// System identifier of the server that the positions belong to. They are not valid on another
    /// server.
    pub system_identifier: String,
    /// Timeline on which the row was written.
    pub timeline: u32,
    /// Number that every operator's change of the slot's position raises.
    pub generation: u64,
    /// The watermark.
    pub settled_lsn: Lsn,
    /// Every committed transaction below this one is settled.
    pub settled_xid: u64,
    /// The number of transactions from that one until now.
    pub settled_age: u64,
    pub updated_at: SystemTime,
    /// Time since the row was written, by the server's clock.
    pub age: Duration,
    /// Kind of the unfinished operation on the slot.
    pub operation: Option<String>,
    /// The relay's condition at its last change.
    pub condition: Option<StoredCondition>,
    /// The rows that the relay has published. None if there was none yet.
    pub published: Option<PublishedRows>,
}

impl RelayRow {
    /// The number of transactions since the horizon. None while a change of the shard count makes the
    /// slot, which has no horizon yet.
    #[must_use]
    pub fn horizon_age(&self) -> Option<u64> {
        let has_horizon = self.operation.as_deref() != Some("resharding");
        has_horizon.then_some(self.settled_age)
    }

    /// Returns whether so many transactions have run since that nothing shows which rows are
    /// settled.
    #[must_use]
    pub const fn is_horizon_too_old(&self) -> bool {
        self.settled_age >= HORIZON_AGE_MAX
    }

    /// Returns whether this row describes another slot of the same name, because this slot's WAL
    /// begins after the settled position. A streaming slot was checked when its session began.
    #[must_use]
    pub fn describes_another_slot(&self, slot: &SlotState) -> bool {
        self.operation.is_none()
            && slot.active_pid.is_none()
            && slot.restart_lsn.is_some_and(|restart| restart > self.settled_lsn)
    }
}

/// A point in the server's history, as a transaction and as a position.
///
/// Once the watermark has passed `wal_end`, every committed transaction below `xmin` is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// Every transaction below this one had ended.
    pub xmin: u64,
    /// Every commit of these transactions lies before this position.
    pub wal_end: Lsn,
}

/// Reads the row of this slot. None if it was never written.
pub async fn read_relay_row(client: &Client, slot: &str) -> Result<Option<RelayRow>, StoreError> {
    let row = client
        .query_typed_opt(sql!("relay_row.sql", "read"), &[(&slot, Type::TEXT)])
        .await
        .map_err(StoreError::sql("read app_outbox_relay"))?;
    row.map(|row| {
        Ok(RelayRow {
            system_identifier: row.get("system_identifier"),
            timeline: u32::try_from(row.get::<_, i32>("timeline")).unwrap_or_default(),
            generation: u64::try_from(row.get::<_, i64>("generation")).unwrap_or_default(),
            settled_lsn: Lsn::new(row.get::<_, PgLsn>("settled_lsn").into()),
            settled_xid: parse_xid(row.get("settled_xid"), "app_outbox_relay.settled_xid")?,
            settled_age: row.get::<_, i64>("settled_age").unsigned_abs(),
            updated_at: row.get("updated_at"),
            age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
            operation: row.get("operation"),
            condition: condition_of_row(&row),
            published: published_of_row(&row),
        })
    })
    .transpose()
}

/// The rows that Pub/Sub has stored since the record exists. A row that was sent twice counts twice,
/// and a crash of the relay leaves out those of its last tenth of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedRows {
    pub rows: u64,
    /// Those of this day in UTC.
    pub today: u64,
    /// Time since the last of them, by the server's clock.
    pub age: Duration,
}

fn published_of_row(row: &Row) -> Option<PublishedRows> {
    let count = |name| row.get::<_, Option<i64>>(name).map(i64::unsigned_abs);
    let age: Option<f64> = row.get("published_age");
    Some(PublishedRows {
        rows: count("published_rows")?,
        today: count("published_today")?,
        age: Duration::try_from_secs_f64(age?).unwrap_or_default(),
    })
}

/// The row that a session writes, identified by slot, timeline and generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRowOwner {
    pub slot: String,
    /// Timeline of the session's server.
    pub timeline: u32,
    /// Generation of the row when the session began.
    pub generation: u64,
}

/// The server's answer after the row was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayRowWritten {
    pub confirmed: Lsn,
    pub horizon: Horizon,
}

impl RelayRowOwner {
    /// Records the settled position, the transaction id if one is known, and that so many more rows
    /// are published. Returns None and writes nothing if the row no longer belongs to the session.
    ///
    /// The same statement reads the horizon, because it runs ten times a second. [`read_horizon`]
    /// explains why the position is never before the snapshot.
    pub async fn write(
        &self,
        client: &Client,
        settled_lsn: Lsn,
        settled_xid: Option<u64>,
        published: u64,
    ) -> Result<Option<RelayRowWritten>, StoreError> {
        let (timeline, generation) = self.columns()?;
        let written = client
            .query_typed_opt(
                sql!("relay_row.sql", "write"),
                &[
                    (&self.slot, Type::TEXT),
                    (&timeline, Type::INT4),
                    (&generation, Type::INT8),
                    (&PgLsn::from(settled_lsn.as_u64()), Type::PG_LSN),
                    (&settled_xid.map(|xid| xid.to_string()), Type::TEXT),
                    (&i64::try_from(published).unwrap_or_default(), Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("write app_outbox_relay"))?;
        let written = written.as_ref();
        written
            .map(|row| Ok(RelayRowWritten { confirmed: confirmed(row), horizon: horizon(row)? }))
            .transpose()
    }

    /// Returns whether the row still belongs to the session.
    pub async fn is_ours(&self, client: &Client) -> Result<bool, StoreError> {
        let row = client
            .query_typed_opt(
                in_schema!("SELECT generation FROM public.app_outbox_relay WHERE slot = $1"),
                &[(&self.slot, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("read app_outbox_relay"))?;
        let found = row.map_or(0, |row| row.get::<_, i64>("generation"));
        Ok(u64::try_from(found).unwrap_or_default() == self.generation)
    }

    /// Records the relay's condition, for a session that streams as this process. Writes nothing if
    /// the row no longer belongs to the session.
    pub(crate) async fn note_condition(
        &self,
        client: &Client,
        streaming_pid: Option<i32>,
        condition: &Condition,
    ) -> Result<(), StoreError> {
        let (timeline, generation) = self.columns()?;
        client
            .execute_typed(
                sql!("relay_row.sql", "note_condition"),
                &[
                    (&self.slot, Type::TEXT),
                    (&timeline, Type::INT4),
                    (&generation, Type::INT8),
                    (&condition.phase(), Type::TEXT),
                    (&condition.reasons_json(), Type::TEXT),
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

fn confirmed(row: &Row) -> Lsn {
    Lsn::new(row.get::<_, PgLsn>("confirmed").into())
}

/// Reads the confirmed position of this slot, before which no session receives data. The highest
/// position if the slot does not exist.
pub(crate) async fn read_confirmed(client: &Client, slot: &str) -> Result<Lsn, StoreError> {
    let sql = sql!("relay_row.sql", "confirmed");
    let row = client.query_typed_one(sql, &[(&slot, Type::TEXT)]).await;
    Ok(confirmed(&row.map_err(StoreError::sql("read how far the slot is confirmed"))?))
}

/// SQL for the slot `$1`, with its `catalog_xmin` in 64 bits as `oldest`. The server shows 32 bits.
/// The epoch is that of the newest transaction, or the one before.
pub static SLOT_WITH_OLDEST: SqlText = SqlText::new(|| sql!("relay_row.sql", "slot_with_oldest"));

/// Takes the row of a slot for a session on this timeline, and returns its identity.
///
/// If the slot has no row, one is created from the slot itself. The slot's confirmed position is
/// settled. Every transaction below the slot's `catalog_xmin` had ended by then, because
/// snapbuild.c moves `catalog_xmin` only after the confirmed position has passed it. From then on
/// the loss of the slot is detected. A row of an earlier timeline is kept, because the row and
/// everything up to its settled position belong to this history.
pub async fn take_relay_row(
    client: &Client,
    slot: &str,
    system_identifier: &str,
    timeline: u32,
) -> Result<RelayRowOwner, StoreError> {
    let row = RelayRowOwner { slot: slot.to_owned(), timeline, generation: 0 };
    let (on_timeline, _) = row.columns()?;
    let generation: i64 = client
        .query_typed_one(
            // spliced: SLOT_WITH_OLDEST, which operations on a slot also read.
            &format!(
                "WITH begun AS (
               INSERT INTO {SCHEMA}.app_outbox_relay
                      (slot, system_identifier, timeline, generation, settled_lsn, settled_xid, failover)
               SELECT slot_name, $2, $3, 1, confirmed_flush_lsn, oldest, failover
                 FROM ({SLOT_WITH_OLDEST}) AS slot
                WHERE confirmed_flush_lsn IS NOT NULL AND oldest IS NOT NULL
               ON CONFLICT (slot) DO NOTHING
               RETURNING generation
             ), taken AS (
               UPDATE {SCHEMA}.app_outbox_relay SET timeline = $3
                WHERE slot = $1 AND timeline <> $3
             )
             SELECT coalesce((SELECT generation FROM begun),
                             (SELECT generation FROM {SCHEMA}.app_outbox_relay WHERE slot = $1), 0)"
            ),
            &[(&slot, Type::TEXT), (&system_identifier, Type::TEXT), (&on_timeline, Type::INT4)],
        )
        .await
        .map_err(StoreError::sql("take the row in app_outbox_relay"))?
        .get(0);
    Ok(RelayRowOwner { generation: u64::try_from(generation).unwrap_or_default(), ..row })
}

/// Records whether the slot is a failover slot, and the oids of the database and tables that the row
/// describes. They show where recorded
/// transaction ids are valid. An upgrade keeps the oids, but a copy of the data does not.
pub(crate) async fn note_origin(
    client: &Client,
    slot: &str,
    tables: &[QualifiedName],
) -> Result<(), StoreError> {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    client
        .execute_typed(
            sql!("relay_row.sql", "note_origin"),
            &[(&slot, Type::TEXT), (&names, Type::TEXT_ARRAY)],
        )
        .await
        .map_err(StoreError::sql("note the origin of transaction ids in app_outbox_relay"))?;
    Ok(())
}

/// Returns whether the recorded transaction ids are valid here. The database and its tables must be
/// the same, and the database must have passed these ids. The record must also still be the version
/// that the named transaction wrote. Oids alone prove nothing, because two clusters that were set up
/// in the same way have the same oids. An upgrade copies the record with its `xmin`. A restored dump
/// does not.
pub async fn is_same_origin(
    client: &Client,
    slot: &str,
    tables: &[QualifiedName],
) -> Result<bool, StoreError> {
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let row = client
        .query_typed_opt(
            sql!("relay_row.sql", "is_same_origin"),
            &[(&slot, Type::TEXT), (&names, Type::TEXT_ARRAY)],
        )
        .await
        .map_err(StoreError::sql("compare the origin of transaction ids"))?;
    Ok(row.and_then(|row| row.get::<_, Option<bool>>("is_same")).unwrap_or(false))
}

/// Records that an operator has advanced the slot, so that the skipped rows are not taken for a
/// gap.
pub async fn advance_relay_row(client: &Client, slot: &str, to: Lsn) -> Result<(), StoreError> {
    client
        .execute_typed(
            sql!("relay_row.sql", "advance"),
            &[(&slot, Type::TEXT), (&PgLsn::from(to.as_u64()), Type::PG_LSN)],
        )
        .await
        .map_err(StoreError::sql("move app_outbox_relay on"))?;
    Ok(())
}

/// Records as JSON which rows an operator is about to skip. Writes nothing if the slot has no
/// row.
pub async fn record_skipped(client: &Client, slot: &str, json: &str) -> Result<(), StoreError> {
    client
        .execute_typed(
            sql!("relay_row.sql", "record_skipped"),
            &[(&slot, Type::TEXT), (&json, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("record the skipped rows in app_outbox_relay"))?;
    Ok(())
}

/// Reads what [`record_skipped`] recorded last.
pub async fn read_last_skipped(client: &Client, slot: &str) -> Result<Option<String>, StoreError> {
    let row = client
        .query_typed_opt(sql!("relay_row.sql", "last_skipped"), &[(&slot, Type::TEXT)])
        .await
        .map_err(StoreError::sql("read app_outbox_relay"))?;
    Ok(row.map(|row| row.get("last_skipped")))
}

/// Records why a relay waits that has no session, for `walrelay status`. Writes nothing while
/// another relay streams the slot, or if the slot has no row.
pub async fn note_wait(
    client: &Client,
    slot: &str,
    condition: &Condition,
) -> Result<(), StoreError> {
    client
        .execute_typed(
            sql!("relay_row.sql", "note_wait"),
            &[
                (&slot, Type::TEXT),
                (&condition.phase(), Type::TEXT),
                (&condition.reasons_json(), Type::TEXT),
            ],
        )
        .await
        .map_err(StoreError::sql("record why the relay waits in app_outbox_relay"))?;
    Ok(())
}

/// Returns the slots with an unfinished operation.
pub async fn slots_with_operations(client: &Client) -> Result<Vec<String>, StoreError> {
    let sql = in_schema!(
        "SELECT slot FROM public.app_outbox_relay WHERE operation IS NOT NULL ORDER BY slot"
    );
    let rows = client.query_typed(sql, &[]).await;
    let rows = rows.map_err(StoreError::sql("read app_outbox_relay"))?;
    Ok(rows.iter().map(|row| row.get("slot")).collect())
}

/// Reads the end of the WAL that is safely on disk. None on a server in recovery.
pub async fn read_wal_end(client: &Client) -> Result<Option<Lsn>, StoreError> {
    let row = client
        .query_typed_one(
            "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END AS wal_end",
            &[],
        )
        .await
        .map_err(StoreError::sql("read the end of the WAL"))?;
    Ok(row.get::<_, Option<PgLsn>>("wal_end").map(|at| Lsn::new(at.into())))
}

/// Deletes the row, so that the next start is a first start.
pub async fn delete_relay_row(client: &Client, slot: &str) -> Result<(), StoreError> {
    client
        .execute_typed(
            in_schema!("DELETE FROM public.app_outbox_relay WHERE slot = $1"),
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("delete from app_outbox_relay"))?;
    Ok(())
}

pub async fn read_horizon(client: &Client) -> Result<Horizon, StoreError> {
    // The snapshot is taken before the statement runs, and therefore before the position is read. A
    // commit is in the WAL before its transaction leaves the snapshot, so every commit below `xmin`
    // lies before the position. The commit may not be written out yet (synchronous_commit = off).
    // The position must therefore be the insert position, not the write position.
    let row = client.query_typed_one(sql!("relay_row.sql", "horizon"), &[]).await;
    horizon(&row.map_err(StoreError::sql("read the horizon"))?)
}

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

//! How far a slot is settled, in `app_outbox_relay`: what tells a lost slot from a first start.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use crate::store_error::StoreError;

/// The row of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayRow {
    /// The server whose positions these are; those of another mean nothing here.
    pub system_identifier: String,
    /// The watermark.
    pub settled_lsn: Lsn,
    /// Every committed transaction below this one is settled.
    pub settled_xid: u64,
    /// When it was written.
    pub updated_at: SystemTime,
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
            "SELECT system_identifier, settled_lsn, settled_xid::text AS settled_xid, updated_at
               FROM public.app_outbox_relay WHERE slot = $1",
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("read app_outbox_relay"))?;
    row.map(|row| {
        Ok(RelayRow {
            system_identifier: row.get("system_identifier"),
            settled_lsn: Lsn::new(row.get::<_, PgLsn>("settled_lsn").into()),
            settled_xid: parse_xid(row.get("settled_xid"), "app_outbox_relay.settled_xid")?,
            updated_at: row.get("updated_at"),
        })
    })
    .transpose()
}

/// Writes how far the slot is settled.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn write_relay_row(
    client: &Client,
    slot: &str,
    system_identifier: &str,
    settled_lsn: Lsn,
    settled_xid: u64,
) -> Result<(), StoreError> {
    client
        .execute_typed(
            "INSERT INTO public.app_outbox_relay (slot, system_identifier, settled_lsn, settled_xid)
             VALUES ($1, $2, $3, $4::xid8)
             ON CONFLICT (slot) DO UPDATE
                SET system_identifier = excluded.system_identifier, settled_lsn = excluded.settled_lsn,
                    settled_xid = excluded.settled_xid, updated_at = now()",
            &[
                (&slot, Type::TEXT),
                (&system_identifier, Type::TEXT),
                (&PgLsn::from(settled_lsn.as_u64()), Type::PG_LSN),
                (&settled_xid.to_string(), Type::TEXT),
            ],
        )
        .await
        .map_err(StoreError::sql("write app_outbox_relay"))?;
    Ok(())
}

/// Writes the row of a slot that has none yet, from what the slot itself says: what it has confirmed
/// is settled, and every transaction below its `catalog_xmin` had ended by then (snapbuild.c moves
/// the one only once the other has passed). From then on a lost slot is known as one.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn begin_relay_row(
    client: &Client,
    slot: &str,
    system_identifier: &str,
) -> Result<(), StoreError> {
    client
        .execute_typed(
            // catalog_xmin has 32 bits; the epoch is that of the newest transaction, or the one before.
            "INSERT INTO public.app_outbox_relay (slot, system_identifier, settled_lsn, settled_xid)
             SELECT slot_name, $2, confirmed_flush_lsn,
                    (CASE WHEN epoch + xmin > newest THEN epoch + xmin - 4294967296
                          ELSE epoch + xmin END)::text::xid8
               FROM (SELECT slot_name, confirmed_flush_lsn, catalog_xmin::text::bigint AS xmin,
                            newest, newest / 4294967296 * 4294967296 AS epoch
                       FROM pg_replication_slots,
                            (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest) AS n
                      WHERE slot_name = $1 AND confirmed_flush_lsn IS NOT NULL
                        AND catalog_xmin IS NOT NULL) AS slot
             ON CONFLICT (slot) DO NOTHING",
            &[(&slot, Type::TEXT), (&system_identifier, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("begin app_outbox_relay"))?;
    Ok(())
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
    let row = client
        .query_typed_one(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin,
                    pg_current_wal_insert_lsn() AS wal_end",
            &[],
        )
        .await
        .map_err(StoreError::sql("read the horizon"))?;
    Ok(Horizon {
        xmin: parse_xid(row.get("xmin"), "pg_current_snapshot()")?,
        wal_end: Lsn::new(row.get::<_, PgLsn>("wal_end").into()),
    })
}

fn parse_xid(text: &str, column: &'static str) -> Result<u64, StoreError> {
    text.parse().map_err(|_| StoreError::UnexpectedValue {
        column,
        value: text.to_owned(),
        expected: "a transaction id",
    })
}

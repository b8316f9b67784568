//! Which position the log had when, in `app_outbox_relay_time`: an operator thinks in times, a slot in
//! positions.
//!
//! A row's own commit lies behind the position that it notes, so a history that holds the row holds
//! the log up to there: what is read here is of this history, after a promotion or a restore too.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use crate::store_error::StoreError;

/// A position, and a moment at which the log had come no further back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalTime {
    /// The moment.
    pub at: SystemTime,
    /// Whatever was committed at that moment or later lies at this position or behind it.
    pub lsn: Lsn,
}

/// Notes the position of this moment, unless somebody has within the last minute; forgets what is
/// older than a month.
///
/// # Errors
///
/// There is no such table, or no right to it; the server refused, or the connection ended.
pub async fn note_wal_time(client: &Client, system_identifier: &str) -> Result<(), StoreError> {
    // The position is read before the time: a transaction takes its time of commit first and its place
    // in the log then, so one of that time or later lies behind the position.
    client
        .execute_typed(
            "WITH here AS MATERIALIZED (SELECT pg_current_wal_insert_lsn() AS lsn),
                  gone AS (
                    DELETE FROM public.app_outbox_relay_time
                     WHERE system_identifier = $1 AND noted_at < now() - interval '31 days')
             INSERT INTO public.app_outbox_relay_time (system_identifier, noted_at, lsn)
             SELECT $1, clock_timestamp(), here.lsn FROM here
              WHERE NOT EXISTS (SELECT FROM public.app_outbox_relay_time
                                 WHERE system_identifier = $1
                                   AND noted_at > now() - interval '55 seconds')
             ON CONFLICT DO NOTHING",
            &[(&system_identifier, Type::TEXT)],
        )
        .await
        .map_err(StoreError::sql("note the time in app_outbox_relay_time"))?;
    Ok(())
}

/// Everything committed at `time` or later lies behind this; None when nothing is noted from before.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn position_at(
    client: &Client,
    system_identifier: &str,
    time: SystemTime,
) -> Result<Option<WalTime>, StoreError> {
    let sql = "SELECT noted_at, lsn FROM public.app_outbox_relay_time
                WHERE system_identifier = $1 AND noted_at <= $2 ORDER BY noted_at DESC LIMIT 1";
    one(client, sql, &[(&system_identifier, Type::TEXT), (&time, Type::TIMESTAMPTZ)]).await
}

/// The first moment from which on everything committed lies at or behind `lsn`, as far as is noted.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn first_time_behind(
    client: &Client,
    system_identifier: &str,
    lsn: Lsn,
) -> Result<Option<WalTime>, StoreError> {
    let sql = "SELECT noted_at, lsn FROM public.app_outbox_relay_time
                WHERE system_identifier = $1 AND lsn >= $2 ORDER BY noted_at LIMIT 1";
    let lsn = PgLsn::from(lsn.as_u64());
    one(client, sql, &[(&system_identifier, Type::TEXT), (&lsn, Type::PG_LSN)]).await
}

/// A position that was noted after `time`; None when none is.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn first_position_after(
    client: &Client,
    system_identifier: &str,
    time: SystemTime,
) -> Result<Option<WalTime>, StoreError> {
    let sql = "SELECT noted_at, lsn FROM public.app_outbox_relay_time
                WHERE system_identifier = $1 AND noted_at > $2 ORDER BY noted_at LIMIT 1";
    one(client, sql, &[(&system_identifier, Type::TEXT), (&time, Type::TIMESTAMPTZ)]).await
}

type Param<'a> = (&'a (dyn tokio_postgres::types::ToSql + Sync), Type);

async fn one(
    client: &Client,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Option<WalTime>, StoreError> {
    let row = client
        .query_typed_opt(sql, params)
        .await
        .map_err(StoreError::sql("read app_outbox_relay_time"))?;
    Ok(row.map(|row| {
        let lsn = Lsn::new(row.get::<_, PgLsn>("lsn").into());
        WalTime { at: row.get("noted_at"), lsn }
    }))
}

//! WAL positions with their times, in `app_outbox_relay_time`. Operators think in times, slots in
//! positions.
//!
//! A row's own commit lies after the position that the row records. A history that contains the row
//! therefore contains the WAL up to that position, even after a promotion or a restore.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use crate::store_error::StoreError;
use walrelay_pg_client::{Parameter, sql};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalTime {
    pub at: SystemTime,
    /// Everything committed at that time or later lies at or after this position.
    pub lsn: Lsn,
}

/// Records the current position, unless a session did so within the last minute. Deletes rows older
/// than a month.
///
/// # Errors
///
/// There is no such table or privilege.
pub async fn note_wal_time(client: &Client, system_identifier: &str) -> Result<(), StoreError> {
    // The position is read before the time. A transaction takes its commit time first and its place
    // in the WAL later. A commit of that time or later therefore lies after the position.
    client
        .execute_typed(sql!("wal_time.sql", "note_wal_time"), &[(&system_identifier, Type::TEXT)])
        .await
        .map_err(StoreError::sql("note the time in app_outbox_relay_time"))?;
    Ok(())
}

/// Returns a position before everything committed at `time` or later. None if no earlier time is
/// recorded.
pub async fn position_at(
    client: &Client,
    system_identifier: &str,
    time: SystemTime,
) -> Result<Option<WalTime>, StoreError> {
    let sql = sql!("wal_time.sql", "position_at");
    one(client, sql, &[(&system_identifier, Type::TEXT), (&time, Type::TIMESTAMPTZ)]).await
}

/// Returns the first recorded time from which on every commit lies at or after `lsn`.
pub async fn first_time_at(
    client: &Client,
    system_identifier: &str,
    lsn: Lsn,
) -> Result<Option<WalTime>, StoreError> {
    let sql = sql!("wal_time.sql", "first_time_at");
    let lsn = PgLsn::from(lsn.as_u64());
    one(client, sql, &[(&system_identifier, Type::TEXT), (&lsn, Type::PG_LSN)]).await
}

/// Returns the first position that was recorded after `time`. None if there is none.
pub async fn first_position_after(
    client: &Client,
    system_identifier: &str,
    time: SystemTime,
) -> Result<Option<WalTime>, StoreError> {
    let sql = sql!("wal_time.sql", "first_position_after");
    one(client, sql, &[(&system_identifier, Type::TEXT), (&time, Type::TIMESTAMPTZ)]).await
}

async fn one(
    client: &Client,
    sql: &str,
    params: &[Parameter<'_>],
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

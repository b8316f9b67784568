//! The amount of WAL that the server retains for a slot: `max_slot_wal_keep_size`.

use tokio_postgres::Client;
use walrelay_core::WalRetentionLimit;

use crate::slot_error::SlotError;

/// SQL for the setting in bytes, as one column that [`retention_of`] reads. Reading `pg_settings`
/// would compute every setting.
pub const RETENTION: &str =
    "pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_slot_wal_keep_size'))";

/// SQL for the seconds that the oldest commit has waited for a synchronous standby, 0 if none waits.
/// Commits of other roles are visible only with `pg_read_all_stats`.
// spliced: it is an expression of other statements.
pub const COMMIT_WAIT: &str = "\
    (SELECT coalesce(max(extract(epoch FROM pg_catalog.clock_timestamp() - w.query_start)), 0)::float8 \
       FROM pg_catalog.pg_stat_get_activity(NULL) AS w WHERE w.wait_event = 'SyncRep')";

/// Converts the server's answer to a limit. -1 means no limit.
#[must_use]
pub fn retention_of(bytes: i64) -> WalRetentionLimit {
    u64::try_from(bytes).map_or(WalRetentionLimit::Unlimited, WalRetentionLimit::Bytes)
}

pub async fn read_retention(client: &Client) -> Result<WalRetentionLimit, SlotError> {
    let row = client
        .query_typed_one(&format!("SELECT {RETENTION}"), &[])
        .await
        .map_err(SlotError::sql("read max_slot_wal_keep_size"))?;
    Ok(retention_of(row.get(0)))
}

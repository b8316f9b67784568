//! What `walrelay status` prints and `/status` serves: one slot, its lag, its room and what is parked.

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use walrelay_postgres::{
    DispatchStore, PgError, SlotState, SqlClient, StoreError, WalStatus, read_relay_row, read_slot,
};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The slot is lost; what it had not confirmed can no longer be read from the log.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// What happened to it.
        how: &'static str,
    },
    /// The server refuses a statement.
    #[error(transparent)]
    Postgres(#[from] PgError),
    /// Dispatch state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What `walrelay status --format json` prints and `/status` serves.
///
/// # Errors
///
/// The server refuses, the slot is missing (lost, when there was one), or there is no dispatch
/// state.
pub async fn report(client: &SqlClient, slot: &str) -> Result<Map<String, Value>, ReportError> {
    let row = read_relay_row(client, slot).await?;
    let state = match (read_slot(client, slot).await?, &row) {
        (Some(state), _) => state,
        (None, Some(_)) => {
            return Err(ReportError::SlotLost { slot: slot.to_owned(), how: "no longer exists" });
        }
        (None, None) => return Err(StoreError::SlotMissing { slot: slot.to_owned() }.into()),
    };
    let counts = DispatchStore::new(slot.to_owned()).counts(client).await?;
    let mut report = slot_report(&state);
    report.insert("lag_seconds".into(), json!(lag_seconds(client, &state).await?));
    report.insert("settled_lsn".into(), json!(row.as_ref().map(|row| row.settled_lsn.to_string())));
    report.insert("settled_at".into(), json!(row.as_ref().map(|row| rfc3339(row.updated_at))));
    report.insert(
        "dispatch".into(),
        json!({
            "retrying": counts.retrying,
            "dead": counts.dead,
            "published": counts.published,
            "discarded": counts.discarded,
        }),
    );
    Ok(report)
}

/// The part of the report that one slot alone tells.
pub fn slot_report(state: &SlotState) -> Map<String, Value> {
    let fields = [
        ("slot", json!(state.name)),
        ("active", json!(state.active_pid.is_some())),
        ("active_pid", json!(state.active_pid)),
        ("wal_status", json!(state.wal_status.map(wal_status))),
        ("lost", json!(state.is_lost())),
        ("invalidation_reason", json!(state.invalidation_reason)),
        ("failover", json!(state.failover)),
        ("wal_end", json!(state.wal_end.to_string())),
        ("confirmed_flush_lsn", json!(state.confirmed_flush_lsn.map(|lsn| lsn.to_string()))),
        ("restart_lsn", json!(state.restart_lsn.map(|lsn| lsn.to_string()))),
        ("lag_bytes", json!(state.lag_bytes())),
        ("retained_bytes", json!(state.retained_bytes())),
        ("safe_wal_bytes", json!(state.safe_wal_size)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// How long ago what is confirmed now was written, as the server measures it for the session on the
/// slot; nothing where no session is on it or the role may not see it.
async fn lag_seconds(client: &SqlClient, state: &SlotState) -> Result<Option<f64>, ReportError> {
    let Some(pid) = state.active_pid else { return Ok(None) };
    let sql = "SELECT CASE WHEN state IS NOT NULL
                      THEN coalesce(extract(epoch FROM flush_lag), 0)::float8 END AS seconds
                 FROM pg_catalog.pg_stat_replication WHERE pid = $1";
    let row = client.query_opt(sql, &[&pid]).await.map_err(PgError::from)?;
    Ok(row.and_then(|row| row.get("seconds")))
}

fn wal_status(status: WalStatus) -> &'static str {
    match status {
        WalStatus::Reserved => "reserved",
        WalStatus::Extended => "extended",
        WalStatus::Unreserved => "unreserved",
        WalStatus::Lost => "lost",
    }
}

/// A moment as people and programs read it, `2026-01-31T12:00:00Z`.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}

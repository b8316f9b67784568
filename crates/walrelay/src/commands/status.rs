//! `walrelay status`: the slot, its lag, its room, and what is parked or dead.

use serde_json::{Map, Value, json};
use walrelay_postgres::{
    DispatchStore, PgError, SlotState, SqlClient, StoreError, WalStatus, connect_sql,
    read_relay_row, read_slot,
};

use super::{print, rfc3339};
use crate::config::{OutputFormat, StatusConfig, show_size};
use crate::error::Error;

/// Prints the report.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or there is no dispatch state.
pub async fn execute(config: StatusConfig) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let report = report(&client, &config.database.slot).await;
    client.close().await;
    let report = report?;
    print(&render(&report, config.format))?;
    match report.get("lost") {
        Some(Value::Bool(true)) => {
            Err(Error::SlotLost { slot: config.database.slot, how: "is invalidated" })
        }
        Some(_) | None => Ok(()),
    }
}

/// What `walrelay status --format json` prints and `/status` serves.
///
/// # Errors
///
/// The server refuses, the slot is missing (lost, when there was one), or there is no dispatch
/// state.
pub async fn report(client: &SqlClient, slot: &str) -> Result<Map<String, Value>, Error> {
    let row = read_relay_row(client, slot).await?;
    let state = match (read_slot(client, slot).await?, &row) {
        (Some(state), _) => state,
        (None, Some(_)) => {
            return Err(Error::SlotLost { slot: slot.to_owned(), how: "no longer exists" });
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
pub(super) fn slot_report(state: &SlotState) -> Map<String, Value> {
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
async fn lag_seconds(client: &SqlClient, state: &SlotState) -> Result<Option<f64>, Error> {
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

/// A report as JSON, or a line a field.
pub(super) fn render(report: &Map<String, Value>, format: OutputFormat) -> String {
    match format {
        OutputFormat::Json => format!("{:#}\n", Value::Object(report.clone())),
        OutputFormat::Text => report.iter().map(|(name, value)| line(name, value)).collect(),
    }
}

fn line(name: &str, value: &Value) -> String {
    let shown = match value {
        Value::Null => match name {
            "safe_wal_bytes" => "unlimited, or the slot is lost".to_owned(),
            _ => "-".to_owned(),
        },
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64().filter(|_| name.ends_with("_bytes")) {
            Some(bytes) => approximate(bytes),
            None => number.to_string(),
        },
        Value::Object(fields) => {
            let parts = fields.iter().map(|(part, count)| format!("{part} {count}"));
            parts.collect::<Vec<_>>().join(", ")
        }
        Value::Array(_) => value.to_string(),
    };
    format!("{:<20} {shown}\n", name.replace('_', " "))
}

/// Bytes, and beside them the nearest round size.
fn approximate(bytes: u64) -> String {
    let round = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..1_048_576 => bytes >> 10 << 10,
        1_048_576..10_737_418_240 => bytes >> 20 << 20,
        _ => bytes >> 30 << 30,
    };
    format!("{bytes} (about {})", show_size(round))
}

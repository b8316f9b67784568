//! `walrelay status`: the slot, its lag, its room, and what is parked or dead.

use serde_json::{Map, Value};
use walrelay_postgres::connect_sql;
use walrelay_relay::observe::report::report;

use crate::config::{OutputFormat, StatusConfig};
use crate::error::Error;
use crate::options::units::show_size;
use crate::output::print;

/// Prints the report.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or there is no dispatch state.
pub async fn execute(config: StatusConfig) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let report = report(&client, &config.database.outbox.slot).await;
    client.close().await;
    let report = report?;
    print(&render(&report, config.format))?;
    match report.get("lost") {
        Some(Value::Bool(true)) => {
            Err(Error::SlotLost { slot: config.database.outbox.slot, how: "is invalidated" })
        }
        Some(_) | None => Ok(()),
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

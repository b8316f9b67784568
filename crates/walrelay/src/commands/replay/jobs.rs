//! `walrelay replay list`, `show`, `resume` and `cancel`.

use serde_json::{Value, json};
use walrelay_outbox_admin::replay::Destination;
use walrelay_outbox_admin::{ReplayEnd, ReplayRow, read_replay, read_replays};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_relay::shutdown::Shutdown;

use super::super::backfill;
use super::record;
use crate::config::{
    BackfillAction, BackfillConfig, OutputFormat, ReplayAction, ReplayConfig, ReplayRecordAction,
    ReplayRecordConfig, ResumeConfig,
};
use crate::error::Error;
use crate::output::{columns, print, visible};

/// Prints replays, or cancels one.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or there is no such replay.
pub(in crate::commands) async fn execute(config: ReplayRecordConfig) -> Result<(), Error> {
    let mut client = connect_sql(&config.database.connect).await?;
    let done = act(&mut client, &config).await;
    client.close().await;
    print(&done?)
}

async fn act(client: &mut SqlClient, config: &ReplayRecordConfig) -> Result<String, Error> {
    let outbox = &config.database.outbox;
    let slots = [outbox.base_slot().to_owned(), outbox.slot.clone()];
    match &config.action {
        ReplayRecordAction::List(format) => {
            let rows = read_replays(client, &slots).await?;
            Ok(match format {
                OutputFormat::Text => table(&rows),
                OutputFormat::Json => {
                    format!("{:#}\n", Value::from(rows.iter().map(as_json).collect::<Vec<_>>()))
                }
            })
        }
        ReplayRecordAction::Show { id, format } => {
            let row = read_replay(client, id).await?.filter(|row| slots.contains(&row.slot));
            let row = row.ok_or_else(|| record::missing(("replay", id), &outbox.slot))?;
            Ok(match format {
                OutputFormat::Text => page(&row),
                OutputFormat::Json => format!("{:#}\n", as_json(&row)),
            })
        }
        ReplayRecordAction::Cancel { id } => record::abandon(client, ("replay", id), outbox).await,
    }
}

/// Resumes a replay, whichever source it has.
///
/// # Errors
///
/// Those of the replay, and that there is no such replay.
pub(in crate::commands) async fn resume(
    config: ResumeConfig,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let ResumeConfig { settings, id, dead_rows } = config;
    let client = connect_sql(&settings.connect).await?;
    let row = read_replay(&client, &id).await;
    client.close().await;
    match row? {
        Some(row) if row.anchor.is_empty() => {
            let action = BackfillAction::Resume { id, dead_rows };
            Box::pin(backfill::execute(BackfillConfig { settings, action }, shutdown)).await
        }
        Some(_) => {
            let action = ReplayAction::Resume { id, dead_rows };
            Box::pin(super::execute(ReplayConfig { settings, action }, shutdown)).await
        }
        None => Err(record::missing(("replay", &id), &settings.relay.outbox.slot)),
    }
}

const fn source(row: &ReplayRow) -> &'static str {
    if row.anchor.is_empty() { "table" } else { "wal" }
}

const fn state(row: &ReplayRow) -> &'static str {
    match row.end {
        None => "unfinished",
        Some(ReplayEnd::Done) => "done",
        Some(ReplayEnd::GivenUp) => "cancelled",
    }
}

fn destination(row: &ReplayRow) -> String {
    match Destination::from_json(&row.request) {
        Ok(Destination::InPlace) => "in place".to_owned(),
        Ok(Destination::Topic(topic)) => topic,
        Err(_) => "-".to_owned(),
    }
}

fn as_json(row: &ReplayRow) -> Value {
    json!({
        "id": row.id,
        "slot": row.slot,
        "source": source(row),
        "anchor": (!row.anchor.is_empty()).then_some(&row.anchor),
        "destination": destination(row),
        "state": state(row),
        "from": row.from.to_string(),
        "to": row.to.to_string(),
        "settled": row.settled.to_string(),
        "rows": row.rows,
        "request": serde_json::from_str::<Value>(&row.request).unwrap_or(Value::Null),
    })
}

fn table(rows: &[ReplayRow]) -> String {
    let cells = |row: &ReplayRow| {
        [
            row.id.clone(),
            state(row).to_owned(),
            source(row).to_owned(),
            visible(&destination(row)),
            row.rows.to_string(),
        ]
    };
    let headings = ["ID", "STATE", "SOURCE", "DESTINATION", "ROWS"];
    columns(headings, &rows.iter().map(cells).collect::<Vec<_>>())
}

fn page(row: &ReplayRow) -> String {
    let lines = [
        ("state", state(row).to_owned()),
        ("slot", row.slot.clone()),
        ("source", source(row).to_owned()),
        ("destination", visible(&destination(row))),
        ("range", format!("{} to {}", row.from, row.to)),
        ("published up to", row.settled.to_string()),
        ("rows", row.rows.to_string()),
        ("request", visible(&row.request)),
    ];
    let lines: String =
        lines.iter().map(|(name, value)| format!("  {name:<16} {value}\n")).collect();
    format!("{}\n{lines}", row.id)
}

//! `walrelay inbox`: lists and changes events that a consumer could not apply.

use std::collections::BTreeMap;

use serde_json::Value;
use walrelay_inbox::operator::event_commands::{
    ConsumerGeneration, InboxFilter, InboxSelection, Replacement,
};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_relay::shutdown::Shutdown;

use super::dispatch::attributes::replace;
use super::dispatch::edit::{read, read_attributes};
use super::shared::consent::may_change;
use crate::config::{ChangeMode, Consent, InboxAction, InboxConfig, OutputFormat};
use crate::error::Error;
use crate::output::{columns, print, shortened, visible};

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached, the event does not exist or has the wrong status, or a file cannot
/// be read.
pub async fn execute(config: InboxConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let mut client = connect_sql(&config.connect).await?;
    let done = act(&mut client, &config, shutdown).await;
    client.close().await;
    print(&done?)
}

async fn act(
    client: &mut SqlClient,
    config: &InboxConfig,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let place = ConsumerGeneration::find(client, config.consumer.as_deref()).await?;
    match &config.action {
        InboxAction::List { filter, format } => {
            let rows = place.list(client, filter).await?;
            Ok(match format {
                OutputFormat::Json => format!("{:#}\n", Value::from(rows)),
                OutputFormat::Text => table(&rows),
            })
        }
        InboxAction::Show { id, format } => {
            let row = decoded(place.show(client, id).await?);
            Ok(match format {
                OutputFormat::Json => format!("{row:#}\n"),
                OutputFormat::Text => detail(&row),
            })
        }
        InboxAction::Retry { selection, consent } => {
            if *selection == InboxSelection::AllDead && *consent == Consent::Asked {
                let dead = Some("dead".to_owned());
                let filter = InboxFilter {
                    status: dead,
                    ordering_key: None,
                    older_than: None,
                    limit: LIMIT,
                };
                let what =
                    format!("retry {} dead event(s)", place.list(client, &filter).await?.len());
                may_change((&what, ChangeMode::Ask), shutdown).await?;
            }
            let count = place.retry(client, selection).await?;
            Ok(format!("{count} event(s) are due now, each when nothing of its key is before it\n"))
        }
        InboxAction::Edit { id, payload_file, attributes_file } => {
            let data = payload_file.as_ref().map(|path| read(path)).transpose()?;
            let (attributes, corrected) = match attributes_file {
                None => (None, Vec::new()),
                Some(path) => {
                    let stored = decoded(place.show(client, id).await?);
                    let mut attributes = attributes_of(&stored);
                    let corrected = replace(&mut attributes, read_attributes(path)?)?;
                    (Some(attributes), corrected)
                }
            };
            place.edit(client, id, &Replacement { data, attributes }).await?;
            let changed = match corrected.as_slice() {
                [] => String::new(),
                names => format!("changed of what describes the event: {}\n", names.join(", ")),
            };
            Ok(format!("{id} is edited and due now\n{changed}"))
        }
        InboxAction::Discard { id, reason } => {
            place.discard(client, id, reason).await?;
            Ok(format!("{id} is discarded\n"))
        }
    }
}

/// Returns the attributes of a stored message in the form of [`decoded`].
fn attributes_of(stored: &Value) -> BTreeMap<String, String> {
    let pairs = stored["message"]["attributes"].as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Turns the message's attributes into an object.
fn decoded(mut row: Value) -> Value {
    let message = &mut row["message"];
    if let Some(attributes) = message["attributes"].as_str() {
        message["attributes"] = serde_json::from_str(attributes).unwrap_or(Value::Null);
    }
    row
}

/// Most events that are counted before a question.
const LIMIT: u32 = 100_000;

const COLUMNS: [(&str, &str); 8] = [
    ("STATUS", "status"),
    ("ATTEMPTS", "attempts"),
    ("RECEIVED AT", "received_at"),
    ("POSITION", "commit_lsn"),
    ("HOLDS", "holds_its_key"),
    ("KEY", "ordering_key"),
    ("EVENT ID", "event_id"),
    ("LAST ERROR", "last_error"),
];

/// Most characters of a cell. Only errors are longer.
const CELL_MAX: usize = 80;

fn table(rows: &[Value]) -> String {
    let cell_of = |row: &Value, field: &str| -> String {
        let text = shown(&row[field]);
        // Of the errors, the cell shows the newest attempt. A key is shown whole, even with line
        // breaks.
        let newest = text.lines().next().unwrap_or_default();
        shortened(&visible(if field == "last_error" { newest } else { &text }), CELL_MAX)
    };
    let cells = |row| COLUMNS.map(|(_, field)| cell_of(row, field));
    columns(COLUMNS.map(|(heading, _)| heading), &rows.iter().map(cells).collect::<Vec<_>>())
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn detail(row: &Value) -> String {
    let fields = row.as_object().into_iter().flatten();
    let plain = fields.filter(|(name, _)| !["message", "last_error"].contains(&name.as_str()));
    let mut text: String = plain
        .map(|(name, value)| format!("{:<16} {}\n", name.replace('_', " "), visible(&shown(value))))
        .collect();
    text.push_str("\nhistory of errors, latest first\n");
    for line in row["last_error"].as_str().unwrap_or("none").lines() {
        text.push_str(&format!("  {}\n", visible(line)));
    }
    if row["message"].is_null() {
        text.push_str("\nno message: only events that wait or are dead keep theirs\n");
    } else {
        text.push_str(&format!("\nmessage\n{:#}\n", row["message"]));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_listed_event_is_one_line_and_a_key_cannot_break_it() {
        let row = json!({
            "status": "dead", "attempts": 10, "received_at": "2026-11-21T00:00:00Z", "commit_lsn": "0/1",
            "holds_its_key": true, "ordering_key": "a\nb", "event_id": "e-1",
            "last_error": "attempt 10: 22000: poison\nattempt 9: 22000: poison",
        });
        let text = table(&[row]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"a\nb") && text.contains("attempt 10"), "{text}");
        assert!(!text.contains("attempt 9"), "{text}");
    }
}

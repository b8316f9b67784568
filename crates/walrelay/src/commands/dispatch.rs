//! `walrelay dispatch`: what did not go out at the first try, as an operator handles it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use serde_json::{Value, json};
use walrelay_postgres::{DispatchDetail, DispatchRow, DispatchStore, SqlClient, connect_sql};
use walrelay_relay::observe::report::rfc3339;

use crate::config::{DispatchAction, DispatchConfig, OutputFormat};
use crate::error::Error;
use crate::output::print;

/// Largest file taken as a payload: a message of Pub/Sub may have 10,000,000 bytes.
const FILE_BYTES_MAX: u64 = 10_000_000;

/// Carries out the action and prints what was done.
///
/// # Errors
///
/// Postgres cannot be reached, the row does not exist or its state does not allow this, or a file cannot
/// be used.
pub async fn execute(config: DispatchConfig) -> Result<(), Error> {
    let mut client = connect_sql(&config.database.connect).await?;
    let store = DispatchStore::new(config.database.outbox.slot.clone());
    let done = act(&store, &mut client, &config.action).await;
    client.close().await;
    print(&done?)
}

async fn act(
    store: &DispatchStore,
    client: &mut SqlClient,
    action: &DispatchAction,
) -> Result<String, Error> {
    match action {
        DispatchAction::List { filter, format } => {
            let rows = store.list(client, filter).await?;
            Ok(match format {
                OutputFormat::Json => pretty(&rows.iter().map(row_json).collect()),
                OutputFormat::Text => table(&rows),
            })
        }
        DispatchAction::Show { id, format } => {
            let detail = store.show(client, id).await?;
            Ok(match format {
                OutputFormat::Json => pretty(&detail_json(&detail)),
                OutputFormat::Text => detail_text(&detail),
            })
        }
        DispatchAction::Retry(selection) => {
            let count = store.retry(client, selection).await?;
            Ok(format!("{count} row(s) are due now\n"))
        }
        DispatchAction::Edit { id, payload_file, attributes_file } => {
            let files = Files::read(payload_file.as_ref(), attributes_file.as_ref())?;
            let detail = store.show(client, id).await?;
            let message = files.put_into(&detail)?;
            store.edit(client, id, &message).await?;
            Ok(format!("{id} is edited and due now\n"))
        }
        DispatchAction::Discard { id, reason } => {
            store.discard(client, id, reason).await?;
            Ok(format!("{id} is discarded\n"))
        }
    }
}

/// The parts of a message that `edit` replaces.
#[derive(Default)]
struct Files {
    payload: Option<Bytes>,
    attributes: Option<BTreeMap<String, String>>,
}

impl Files {
    fn read(payload: Option<&PathBuf>, attributes: Option<&PathBuf>) -> Result<Self, Error> {
        let attributes = match attributes {
            Some(path) => Some(read_attributes(path)?),
            None => None,
        };
        let payload = payload.map(|path| read(path)).transpose()?.map(Bytes::from);
        Ok(Self { payload, attributes })
    }

    /// The row's message with these parts replaced; its ordering key stays.
    fn put_into(self, detail: &DispatchDetail) -> Result<Vec<u8>, Error> {
        let mut message = decode(detail).ok_or_else(|| Error::Unfit {
            what: format!("the stored message of {} cannot be decoded", detail.row.event_id),
            hint: "discard the row and publish the event again",
        })?;
        if let Some(payload) = self.payload {
            message.data = payload;
        }
        if let Some(attributes) = self.attributes {
            message.attributes = attributes;
        }
        Ok(message.encode_to_vec())
    }
}

fn read_attributes(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    serde_json::from_slice(&read(path)?).map_err(|error| Error::Unfit {
        what: format!("{}: {error}", path.display()),
        hint: "write a JSON object whose values are all strings",
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::File { path: path.display().to_string(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Error::Unfit {
            what: format!("{} has {bytes} bytes", path.display()),
            hint: "a message of Pub/Sub has at most 10,000,000",
        });
    }
    std::fs::read(path).map_err(unreadable)
}

fn decode(detail: &DispatchDetail) -> Option<PubsubMessage> {
    PubsubMessage::decode(detail.message.as_slice()).ok()
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn row_json(row: &DispatchRow) -> Value {
    json!({
        "event_id": row.event_id,
        "commit_lsn": row.position.commit_lsn.to_string(),
        "tx_index": row.position.tx_index,
        "topic": row.topic,
        "ordering_key": row.ordering_key,
        "status": row.status.as_str(),
        "attempts": row.attempts,
        "next_attempt_at": row.next_attempt_at.map(rfc3339),
        "error_code": row.error_code,
        "last_error": row.last_error,
        "message_id": row.message_id,
        "message_bytes": row.message_bytes,
        "parked_at": rfc3339(row.parked_at),
        "updated_at": rfc3339(row.updated_at),
    })
}

fn detail_json(detail: &DispatchDetail) -> Value {
    let mut value = row_json(&detail.row);
    value["message"] = decode(detail).map_or(Value::Null, |message| {
        json!({
            "attributes": message.attributes,
            "ordering_key": message.ordering_key,
            "data": payload_json(&message.data),
        })
    });
    value
}

/// The payload as JSON or text if it is that; otherwise its number of bytes.
fn payload_json(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        Err(_) => json!({ "binary_bytes": data.len() }),
    }
}

const COLUMNS: [&str; 8] =
    ["STATUS", "ATTEMPTS", "PARKED AT", "POSITION", "TOPIC", "KEY", "EVENT ID", "LAST ERROR"];

fn table(rows: &[DispatchRow]) -> String {
    let lines: Vec<[String; 8]> = rows
        .iter()
        .map(|row| {
            [
                row.status.as_str().to_owned(),
                row.attempts.to_string(),
                rfc3339(row.parked_at),
                format!("{}/{}", row.position.commit_lsn, row.position.tx_index),
                short_topic(&row.topic).to_owned(),
                visible(&row.ordering_key),
                visible(&row.event_id),
                visible(&first_error(row)),
            ]
        })
        .collect();
    let mut widths = COLUMNS.map(str::len);
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    put_line(&mut text, &widths, &COLUMNS.map(str::to_owned));
    lines.iter().for_each(|line| put_line(&mut text, &widths, line));
    text
}

fn put_line(text: &mut String, widths: &[usize; 8], cells: &[String; 8]) {
    let start = text.len();
    for (cell, width) in cells.iter().zip(widths) {
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
    }
    text.truncate(start + text[start..].trim_end().len());
    text.push('\n');
}

/// Control characters of a key must not move the cursor of whoever lists it.
fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect()
}

fn first_error(row: &DispatchRow) -> String {
    let line = row.last_error.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    let short: String = line.chars().take(80).collect();
    match row.error_code.as_deref() {
        Some(code) if !short.contains(code) => format!("{code} {short}"),
        Some(_) | None => short,
    }
}

fn short_topic(topic: &str) -> &str {
    topic.rsplit('/').next().unwrap_or(topic)
}

fn detail_text(detail: &DispatchDetail) -> String {
    let row = &detail.row;
    let mut text = String::new();
    let mut put = |name: &str, value: &str| {
        text.push_str(&format!("{name:<14} {value}\n"));
    };
    put("event id", &visible(&row.event_id));
    put("status", row.status.as_str());
    put("topic", &row.topic);
    put("ordering key", &visible(&row.ordering_key));
    put("position", &format!("{}, row {}", row.position.commit_lsn, row.position.tx_index));
    put("attempts", &row.attempts.to_string());
    put("next attempt", &row.next_attempt_at.map_or_else(|| "none".to_owned(), rfc3339));
    put("parked", &rfc3339(row.parked_at));
    put("updated", &rfc3339(row.updated_at));
    put("error code", row.error_code.as_deref().unwrap_or("none"));
    put("message id", row.message_id.as_deref().unwrap_or("none"));
    text.push_str("\nhistory of errors, latest first\n");
    for line in row.last_error.as_deref().unwrap_or("none").lines() {
        text.push_str(&format!("  {}\n", visible(line)));
    }
    text.push_str(&message_text(detail));
    text
}

fn message_text(detail: &DispatchDetail) -> String {
    let Some(message) = decode(detail) else {
        return format!("\nmessage: {} bytes that cannot be decoded\n", detail.message.len());
    };
    let mut text = String::from("\nattributes\n");
    for (name, value) in &message.attributes {
        text.push_str(&format!("  {} = {}\n", visible(name), visible(value)));
    }
    text.push_str("\npayload\n");
    let payload = payload_json(&message.data);
    match payload.as_str() {
        Some(plain) => text.extend(plain.lines().flat_map(|line| [visible(line), "\n".into()])),
        None => text.push_str(&pretty(&payload)),
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use pgoutput_parser::{Lsn, Position};
    use walrelay_postgres::DispatchStatus;

    use super::*;

    fn detail(payload: &[u8]) -> DispatchDetail {
        let message = PubsubMessage {
            data: Bytes::copy_from_slice(payload),
            attributes: [("event_id".to_owned(), "e-1".to_owned())].into(),
            ordering_key: "order\n7".into(),
            ..PubsubMessage::default()
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        let row = DispatchRow {
            event_id: "e-1".into(),
            position: Position { commit_lsn: Lsn::new(0x16_B374_D848), tx_index: 3 },
            topic: "projects/p/topics/orders".into(),
            ordering_key: "order\n7".into(),
            status: DispatchStatus::Dead,
            attempts: 20,
            next_attempt_at: None,
            error_code: Some("INVALID_ARGUMENT".into()),
            last_error: Some("attempt 20: too large\nattempt 19: too large".into()),
            message_id: None,
            message_bytes: 9,
            parked_at: at,
            updated_at: at,
        };
        DispatchDetail { row, message: message.encode_to_vec() }
    }

    #[test]
    fn a_json_payload_is_shown_as_json_and_a_binary_one_as_its_size() {
        assert_eq!(detail_json(&detail(br#"{"a":1}"#))["message"]["data"], json!({ "a": 1 }));
        assert_eq!(detail_json(&detail(b"plain"))["message"]["data"], "plain");
        let binary = detail_json(&detail(&[0xff, 0xfe]));
        assert_eq!(binary["message"]["data"], json!({ "binary_bytes": 2 }));
        assert_eq!(binary["parked_at"], "2023-11-14T22:13:20.250Z");
    }

    #[test]
    fn a_listed_key_cannot_break_its_line() {
        let text = table(&[detail(b"x").row]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"order\n7"), "{text}");
        assert!(text.contains("16/B374D848/3"), "{text}");
        assert!(detail_text(&detail(b"x")).contains("attempt 19: too large"));
    }

    #[test]
    fn an_edit_replaces_what_was_given_and_keeps_the_rest() {
        let files = Files { payload: Some(Bytes::from_static(b"new")), attributes: None };
        let edited = files.put_into(&detail(b"old")).unwrap();
        let edited = PubsubMessage::decode(edited.as_slice()).unwrap();
        assert_eq!(edited.data.as_ref(), b"new");
        assert_eq!(edited.ordering_key, "order\n7");
        assert_eq!(edited.attributes["event_id"], "e-1");
    }
}

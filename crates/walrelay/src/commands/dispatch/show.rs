//! Formats rows of dispatch state as text and as JSON.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use serde_json::{Value, json};
use walrelay_core::{IncompleteMessage, MessagePart};
use walrelay_outbox_store::{DispatchDetail, DispatchRow};
use walrelay_relay::observe::report::rfc3339;

use crate::output::{Harness, columns, fitted, shortened, terminal, visible};

/// Returns the message, without the parts that were too large to be recorded.
pub(super) fn decode(detail: &DispatchDetail) -> Option<PubsubMessage> {
    let bytes = IncompleteMessage::of(&detail.message)
        .map_or(detail.message.as_slice(), |incomplete| incomplete.has);
    PubsubMessage::decode(bytes).ok()
}

/// Returns the parts that were too large to be recorded: name and size in bytes.
fn lacks(detail: &DispatchDetail) -> Vec<(&'static str, usize)> {
    let name = |part| match part {
        MessagePart::Topic => "topic",
        MessagePart::OrderingKey => "ordering_key",
        MessagePart::Attributes => "attributes",
        MessagePart::Payload => "data",
    };
    let incomplete = IncompleteMessage::of(&detail.message);
    let parts = incomplete.map(|incomplete| incomplete.lacks).unwrap_or_default();
    parts.into_iter().map(|(part, bytes)| (name(part), bytes)).collect()
}

pub(super) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

pub(super) fn row_json(row: &DispatchRow) -> Value {
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

pub(super) fn detail_json(detail: &DispatchDetail) -> Value {
    let mut value = row_json(&detail.row);
    value["message"] = decode(detail).map_or(Value::Null, |message| {
        json!({
            "attributes": message.attributes,
            "ordering_key": message.ordering_key,
            "data": payload_json(&message.data),
        })
    });
    let lacks = lacks(detail);
    if !lacks.is_empty() {
        if lacks.iter().any(|(name, _)| *name == "data") {
            value["message"]["data"] = Value::Null;
        }
        let bytes: serde_json::Map<_, _> =
            lacks.into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect();
        value["message"]["lacks_bytes"] = Value::Object(bytes);
    }
    value
}

/// Shows JSON as JSON, other text as a string, and binary data as its size.
fn payload_json(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        Err(_) => json!({ "binary_bytes": data.len() }),
    }
}

/// The columns, each with the most characters that it shows, so that a key of 2,000 bytes does not
/// break the table. `dispatch show` and JSON have the full values. Event ids have the highest
/// limit, because users type them again.
const COLUMNS: [(&str, usize); 8] = [
    ("STATUS", 9),
    ("ATTEMPTS", 8),
    ("PARKED AT", 20),
    ("POSITION", 28),
    ("TOPIC", 32),
    ("KEY", 24),
    ("EVENT ID", 72),
    ("LAST ERROR", 64),
];

/// On a narrow terminal the last error is cut first, then key and topic, and then whole columns are
/// left out. Ids and positions stay whole, because users type them again.
const FITTING: Harness<8> = Harness {
    least: [None, None, None, None, Some(12), Some(8), None, Some(12)],
    left_out: &[1, 2, 5, 4, 7, 3],
};

/// Returns a table with its heading. On a terminal the table is at most as wide as the terminal.
pub(super) fn table(rows: &[DispatchRow]) -> String {
    let (heading, cells) = cells_of(rows);
    let Some(size) = terminal() else { return columns(heading, &cells) };
    let (text, left_out) = fitted((heading, &cells), &FITTING, size.columns);
    match left_out.as_slice() {
        [] => text,
        names => format!("{text}for want of width without {}\n", names.join(", ")),
    }
}

fn cells_of(rows: &[DispatchRow]) -> ([&'static str; 8], Vec<[String; 8]>) {
    let cells = |row: &DispatchRow| {
        let cells = [
            row.status.as_str().to_owned(),
            row.attempts.to_string(),
            to_the_second(&rfc3339(row.parked_at)),
            row.position.to_string(),
            visible(short_topic(&row.topic)),
            visible(&row.ordering_key),
            shown_id(&row.event_id),
            visible(&first_error(row)),
        ];
        let mut cut = COLUMNS.iter();
        cells.map(|cell| cut.next().map_or(cell.clone(), |(_, most)| shortened(&cell, *most)))
    };
    (COLUMNS.map(|(heading, _)| heading), rows.iter().map(cells).collect())
}

/// Shows an empty id as a user types it in a shell.
fn shown_id(id: &str) -> String {
    if id.is_empty() { "\"\"".to_owned() } else { visible(id) }
}

/// Returns the latest error without its time, which would leave too little width for the error.
fn first_error(row: &DispatchRow) -> String {
    let line = row.last_error.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    let line = match line.split_once(": ") {
        Some((attempt, rest)) if attempt.starts_with("attempt ") => rest,
        Some(_) | None => line,
    };
    match row.error_code.as_deref() {
        Some(code) if !line.contains(code) => format!("{code} {line}"),
        Some(_) | None => line.to_owned(),
    }
}

/// Removes the fraction from `2026-01-31T12:00:00.123Z`.
fn to_the_second(moment: &str) -> String {
    moment.split_once('.').map_or_else(|| moment.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

fn short_topic(topic: &str) -> &str {
    topic.rsplit('/').next().unwrap_or(topic)
}

pub(super) fn detail_text(detail: &DispatchDetail) -> String {
    let row = &detail.row;
    let mut text = String::new();
    let mut put = |name: &str, value: &str| {
        text.push_str(&format!("{name:<14} {value}\n"));
    };
    put("event id", &visible(&row.event_id));
    put("status", row.status.as_str());
    put("topic", &visible(&row.topic));
    put("ordering key", &visible(&row.ordering_key));
    put("position", &row.position.to_string());
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
    let lacks = lacks(detail);
    if !lacks.is_empty() {
        text.push_str("\ntoo large, and not recorded: only the row in the outbox has it\n");
        for (name, bytes) in &lacks {
            text.push_str(&format!("  {name}: {bytes} bytes\n"));
        }
    }
    if lacks.iter().any(|(name, _)| *name == "data") {
        return text;
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
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use pgoutput_parser::{Lsn, Position};
    use walrelay_outbox_store::DispatchStatus;

    use super::*;

    pub(in super::super) fn detail(payload: &[u8]) -> DispatchDetail {
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

    /// A row that was recorded without its payload of 140 MB.
    pub(in super::super) fn detail_without_payload() -> DispatchDetail {
        let mut row = detail(b"");
        row.row.error_code = Some("TOO_LARGE".into());
        // Field 1 with a length of 140,000,000 bytes.
        row.message.extend_from_slice(&[0x0A, 0x80, 0xF6, 0xE0, 0x42]);
        row
    }

    #[test]
    fn a_payload_that_was_too_large_is_shown_as_missing_and_never_as_empty() {
        let row = detail_without_payload();
        let json = &detail_json(&row)["message"];
        assert_eq!(json["data"], Value::Null);
        assert_eq!(json["lacks_bytes"], json!({ "data": 140_000_000 }));
        assert_eq!(json["attributes"]["event_id"], "e-1");
        let text = detail_text(&row);
        assert!(
            text.contains("event_id = e-1") && text.contains("data: 140000000 bytes"),
            "{text}"
        );
        assert!(text.contains("only the row in the outbox has it"), "{text}");
        assert!(!text.contains("cannot be decoded") && !text.contains("\npayload\n"), "{text}");
    }

    #[test]
    fn a_listed_key_cannot_break_its_line() {
        let text = table(&[detail(b"x").row]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"order\n7"), "{text}");
        assert!(text.contains("16/B374D848#3"), "{text}");
        assert!(detail_text(&detail(b"x")).contains("attempt 19: too large"));
    }

    #[test]
    fn a_list_fits_a_terminal_of_eighty_columns_with_its_ids_whole() {
        let mut row = detail(b"x").row;
        row.event_id = "6f1c9a9e-0c6e-4a57-9d3e-7d2f4c1b8a90".into();
        row.topic = "projects/p/topics/order.events.of.the.world".into();
        row.last_error = Some("attempt 20: INVALID_ARGUMENT: it is too large".into());
        let (heading, cells) = cells_of(&[row.clone()]);
        for width in [80, 100, 120, 160] {
            let (text, _) = fitted((heading, &cells), &FITTING, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert!(text.contains(&row.event_id), "{text}");
            assert!(text.contains("dead") && text.contains("INVALID_ARG"), "{text}");
        }
    }

    #[test]
    fn a_topic_cannot_break_the_lines_that_show_its_row() {
        let mut row = detail(b"x");
        row.row.topic = "projects/p/topics/a\n\x1b[2Jb".into();
        let text = detail_text(&row);
        assert!(text.contains(r"topics/a\n\u{1b}[2Jb") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_key_of_two_thousand_bytes_does_not_break_the_table() {
        let mut row = detail(b"x").row;
        row.ordering_key = "k".repeat(2_000);
        row.topic = format!("projects/p/topics/{}", "t".repeat(300));
        row.last_error = Some("e".repeat(5_000));
        let text = table(&[row]);
        assert!(text.lines().all(|line| line.chars().count() < 290), "{text}");
        assert!(text.contains('…') && text.contains(" e-1 "), "{text}");
    }
}

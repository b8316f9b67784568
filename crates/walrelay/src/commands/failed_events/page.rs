//! Formats failed events as text.

use super::event::{EventDetail, FailedEvent, MissingPart};
use crate::output::exact_json::readable;
use crate::output::table::{ColumnFit, Table, columns, fitted};
use crate::output::text::{shortened, visible};

/// The most characters of each column, so that a key of 2,000 bytes does not break the table.
/// `show` and JSON have the full values. Event ids have the highest limit, because users type them
/// again.
const MOST: [usize; 8] = [9, 8, 20, 28, 32, 24, 72, 64];

/// On a narrow terminal the last error is cut first, then key and topic, and then whole columns are
/// left out. Ids and positions stay whole, because users type them again.
const FITTING: ColumnFit<8> = ColumnFit {
    least: [None, None, None, None, Some(12), Some(8), None, Some(12)],
    left_out: &[1, 2, 5, 4, 7, 3],
};

/// The column that groups the events of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventGroup {
    /// The topic of a row of dispatch state.
    Topic,
    /// The type of an event of an inbox.
    EventType,
}

impl EventGroup {
    const fn heading(self) -> &'static str {
        match self {
            Self::Topic => "TOPIC",
            Self::EventType => "EVENT TYPE",
        }
    }
}

/// Returns a table with its heading. On a terminal the table is at most as wide as the terminal.
///
/// `width` is that of the terminal, in characters. None if there is no terminal.
#[must_use]
pub(crate) fn table(rows: &[FailedEvent], group: EventGroup, width: Option<usize>) -> String {
    let (heading, cells) = cells_of(rows, group.heading());
    let Some(width) = width else { return columns(heading, &cells) };
    let (text, left_out) = fitted(Table { heading, rows: &cells }, &FITTING, width);
    match left_out.as_slice() {
        [] => text,
        names => format!("{text}for want of width without {}\n", names.join(", ")),
    }
}

fn cells_of(rows: &[FailedEvent], group: &'static str) -> ([&'static str; 8], Vec<[String; 8]>) {
    let heading =
        ["STATUS", "ATTEMPTS", "RECORDED AT", "POSITION", group, "KEY", "EVENT ID", "LAST ERROR"];
    let cells = |row: &FailedEvent| {
        let topic = row.topic.as_deref().map(short_topic);
        let cells = [
            row.status.clone(),
            row.attempts.to_string(),
            to_the_second(&row.recorded_at),
            row.position().map_or_else(|| "-".to_owned(), |position| position.to_string()),
            visible(topic.or(row.event_type.as_deref()).unwrap_or("-")),
            visible(&row.ordering_key),
            shown_id(&row.event_id),
            visible(&first_error(row)),
        ];
        let mut most = MOST.iter();
        cells.map(|cell| most.next().map_or(cell.clone(), |most| shortened(&cell, *most)))
    };
    (heading, rows.iter().map(cells).collect())
}

/// Shows an empty id as a user types it in a shell.
fn shown_id(id: &str) -> String {
    if id.is_empty() { "\"\"".to_owned() } else { visible(id) }
}

/// Returns the latest error without its attempt, which would leave too little width for the error.
fn first_error(row: &FailedEvent) -> String {
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

#[must_use]
pub(crate) fn detail_text(detail: &EventDetail) -> String {
    let row = &detail.event;
    let shown = |value: &Option<String>| value.as_deref().map_or("-".to_owned(), visible);
    let lines = [
        ("event id", visible(&row.event_id)),
        ("status", row.status.clone()),
        ("topic", shown(&row.topic)),
        ("ordering key", visible(&row.ordering_key)),
        ("holds its key", row.holds_its_key.map_or("-", |it| if it { "yes" } else { "no" }).into()),
        ("event type", shown(&row.event_type)),
        ("version", row.version.map_or_else(|| "-".to_owned(), |version| version.to_string())),
        ("position", row.position().map_or_else(|| "-".to_owned(), |it| it.to_string())),
        ("attempts", row.attempts.to_string()),
        ("next attempt", shown(&row.next_attempt_at)),
        ("occurred", shown(&row.occurred_at)),
        ("recorded", row.recorded_at.clone()),
        ("updated", shown(&row.updated_at)),
        ("done", shown(&row.done_at)),
        ("error code", shown(&row.error_code)),
        ("message id", shown(&row.message_id)),
    ];
    let known = lines.iter().filter(|(_, value)| value != "-");
    let mut text: String = known.map(|(name, value)| format!("{name:<14} {value}\n")).collect();
    text.push_str("\nhistory of errors, latest first\n");
    for line in row.last_error.as_deref().unwrap_or("none").lines() {
        text.push_str(&format!("  {}\n", visible(line)));
    }
    text + &message_text(detail)
}

fn message_text(detail: &EventDetail) -> String {
    let Some(message) = &detail.message else {
        return match detail.event.message_bytes {
            0 => "\nno message: only events that wait or are dead keep theirs\n".to_owned(),
            bytes => format!("\nmessage: {bytes} bytes that cannot be decoded\n"),
        };
    };
    let mut text = String::from("\nattributes\n");
    for (name, value) in &message.attributes {
        text.push_str(&format!("  {} = {}\n", visible(name), visible(value)));
    }
    if !message.lacks.is_empty() {
        text.push_str("\ntoo large, and not recorded: only the row in the outbox has it\n");
        for MissingPart { part, bytes } in &message.lacks {
            text.push_str(&format!("  {part}: {bytes} bytes\n"));
        }
    }
    if message.lacks.iter().any(|lack| lack.part == "data") {
        return text;
    }
    text.push_str("\npayload\n");
    let payload = readable(&message.data);
    text.extend(payload.lines().flat_map(|line| [visible(line), "\n".into()]));
    text
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::super::event::EventMessage;
    use super::*;
    use crate::output::exact_json::data_json;

    fn detail(payload: &[u8]) -> EventDetail {
        let event = FailedEvent {
            event_id: "e-1".into(),
            status: "dead".into(),
            attempts: 20,
            commit_lsn: Some("16/B374D848".into()),
            tx_index: Some(3),
            topic: Some("projects/p/topics/orders".into()),
            ordering_key: "order\n7".into(),
            event_type: Some("made".into()),
            version: Some(1),
            holds_its_key: Some(true),
            next_attempt_at: Some("2023-11-14T22:13:20.250Z".into()),
            error_code: Some("INVALID_ARGUMENT".into()),
            last_error: Some("attempt 20: too large\nattempt 19: too large".into()),
            message_id: Some("m-1".into()),
            message_bytes: 9,
            occurred_at: Some("2023-11-14T22:13:20.250Z".into()),
            recorded_at: "2023-11-14T22:13:20.250Z".into(),
            updated_at: Some("2023-11-14T22:13:20.250Z".into()),
            done_at: Some("2023-11-14T22:13:20.250Z".into()),
            needs_edit: false,
        };
        let message = EventMessage {
            attributes: [("event_id".to_owned(), "e-1".to_owned())].into(),
            ordering_key: "order\n7".into(),
            data: data_json(payload),
            lacks: Vec::new(),
        };
        EventDetail { event, message: Some(message) }
    }

    fn plain(rows: &[FailedEvent]) -> String {
        let (heading, cells) = cells_of(rows, "TOPIC");
        columns(heading, &cells)
    }

    #[test]
    fn a_json_payload_is_shown_as_json_and_a_binary_one_as_its_size() {
        let payload = |data: &[u8]| {
            let text = detail_text(&detail(data));
            text.split_once("\npayload\n").map(|(_, payload)| payload.to_owned())
        };
        assert_eq!(payload(br#"{"a":1}"#).as_deref(), Some("{\n  \"a\": 1\n}\n"));
        assert_eq!(payload(b"plain").as_deref(), Some("plain\n"));
        assert_eq!(payload(&[0xff, 0xfe]).as_deref(), Some("{\n  \"binary_bytes\": 2\n}\n"));
    }

    #[test]
    fn a_payload_that_was_too_large_is_shown_as_missing_and_never_as_empty() {
        let mut row = detail(b"");
        let message = row.message.as_mut().expect("a message");
        message.lacks = vec![MissingPart { part: "data", bytes: 140_000_000 }];
        let text = detail_text(&row);
        assert!(
            text.contains("event_id = e-1") && text.contains("data: 140000000 bytes"),
            "{text}"
        );
        assert!(text.contains("only the row in the outbox has it"), "{text}");
        assert!(!text.contains("cannot be decoded") && !text.contains("\npayload\n"), "{text}");
    }

    #[test]
    fn a_listed_key_cannot_break_its_line_and_only_the_newest_attempt_is_shown() {
        let listed = plain(&[detail(b"x").event]);
        assert_eq!(listed.lines().count(), 2, "{listed}");
        assert!(listed.contains(r"order\n7") && listed.contains("16/B374D848#3"), "{listed}");
        assert!(detail_text(&detail(b"x")).contains("attempt 19: too large"));
        let mut event = detail(b"x").event;
        event.last_error = Some("attempt 10: 22000: poison\nattempt 9: 22000: sick".into());
        let newest = plain(&[event]);
        assert!(newest.contains("poison") && !newest.contains("sick"), "{newest}");
    }

    #[test]
    fn a_list_fits_a_terminal_of_eighty_columns_with_its_ids_whole() {
        let mut row = detail(b"x").event;
        row.event_id = "6f1c9a9e-0c6e-4a57-9d3e-7d2f4c1b8a90".into();
        row.topic = Some("projects/p/topics/order.events.of.the.world".into());
        row.last_error = Some("attempt 20: INVALID_ARGUMENT: it is too large".into());
        let (heading, cells) = cells_of(&[row.clone()], "TOPIC");
        for width in [80, 100, 120, 160] {
            let (text, _) = fitted(Table { heading, rows: &cells }, &FITTING, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert!(text.contains(&row.event_id), "{text}");
            assert!(text.contains("dead") && text.contains("INVALID_ARG"), "{text}");
        }
    }

    #[test]
    fn a_topic_cannot_break_the_lines_that_show_its_row() {
        let mut row = detail(b"x");
        row.event.topic = Some("projects/p/topics/a\n\x1b[2Jb".into());
        let text = detail_text(&row);
        assert!(text.contains(r"topics/a\n\u{1b}[2Jb") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_key_of_two_thousand_bytes_does_not_break_the_table() {
        let mut row = detail(b"x").event;
        row.ordering_key = "k".repeat(2_000);
        row.topic = Some(format!("projects/p/topics/{}", "t".repeat(300)));
        row.last_error = Some("e".repeat(5_000));
        let text = plain(&[row]);
        assert!(text.lines().all(|line| line.chars().count() < 290), "{text}");
        assert!(text.contains('…') && text.contains(" e-1 "), "{text}");
    }

    #[test]
    fn the_json_of_both_commands_is_documented() {
        let mut shown = detail(b"plain text");
        let message = shown.message.as_mut().expect("a message");
        message.lacks = vec![MissingPart { part: "data", bytes: 1 }];
        assert_documented("dispatch and inbox list and show", &shown);
    }
}

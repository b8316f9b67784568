//! Compares bytes captured from a real server with the statements that produced them
//! (`tests/it/data`).

use pgoutput_parser::{
    Change, Column, DecodeError, Decoder, Insert, LogicalMessage, Lsn, OldTuple, Relation, Tuple,
};

const TEXT: &[u8] = include_bytes!("data/text.bin");
const BINARY: &[u8] = include_bytes!("data/binary.bin");

#[test]
fn what_the_server_sent_is_what_was_written() {
    let large = format!("'{}'", "large ".repeat(400));
    let expected = [
        "begin",
        "type public.mood",
        "relation public.outbox Default: id* kind payload body amount weather happened",
        "insert outbox #0: '1' 'created' '{\"a\": 1}' '\\x00ff10' '12.50' 'calm' \
         '2026-09-18 10:21:35.123456+00'",
        "insert outbox #1: '2' '' null '\\x' null null null",
        "insert outbox #2: '3' 'grüße, 世界' 'null' null 'NaN' 'stormy' 'infinity'",
        "commit",
        "begin",
        "type public.mood",
        "relation public.outbox Default: id* kind payload body weather happened Version",
        "insert outbox #0: '4' 'altered' null null null null '7'",
        "commit",
        "begin",
        "relation public.document Default: id* title content",
        &format!("insert document #0: '1' 'first' {large}"),
        "commit",
        "begin",
        "update document: '1' 'second' unchanged",
        "commit",
        "begin",
        "update document: '2' 'second' 'small', key was '1' null null",
        "commit",
        "begin",
        "relation public.note Full: text*",
        "insert note #0: 'old'",
        "commit",
        "begin",
        "update note: 'new', row was 'old'",
        "commit",
        "begin",
        "delete document: key was '2' null null",
        "commit",
        "begin",
        "delete note: row was 'new'",
        "commit",
        "begin",
        "type public.mood",
        "relation public.outbox Default: id* kind payload body weather happened Version",
        "relation public.note Full: text*",
        "truncate 2, cascade true, restart identity true",
        "commit",
        "message loose outside=[111, 117, 116, 115, 105, 100, 101]",
        "begin",
        "message bound in transaction=[0, 255]",
    ];
    let told = told(TEXT).unwrap();
    for (index, line) in expected.iter().enumerate() {
        assert_eq!(told.get(index).map(String::as_str), Some(*line), "line {index} of {told:#?}");
    }
    // The server may describe the truncated table again. The rows have this order in any case.
    let rest: Vec<_> =
        told.iter().skip(expected.len()).filter(|line| !is_description(line)).collect();
    assert_eq!(
        rest,
        [
            "insert outbox #0: '5' 'beside a message' null null null null '7'",
            "commit",
            "begin",
            "origin elsewhere AB/CDEF",
            "insert outbox #0: '6' 'from elsewhere' null null null null '7'",
            "commit",
        ]
    );
}

#[test]
fn the_binary_form_is_decoded_too() {
    let told = told(BINARY).unwrap();
    let inserts: Vec<_> = told.iter().filter(|line| line.starts_with("insert outbox")).collect();
    // The columns have these binary forms:
    // - int8 and bytea: their bytes
    // - jsonb: a version byte, then the text
    // - numeric: a header, then digits in base 10,000
    // - enum: its label
    // - timestamptz: microseconds since 2000
    assert_eq!(
        inserts.first().map(|line| line.as_str()),
        Some(
            "insert outbox #0: x0000000000000001 x63726561746564 x017b2261223a20317d x00ff10 \
             x0002000000000002000c1388 x63616c6d x0002febe089c4c00"
        )
    );
    assert_eq!(told.len(), self::told(TEXT).unwrap().len(), "the same changes in either form");
}

#[test]
fn transactions_come_in_commit_order_and_end_where_they_said() {
    let mut decoder = Decoder::new();
    let (mut announced, mut last_end, mut commits) = (None, Lsn::ZERO, 0);
    for data in messages(TEXT) {
        match decoder.decode(data).unwrap() {
            Change::Begin(begin) => announced = Some(begin.final_lsn),
            Change::Insert(insert) => assert_eq!(Some(insert.position.commit_lsn), announced),
            Change::Commit(commit) => {
                assert_eq!(Some(commit.commit_lsn), announced);
                assert!(commit.commit_lsn >= last_end && commit.boundary().lsn() == commit.end_lsn);
                (last_end, commits) = (commit.end_lsn, commits + 1);
            }
            Change::Origin(_)
            | Change::Relation(_)
            | Change::Type(_)
            | Change::Update(_)
            | Change::Delete(_)
            | Change::Truncate(_)
            | Change::Message(_) => {}
        }
    }
    assert_eq!(commits, 12);
}

/// Splits a captured file into messages. Each message follows its length in two bytes.
fn messages(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = file.split_first_chunk()?;
        let (message, rest) = rest.split_at(u16::from_be_bytes(*len).into());
        file = rest;
        Some(message)
    })
}

fn told(file: &[u8]) -> Result<Vec<String>, DecodeError> {
    let mut decoder = Decoder::new();
    messages(file).map(|data| decoder.decode(data).map(|change| tell(&change))).collect()
}

fn tell(change: &Change<'_>) -> String {
    match change {
        Change::Begin(_) => "begin".into(),
        Change::Commit(_) => "commit".into(),
        Change::Origin(origin) => format!("origin {} {}", origin.name, origin.commit_lsn),
        Change::Type(description) => {
            format!("type {}.{}", description.namespace, description.name)
        }
        Change::Relation(relation) => tell_relation(relation),
        Change::Insert(Insert { relation, tuple, position }) => {
            format!("insert {} #{}: {}", relation.name, position.tx_index, values(tuple))
        }
        Change::Update(update) => {
            let old = update.old.map(|old| format!(", {}", tell_old(&old))).unwrap_or_default();
            format!("update {}: {}{old}", update.relation.name, values(&update.new))
        }
        Change::Delete(delete) => {
            format!("delete {}: {}", delete.relation.name, tell_old(&delete.old))
        }
        Change::Truncate(truncate) => format!(
            "truncate {}, cascade {}, restart identity {}",
            truncate.relation_ids().count(),
            truncate.options.is_cascade(),
            truncate.options.is_restart_identity()
        ),
        Change::Message(LogicalMessage { transactional, prefix, content, .. }) => {
            let place = if *transactional { "in transaction" } else { "outside" };
            format!("message {prefix} {place}={content:?}")
        }
    }
}

fn tell_relation(relation: &Relation) -> String {
    let names: Vec<_> = relation
        .columns
        .iter()
        .map(|column| format!("{}{}", column.name, if column.is_key { "*" } else { "" }))
        .collect();
    let Relation { namespace, name, replica_identity, .. } = relation;
    format!("relation {namespace}.{name} {replica_identity:?}: {}", names.join(" "))
}

fn tell_old(old: &OldTuple<'_>) -> String {
    match old {
        OldTuple::Key(tuple) => format!("key was {}", values(tuple)),
        OldTuple::Full(tuple) => format!("row was {}", values(tuple)),
    }
}

fn values(tuple: &Tuple<'_>) -> String {
    let tell_value = |column| match column {
        Column::Null => "null".to_owned(),
        Column::UnchangedToast => "unchanged".to_owned(),
        Column::TooLarge { bytes } => format!("{bytes} bytes"),
        Column::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
        Column::Binary(bytes) => {
            bytes.iter().fold("x".to_owned(), |hex, byte| format!("{hex}{byte:02x}"))
        }
    };
    tuple.columns().map(tell_value).collect::<Vec<_>>().join(" ")
}

fn is_description(line: &str) -> bool {
    line.starts_with("relation ") || line.starts_with("type ")
}

//! Properties over random input: encoded messages decode again, truncated ones are refused, nothing
//! panics.

use pgoutput_parser::{
    Begin, Column, Commit, Decoder, Keepalive, LogicalMessage, Lsn, Origin, PgTimestamp,
    RelationColumn, ReplicaIdentity, StandbyStatusUpdate, TruncateOptions, Type, XLogData, encode,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{decoder, frame};

/// A value of any kind, owned because columns borrow.
type Value = (u8, Vec<u8>);

fn column((kind, bytes): &Value) -> Column<'_> {
    match kind % 4 {
        0 => Column::Null,
        1 => Column::UnchangedToast,
        2 => Column::Text(bytes),
        _ => Column::Binary(bytes),
    }
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,20}"
}

fn relation_column() -> impl Strategy<Value = RelationColumn> {
    (name(), any::<u32>(), any::<i32>(), any::<bool>()).prop_map(
        |(name, type_oid, type_modifier, is_key)| RelationColumn {
            name,
            type_oid,
            type_modifier,
            is_key,
        },
    )
}

fn table() -> impl Strategy<Value = (Vec<RelationColumn>, Vec<Vec<Value>>)> {
    vec(relation_column(), 0..12).prop_flat_map(|columns| {
        let row = vec((any::<u8>(), vec(any::<u8>(), 0..40)), columns.len());
        (Just(columns), vec(row, 1..8))
    })
}

/// A transaction with every kind of message about one table.
fn transaction(
    lsn: u32,
    prefix: &str,
    table: &str,
    columns: &[RelationColumn],
    rows: &[Vec<Value>],
) -> Vec<Vec<u8>> {
    let (commit_lsn, end_lsn) = (Lsn::new(lsn.into()), Lsn::new(u64::from(lsn) + 48));
    let commit_timestamp = PgTimestamp::from_micros(i64::from(lsn) - 1_000);
    let (id, content) = (lsn ^ 0xA5A5, table.as_bytes());
    let message = LogicalMessage { transactional: true, lsn: end_lsn, prefix, content };
    let mut stream = vec![
        encode::begin(&Begin { final_lsn: commit_lsn, commit_timestamp, xid: lsn }),
        encode::origin(&Origin { commit_lsn: end_lsn, name: prefix }),
        encode::type_description(&Type { id: lsn, namespace: "public", name: table }),
        encode::relation(id, "public", table, ReplicaIdentity::Full, columns),
        encode::message(&message),
    ];
    for row in rows {
        let values: Vec<_> = row.iter().map(column).collect();
        stream.push(encode::insert(id, &values));
        stream.push(encode::update(id, None, &values));
        stream.push(encode::update(id, Some(encode::OldColumns::Key(&values)), &values));
        stream.push(encode::update(id, Some(encode::OldColumns::Full(&values)), &values));
        stream.push(encode::delete(id, encode::OldColumns::Key(&values)));
    }
    stream.push(encode::truncate(TruncateOptions::CASCADE, &[id, id]));
    stream.push(encode::commit(&Commit { commit_lsn, end_lsn, commit_timestamp }));
    stream
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..80)) {
        frame::check(&bytes);
        for tag in [b'w', b'k', b'r'] {
            frame::check(&[&[tag], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn any_bytes_are_messages_or_an_error(bytes in vec(any::<u8>(), 0..200), tag in 0_usize..10) {
        decoder::check(&bytes);
        let message = [&[b"BCORYIUDTM"[tag]], bytes.as_slice()].concat();
        let len = u16::try_from(message.len()).unwrap().to_be_bytes();
        decoder::check(&[len.as_slice(), &message].concat());
    }

    #[test]
    fn frames_come_back_as_they_were_encoded(
        lsns in any::<[u64; 3]>(), micros: i64, reply_requested: bool, data in vec(any::<u8>(), 0..50)
    ) {
        let [write, flush, apply] = lsns.map(Lsn::new);
        let sent_at = PgTimestamp::from_micros(micros);
        let update = StandbyStatusUpdate { write, flush, apply, sent_at, reply_requested };
        prop_assert_eq!(StandbyStatusUpdate::parse(&update.encode()), Ok(update));
        let keepalive = Keepalive { wal_end: write, sent_at, reply_requested };
        frame::check(&encode::keepalive(&keepalive));
        let xlog_data = XLogData { wal_start: write, wal_end: flush, sent_at, data: &data };
        let bytes = encode::xlog_data(&xlog_data);
        frame::check(&bytes);
        for len in 0..25 {
            prop_assert!(pgoutput_parser::Frame::parse(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn transactions_come_back_as_they_were_encoded_and_no_part_of_a_message_is_one(
        lsn in 1..u32::MAX, names in (name(), name()), (columns, rows) in table()
    ) {
        let stream = transaction(lsn, &names.0, &names.1, &columns, &rows);
        let framed: Vec<u8> = stream
            .iter()
            .flat_map(|data| [&u16::try_from(data.len()).unwrap().to_be_bytes(), data.as_slice()].concat())
            .collect();
        decoder::check(&framed);

        let mut decoder = Decoder::new();
        for data in &stream {
            for len in 0..data.len() {
                prop_assert!(decoder.decode(&data[..len]).is_err(), "{} of {:?}", len, data);
            }
            prop_assert!(decoder.decode(data).is_ok(), "{:?}", data);
        }
    }
}

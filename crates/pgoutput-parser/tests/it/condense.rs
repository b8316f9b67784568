//! Oversized frames: the values that are dropped, the values that stay, and the frames that are
//! refused.

use pgoutput_parser::{
    Begin, Change, Column, CondenseLimits, Condenser, Decoder, Frame, Lsn, PgTimestamp,
    RelationColumn, ReplicaIdentity, XLogData, encode,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::condenser;

const RELATION: u32 = 16_389;

/// XLogData around an Insert, up to its first column.
const INSERT: &[&[u8]] = &[
    b"w",
    b"\x00\x00\x00\x00\x00\x00\x00\x09", // wal_start
    b"\x00\x00\x00\x00\x00\x00\x00\x09", // wal_end
    b"\x00\x00\x00\x00\x00\x00\x00\x05", // sent_at
    b"I",
    b"\x00\x00\x40\x05", // relation id 16389
    b"N",                // new tuple
    b"\x00\x03",         // columns
];

fn limits(value_bytes_max: usize, values_bytes_max: usize) -> CondenseLimits {
    CondenseLimits { value_bytes_max, values_bytes_max }
}

fn condensed(frame: &[u8], limits: CondenseLimits, part_bytes: usize) -> Result<Vec<u8>, String> {
    let mut condenser = Condenser::new(frame.len(), limits);
    for part in frame.chunks(part_bytes) {
        condenser.push(part).map_err(|error| error.to_string())?;
        assert!(condenser.memory() <= 2 * limits.values_bytes_max + 8_192);
    }
    condenser.finish().map_err(|error| error.to_string())
}

fn frame(data: &[u8]) -> Vec<u8> {
    let sent_at = PgTimestamp::from_micros(5);
    encode::xlog_data(&XLogData { wal_start: Lsn::new(9), wal_end: Lsn::new(9), sent_at, data })
}

/// Creates a decoder in a transaction, with a described table of this many columns.
fn decoder(columns: usize) -> Decoder {
    let column = |name: usize| RelationColumn {
        is_key: false,
        name: name.to_string(),
        type_oid: 25,
        type_modifier: -1,
    };
    let columns: Vec<_> = (0..columns).map(column).collect();
    let commit_timestamp = PgTimestamp::from_micros(0);
    let mut decoder = Decoder::new();
    let begin = encode::begin(&Begin { final_lsn: Lsn::new(9), commit_timestamp, xid: 1 });
    decoder.decode(&begin).unwrap();
    let relation = encode::relation(RELATION, "public", "o", ReplicaIdentity::Full, &columns);
    decoder.decode(&relation).unwrap();
    decoder
}

#[test]
fn a_value_that_is_too_large_is_left_out_with_its_length_and_its_neighbours_stay() {
    let columns: [&[u8]; 6] =
        [b"t\x00\x00\x00\x02", b"42", b"t\x00\x00\x00\x05", b"large", b"u", b""];
    let bytes = [INSERT.concat(), columns.concat()].concat();
    let kept: [&[u8]; 4] = [b"t\x00\x00\x00\x02", b"42", b"x\x00\x00\x00\x05", b"u"];
    let mut expected = [INSERT.concat(), kept.concat()].concat();
    expected[25] = b'i';
    for part in 1..bytes.len() {
        assert_eq!(condensed(&bytes, limits(4, 100), part), Ok(expected.clone()), "{part}");
        assert_eq!(condensed(&bytes, limits(5, 7), part), Ok(bytes.clone()), "{part}");
    }
    // Each value is small enough, but together they exceed the limit.
    assert_eq!(condensed(&bytes, limits(5, 6), 3), Ok(expected.clone()));

    let Ok(Frame::XLogData(frame)) = Frame::parse(&expected) else { panic!("no XLogData") };
    let mut decoder = decoder(3);
    let Ok(Change::Insert(insert)) = decoder.decode(frame.data) else { panic!("no Insert") };
    assert!(insert.tuple.is_condensed());
    let values: Vec<_> = insert.tuple.columns().collect();
    let large = Column::TooLarge { bytes: 5 };
    assert_eq!(values, [Column::Text(b"42"), large, Column::UnchangedToast]);
    assert_eq!(format!("{large:?}"), "TooLarge(5 bytes)");
}

#[test]
fn what_the_server_sends_never_lacks_a_value() {
    let insert = encode::insert(RELATION, &[Column::TooLarge { bytes: 5 }]);
    assert_eq!(insert[0], b'i');
    assert!(decoder(1).decode(&insert).is_ok());
    let mut whole = insert;
    whole[0] = b'I';
    let error = decoder(1).decode(&whole).unwrap_err().to_string();
    assert_eq!(
        error,
        "Insert message, byte 8: expected a column of kind 'n', 'u', 't' or 'b', found 0x78 ('x')"
    );
    let raw = condensed(&frame(&whole), limits(100, 100), 7).unwrap_err();
    assert!(raw.contains("found 0x78 ('x')"), "{raw}");
}

#[test]
fn a_large_frame_that_is_no_row_is_refused() {
    let of = |bytes: &[u8]| condensed(bytes, limits(100, 100), 5).unwrap_err();
    let insert = INSERT.concat();
    let message = frame(&[b"M".as_slice(), &[0; 80]].concat());
    assert!(of(&message).contains("an Insert, Update or Delete"), "{}", of(&message));
    assert!(of(&[b'k'; 40]).contains("XLogData"));
    assert!(of(&insert).contains("whole tuples"));
    assert!(of(&insert[..20]).contains("whole tuples"));
    // A length beyond the frame is refused.
    let long = [insert.as_slice(), b"t\xFF\xFF\xFF\xFF", b"abc"].concat();
    assert!(of(&long).contains("column value (4294967295 bytes), found 3 bytes"), "{}", of(&long));
    // A message with endless tuples is refused.
    let tuples = [&insert[..30], &b"N\x00\x00".repeat(3)].concat();
    assert!(of(&tuples).contains("at most 2 tuples"), "{}", of(&tuples));
}

proptest! {
    #[test]
    fn a_condensed_row_has_each_value_or_its_length(
        values in vec(vec(any::<u8>(), 0..60), 0..8), value_max in 0_usize..60, values_max in 0_usize..200,
        part in 1_usize..50
    ) {
        let row: Vec<_> = values.iter().map(|value| Column::Text(value)).collect();
        let old = encode::OldColumns::Full(&row);
        let messages = [
            encode::insert(RELATION, &row),
            encode::update(RELATION, Some(old), &row),
            encode::delete(RELATION, old),
        ];
        for message in messages {
            let row_frame = condensed(&frame(&message), limits(value_max, values_max), part).unwrap();
            let Ok(Frame::XLogData(frame)) = Frame::parse(&row_frame) else { panic!("no XLogData") };
            let mut decoder = decoder(row.len());
            let tuple = match decoder.decode(frame.data).unwrap() {
                Change::Insert(insert) => insert.tuple,
                Change::Update(update) => update.new,
                Change::Delete(delete) => match delete.old {
                    pgoutput_parser::OldTuple::Key(tuple)
                    | pgoutput_parser::OldTuple::Full(tuple) => tuple,
                },
                other @ (Change::Begin(_)
                | Change::Commit(_)
                | Change::Origin(_)
                | Change::Relation(_)
                | Change::Type(_)
                | Change::Truncate(_)
                | Change::Message(_)) => panic!("{other:?}"),
            };
            for (found, value) in tuple.columns().zip(&values) {
                match found {
                    Column::TooLarge { bytes } => prop_assert_eq!(bytes, value.len()),
                    kept @ (Column::Null
                    | Column::UnchangedToast
                    | Column::Text(_)
                    | Column::Binary(_)) => {
                        prop_assert_eq!(kept, Column::Text(value));
                        prop_assert!(value.len() <= value_max);
                    }
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_condensed_or_refused(
        bytes in vec(any::<u8>(), 0..200), limits in any::<[u8; 3]>(), tag in 0_usize..4
    ) {
        condenser::check(&bytes);
        let header = [&[b'w'][..], &[0; 24], &[b"IUDC"[tag]], &[0, 0, 64, 5, b'N', 0, 4]].concat();
        condenser::check(&[limits.as_slice(), &header, &bytes].concat());
    }
}

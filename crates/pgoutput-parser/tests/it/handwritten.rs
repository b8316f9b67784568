//! Every message and every way it can be malformed, in bytes written by hand from the manual.
//!
//! These tests do not use the encoder, so that a mistake in both directions cannot hide.

use pgoutput_parser::{
    Boundary, Change, Column, DecodeError, Decoder, Frame, Insert, Keepalive, Lsn, MessageKind,
    OldTuple, PgTimestamp, ReplicaIdentity, StandbyStatusUpdate, TruncateOptions, XLogData, limits,
};

const KEEPALIVE: &[&[u8]] = &[
    b"k",
    b"\x00\x00\x00\x16\xB3\x74\xD8\x48", // wal_end 16/B374D848
    b"\x00\x00\x00\x00\x00\x00\x00\x05", // sent_at
    b"\x01",                             // reply_requested
];

const BEGIN: &[&[u8]] = &[
    b"B",
    b"\x00\x00\x00\x00\x00\x00\x01\x00", // final_lsn 0/100
    b"\x00\x00\x00\x00\x00\x00\x00\x05", // commit_timestamp
    b"\x00\x00\x02\xDC",                 // xid 732
];

const COMMIT: &[&[u8]] = &[
    b"C",
    b"\x00",                             // flags
    b"\x00\x00\x00\x00\x00\x00\x01\x00", // commit_lsn 0/100
    b"\x00\x00\x00\x00\x00\x00\x01\x30", // end_lsn 0/130
    b"\x00\x00\x00\x00\x00\x00\x00\x05", // commit_timestamp
];

const RELATION: &[&[u8]] = &[
    b"R",
    b"\x00\x00\x40\x05", // id 16389
    b"public\0",         // namespace
    b"outbox\0",         // name
    b"d",                // replica_identity
    b"\x00\x02",         // columns
    b"\x01",             // flags: key
    b"id\0",             // name
    b"\x00\x00\x00\x14", // type_oid int8
    b"\xFF\xFF\xFF\xFF", // type_modifier -1
    b"\x00",             // flags
    b"kind\0",           // name
    b"\x00\x00\x04\x13", // type_oid varchar
    b"\x00\x00\x00\x2C", // type_modifier 44
];

const INSERT: &[&[u8]] = &[
    b"I",
    b"\x00\x00\x40\x05", // relation id 16389
    b"N",                // new tuple
    b"\x00\x02",         // columns
    b"t",                // text
    b"\x00\x00\x00\x02", // length
    b"42",               // value
    b"n",                // null
];

const KEY_TUPLE: &[&[u8]] = &[b"K", b"\x00\x02", b"t", b"\x00\x00\x00\x01", b"7", b"n"];
const FULL_TUPLE: &[&[u8]] = &[b"O", b"\x00\x02", b"t", b"\x00\x00\x00\x01", b"7", b"u"];
const NEW_TUPLE: &[&[u8]] = &[b"N", b"\x00\x02", b"b", b"\x00\x00\x00\x02", b"\x00\xFF", b"u"];

const TRUNCATE: &[&[u8]] = &[
    b"T",
    b"\x00\x00\x00\x01", // relations
    b"\x02",             // options: restart identity
    b"\x00\x00\x40\x05", // relation id
];

const MESSAGE: &[&[u8]] = &[
    b"M",
    b"\x00",                             // flags: not transactional
    b"\x00\x00\x00\x00\x00\x00\x00\x09", // lsn 0/9
    b"app\0",                            // prefix
    b"\x00\x00\x00\x02",                 // content length
    b"\x00\xFF",                         // content
];

const TYPE: &[&[u8]] = &[b"Y", b"\x00\x00\x40\x01", b"public\0", b"mood\0"];
const ORIGIN: &[&[u8]] = &[b"O", b"\x00\x00\x00\x00\x00\x00\x00\x09", b"elsewhere\0"];

fn update(old: &[&[u8]]) -> Vec<u8> {
    [b"U\x00\x00\x40\x05".as_slice(), &old.concat(), &NEW_TUPLE.concat()].concat()
}

fn delete(old: &[&[u8]]) -> Vec<u8> {
    [b"D\x00\x00\x40\x05".as_slice(), &old.concat()].concat()
}

fn after(messages: &[&[&[u8]]]) -> Decoder {
    let mut decoder = Decoder::new();
    for message in messages {
        let accepted = decoder.decode(&message.concat()).map(|_| ());
        assert_eq!(accepted, Ok(()), "while preparing the decoder");
    }
    decoder
}

fn in_transaction() -> Decoder {
    after(&[BEGIN, RELATION])
}

fn refusal(mut decoder: Decoder, data: &[u8]) -> String {
    match decoder.decode(data) {
        Ok(change) => format!("accepted: {change:?}"),
        Err(error) => error.to_string(),
    }
}

fn inserted<'a>(decoder: &'a mut Decoder, data: &'a [u8]) -> Result<Insert<'a>, String> {
    match decoder.decode(data) {
        Ok(Change::Insert(insert)) => Ok(insert),
        other => Err(format!("{other:?}")),
    }
}

/// The bytes of `parts` with the part at `index` replaced.
fn with(parts: &[&[u8]], index: usize, replacement: &[u8]) -> Vec<u8> {
    let mut parts = parts.to_vec();
    parts[index] = replacement;
    parts.concat()
}

#[test]
fn a_keepalive_is_read_field_by_field() {
    let keepalive = Keepalive {
        wal_end: Lsn::new(0x16_B374_D848),
        sent_at: PgTimestamp::from_micros(5),
        reply_requested: true,
    };
    assert_eq!(Frame::parse(&KEEPALIVE.concat()), Ok(Frame::Keepalive(keepalive)));
}

#[test]
fn an_xlogdata_frame_is_read_field_by_field() {
    let bytes = [
        b"w".as_slice(),
        b"\x00\x00\x00\x00\x00\x00\x00\x01", // wal_start
        b"\x00\x00\x00\x00\x00\x00\x00\x02", // wal_end
        b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFD", // sent_at, before 2000
        b"data",
    ];
    let frame = XLogData {
        wal_start: Lsn::new(1),
        wal_end: Lsn::new(2),
        sent_at: PgTimestamp::from_micros(-3),
        data: b"data",
    };
    assert_eq!(Frame::parse(&bytes.concat()), Ok(Frame::XLogData(frame)));
    assert!(!format!("{frame:?}").contains("data\""), "values must not be printed: {frame:?}");
}

#[test]
fn a_status_update_is_written_field_by_field() {
    let update = StandbyStatusUpdate {
        write: Lsn::new(1),
        flush: Lsn::new(2),
        apply: Lsn::new(3),
        sent_at: PgTimestamp::from_micros(-1),
        reply_requested: true,
    };
    let bytes = [
        b"r".as_slice(),
        b"\x00\x00\x00\x00\x00\x00\x00\x01", // write
        b"\x00\x00\x00\x00\x00\x00\x00\x02", // flush
        b"\x00\x00\x00\x00\x00\x00\x00\x03", // apply
        b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", // sent_at
        b"\x01",                             // reply_requested
    ];
    assert_eq!(update.encode().as_slice(), bytes.concat());
    assert_eq!(StandbyStatusUpdate::parse(&bytes.concat()), Ok(update));
}

#[test]
fn malformed_frames_say_where_and_what() {
    let refused = |bytes: &[u8]| Frame::parse(bytes).unwrap_err().to_string();
    let tags = "expected 'w' (XLogData) or 'k' (Keepalive)";
    assert_eq!(refused(b""), format!("replication frame, byte 0: {tags}, found the end"));
    assert_eq!(refused(b"z"), format!("replication frame, byte 0: {tags}, found 0x7A ('z')"));
    assert_eq!(
        refused(&[KEEPALIVE.concat(), b"!!".to_vec()].concat()),
        "Keepalive frame, byte 18: expected the end, found 2 bytes"
    );
    assert_eq!(
        refused(&with(KEEPALIVE, 3, b"\x02")),
        "Keepalive frame, byte 17: expected 0 or 1, found 0x02"
    );
    assert_eq!(
        refused(b"w\0\0\0"),
        "XLogData frame, byte 1: expected wal_start (8 bytes), found 3 bytes"
    );
    let not_ours = StandbyStatusUpdate::parse(b"h").unwrap_err().to_string();
    assert_eq!(
        not_ours,
        "StandbyStatusUpdate frame, byte 0: expected 'r' (StandbyStatusUpdate), found 0x68 ('h')"
    );
}

#[test]
fn a_transaction_is_read_field_by_field() {
    let mut decoder = Decoder::new();
    let (begin, relation, insert, commit) =
        (BEGIN.concat(), RELATION.concat(), INSERT.concat(), COMMIT.concat());

    let Ok(Change::Begin(begin)) = decoder.decode(&begin) else { panic!("no Begin") };
    assert_eq!((begin.final_lsn, begin.xid), (Lsn::new(0x100), 732));
    assert_eq!(begin.commit_timestamp, PgTimestamp::from_micros(5));

    let Ok(Change::Relation(relation)) = decoder.decode(&relation) else { panic!("no Relation") };
    assert_eq!((relation.namespace.as_str(), relation.name.as_str()), ("public", "outbox"));
    assert_eq!((relation.id, relation.replica_identity), (16_389, ReplicaIdentity::Default));
    let columns: Vec<_> = relation
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column.type_oid, column.type_modifier, column.is_key))
        .collect();
    assert_eq!(columns, [("id", 20, -1, true), ("kind", 1043, 44, false)]);

    let insert = inserted(&mut decoder, &insert).unwrap();
    assert_eq!(insert.relation.name, "outbox");
    assert_eq!(insert.tuple.columns().collect::<Vec<_>>(), [Column::Text(b"42"), Column::Null]);
    assert_eq!((insert.tuple.len(), insert.tuple.is_empty()), (2, false));
    assert_eq!(insert.tuple.columns().len(), 2);
    assert_eq!(insert.position.to_string(), "0/100#0");

    let Ok(Change::Commit(commit)) = decoder.decode(&commit) else { panic!("no Commit") };
    assert_eq!((commit.commit_lsn, commit.end_lsn), (Lsn::new(0x100), Lsn::new(0x130)));
    assert_eq!(commit.boundary().lsn(), Lsn::new(0x130));
}

#[test]
fn updates_and_deletes_carry_old_and_new_values() {
    let mut decoder = in_transaction();
    let key = [Column::Text(b"7"), Column::Null];
    let full = [Column::Text(b"7"), Column::UnchangedToast];
    for (old, kind) in [(&[][..], "none"), (KEY_TUPLE, "key"), (FULL_TUPLE, "full")] {
        let bytes = update(old);
        let Ok(Change::Update(update)) = decoder.decode(&bytes) else { panic!("no Update") };
        let new: Vec<_> = update.new.columns().collect();
        assert_eq!(new, [Column::Binary(b"\x00\xFF"), Column::UnchangedToast]);
        match (update.old, kind) {
            (None, "none") => {}
            (Some(OldTuple::Key(values)), "key") => assert!(values.columns().eq(key)),
            (Some(OldTuple::Full(values)), "full") => assert!(values.columns().eq(full)),
            other => panic!("{other:?}"),
        }
    }
    let bytes = delete(FULL_TUPLE);
    let Ok(Change::Delete(delete)) = decoder.decode(&bytes) else { panic!("no Delete") };
    assert!(matches!(delete.old, OldTuple::Full(old) if old.columns().eq(full)));
}

#[test]
fn truncate_type_origin_and_message_are_read_field_by_field() {
    let mut decoder = in_transaction();
    let (truncate, type_, origin, message) =
        (TRUNCATE.concat(), TYPE.concat(), ORIGIN.concat(), MESSAGE.concat());

    let Ok(Change::Truncate(truncate)) = decoder.decode(&truncate) else { panic!("no Truncate") };
    assert_eq!(truncate.relation_ids().collect::<Vec<_>>(), [16_389]);
    assert_eq!(truncate.options, TruncateOptions::RESTART_IDENTITY);
    assert!(truncate.options.is_restart_identity() && !truncate.options.is_cascade());
    let cascade = TruncateOptions::CASCADE;
    assert!(cascade.is_cascade() && !cascade.is_restart_identity());

    let Ok(Change::Type(type_)) = decoder.decode(&type_) else { panic!("no Type") };
    assert_eq!((type_.id, type_.namespace, type_.name), (16_385, "public", "mood"));

    let Ok(Change::Origin(origin)) = decoder.decode(&origin) else { panic!("no Origin") };
    assert_eq!((origin.commit_lsn, origin.name), (Lsn::new(9), "elsewhere"));

    let Ok(Change::Message(message)) = decoder.decode(&message) else { panic!("no Message") };
    assert_eq!((message.transactional, message.lsn), (false, Lsn::new(9)));
    assert_eq!((message.prefix, message.content), ("app", b"\x00\xFF".as_slice()));
}

#[test]
fn an_empty_schema_name_is_pg_catalog() {
    let mut decoder = Decoder::new();
    let (relation, type_) = (with(RELATION, 2, b"\0"), with(TYPE, 2, b"\0"));
    let Ok(Change::Relation(relation)) = decoder.decode(&relation) else { panic!("no Relation") };
    assert_eq!(relation.namespace, "pg_catalog");
    let Ok(Change::Type(type_)) = decoder.decode(&type_) else { panic!("no Type") };
    assert_eq!(type_.namespace, "pg_catalog");
}

#[test]
fn the_index_in_a_transaction_counts_inserts_only_and_starts_again() {
    let insert = INSERT.concat();
    let position = |decoder: &mut Decoder| {
        inserted(decoder, &insert).map(|insert| insert.position.to_string())
    };
    let mut decoder = in_transaction();
    assert_eq!(position(&mut decoder).as_deref(), Ok("0/100#0"));
    for other in [update(KEY_TUPLE), delete(KEY_TUPLE), TRUNCATE.concat(), MESSAGE.concat()] {
        assert!(decoder.decode(&other).is_ok());
    }
    assert!(decoder.decode(&RELATION.concat()).is_ok());
    assert_eq!(position(&mut decoder).as_deref(), Ok("0/100#1"));
    assert!(decoder.decode(&COMMIT.concat()).is_ok());
    assert!(decoder.decode(&with(BEGIN, 1, b"\0\0\0\0\0\0\x02\0")).is_ok());
    assert_eq!(position(&mut decoder).as_deref(), Ok("0/200#0"));
}

#[test]
fn a_keepalive_is_a_boundary_only_outside_a_transaction() {
    let Ok(Frame::Keepalive(keepalive)) = Frame::parse(&KEEPALIVE.concat()) else { panic!() };
    let boundary = |decoder: &Decoder| decoder.boundary(&keepalive).map(Boundary::lsn);
    assert_eq!(boundary(&Decoder::new()), Some(Lsn::new(0x16_B374_D848)));
    assert_eq!(boundary(&in_transaction()), None);
    assert_eq!(boundary(&after(&[BEGIN, COMMIT])), Some(Lsn::new(0x16_B374_D848)));
}

#[test]
fn a_table_described_anew_has_its_new_columns_and_another_generation() {
    let mut decoder = in_transaction();
    let insert = INSERT.concat();
    let first = inserted(&mut decoder, &insert).unwrap().relation.generation;
    assert_eq!(inserted(&mut decoder, &insert).unwrap().relation.generation, first);
    let one_column =
        [RELATION[..5].concat(), b"\x00\x01".to_vec(), RELATION[6..10].concat()].concat();
    let Ok(Change::Relation(relation)) = decoder.decode(&one_column) else { panic!("no Relation") };
    assert_ne!(relation.generation, first);
    assert_eq!(
        refusal(decoder, &insert),
        "Insert message, byte 6: expected 1 columns as in relation 16389, found 2"
    );
    let mut reconnected = in_transaction();
    let again = inserted(&mut reconnected, &insert).unwrap().relation.generation;
    assert_ne!(again, first, "a layout kept over a reconnect would be used for another table");
}

#[test]
fn rows_of_several_tables_find_their_own() {
    let mut decoder = in_transaction();
    for id in [9_u32, 99_999, 5] {
        let relation = with(RELATION, 1, &id.to_be_bytes());
        assert!(decoder.decode(&relation).is_ok());
    }
    for id in [5_u32, 99_999, 9, 9, 16_389, 5] {
        let insert = with(INSERT, 1, &id.to_be_bytes());
        assert_eq!(inserted(&mut decoder, &insert).unwrap().relation.id, id);
    }
}

#[test]
fn wanted_columns_are_picked_in_one_pass() {
    let mut decoder = in_transaction();
    let insert = INSERT.concat();
    let tuple = inserted(&mut decoder, &insert).unwrap().tuple;
    let id = Some(Column::Text(b"42".as_slice()));
    assert_eq!(tuple.pick(&[1, 0]), [Some(Column::Null), id]);
    assert_eq!(tuple.pick(&[0]), [id, None], "only the first column is wanted");
    assert_eq!(tuple.pick(&[usize::MAX, 0]), [Some(Column::Null)], "the first is skipped");
}

#[test]
fn values_do_not_reach_debug_output() {
    let mut decoder = in_transaction();
    let insert = with(INSERT, 6, b"#!");
    let printed = format!("{:?}", inserted(&mut decoder, &insert).unwrap());
    assert!(printed.contains("Text(2 bytes)") && !printed.contains("#!"), "{printed}");
}

#[test]
fn messages_in_the_wrong_place_are_refused() {
    let outside = "byte 0: expected a Begin first, found no open transaction";
    let transactional = with(MESSAGE, 1, b"\x01");
    for (message, kind) in [
        (INSERT.concat(), "Insert message"),
        (update(&[]), "Update message"),
        (delete(KEY_TUPLE), "Delete message"),
        (TRUNCATE.concat(), "Truncate message"),
        (ORIGIN.concat(), "Origin message"),
        (COMMIT.concat(), "Commit message"),
        (transactional, "logical decoding Message"),
    ] {
        assert_eq!(refusal(after(&[RELATION]), &message), format!("{kind}, {outside}"));
        assert_eq!(
            refusal(after(&[RELATION, BEGIN, COMMIT]), &message),
            format!("{kind}, {outside}")
        );
    }
    assert!(after(&[]).decode(&MESSAGE.concat()).is_ok(), "it needs no transaction");
    assert_eq!(
        refusal(in_transaction(), &BEGIN.concat()),
        "Begin message, byte 0: expected the open transaction's Commit before another Begin, \
         found a second Begin"
    );
}

#[test]
fn commits_that_do_not_fit_their_begin_are_refused() {
    assert_eq!(
        refusal(in_transaction(), &with(COMMIT, 2, b"\0\0\0\0\0\0\x01\x01")),
        "Commit message, byte 2: expected commit_lsn 0/100 as announced by Begin, found 0/101"
    );
    assert_eq!(
        refusal(in_transaction(), &with(COMMIT, 3, b"\0\0\0\0\0\0\x01\x00")),
        "Commit message, byte 10: expected end_lsn above 0/100, found 0/100"
    );
    assert_eq!(
        refusal(in_transaction(), &with(COMMIT, 1, b"\x01")),
        "Commit message, byte 1: expected no unknown flag, found 0x01"
    );
    assert_eq!(
        refusal(after(&[BEGIN, COMMIT]), &with(BEGIN, 1, b"\0\0\0\0\0\0\x01\x2F")),
        "Begin message, byte 1: expected final_lsn not below 0/130, found 0/12F"
    );
    // The next commit record may start exactly at the end of the last one.
    let adjacent = with(BEGIN, 1, b"\0\0\0\0\0\0\x01\x30");
    assert!(after(&[BEGIN, COMMIT]).decode(&adjacent).is_ok());
}

#[test]
fn unknown_tags_are_named() {
    let expected = "pgoutput message, byte 0: expected the tag of a message of proto_version 1";
    let refused = |tag: u8| refusal(in_transaction(), &[tag, 0, 0]);
    assert_eq!(refused(b'?'), format!("{expected}, found 0x3F ('?')"));
    assert_eq!(refused(0), format!("{expected}, found 0x00"));
    for (tag, name) in [
        (b'S', "Stream Start"),
        (b'E', "Stream Stop"),
        (b'c', "Stream Commit"),
        (b'A', "Stream Abort"),
        (b'b', "Begin Prepare"),
        (b'P', "Prepare"),
        (b'K', "Commit Prepared"),
        (b'r', "Rollback Prepared"),
        (b'p', "Stream Prepare"),
    ] {
        let found = format!("{expected}, found {name} ('{}', of option", char::from(tag));
        assert!(refused(tag).starts_with(&found), "{}", refused(tag));
    }
    assert_eq!(
        refusal(in_transaction(), b""),
        "pgoutput message, byte 0: expected the tag of a pgoutput message, found the end"
    );
}

#[test]
fn malformed_tuples_say_where_and_what() {
    let refused = |index, bytes: &[u8]| refusal(in_transaction(), &with(INSERT, index, bytes));
    assert_eq!(
        refused(1, b"\0\0\0\x07"),
        "Insert message, byte 1: expected the id of a relation described before, found 7"
    );
    assert_eq!(
        refused(2, b"K"),
        "Insert message, byte 5: expected a new tuple, 'N', found 0x4B ('K')"
    );
    assert_eq!(
        refused(3, b"\x00\x03"),
        "Insert message, byte 6: expected 2 columns as in relation 16389, found 3"
    );
    assert_eq!(
        refused(3, b"\x00\x01"),
        "Insert message, byte 6: expected 2 columns as in relation 16389, found 1"
    );
    assert_eq!(
        refused(4, b"x"),
        "Insert message, byte 8: expected a column of kind 'n', 'u', 't' or 'b', found 0x78 ('x')"
    );
    assert_eq!(
        refused(5, b"\x7F\xFF\xFF\xFF"),
        "Insert message, byte 13: expected column value (2147483647 bytes), found 3 bytes"
    );
    assert_eq!(
        refused(5, b"\xFF\xFF\xFF\xFF"),
        "Insert message, byte 13: expected column value (4294967295 bytes), found 3 bytes"
    );
    assert_eq!(
        refused(7, b""),
        "Insert message, byte 15: expected a column of kind 'n', 'u', 't' or 'b', found the end"
    );
    assert_eq!(refused(7, b"nn"), "Insert message, byte 16: expected the end, found 1 bytes");
    assert_eq!(
        refusal(in_transaction(), &delete(NEW_TUPLE)),
        "Delete message, byte 5: expected an old tuple, 'K' or 'O', found 0x4E ('N')"
    );
    assert_eq!(
        refusal(in_transaction(), b"U\x00\x00\x40\x05Z"),
        "Update message, byte 5: expected a new tuple, 'N', found 0x5A ('Z')"
    );
}

#[test]
fn malformed_relations_and_truncates_say_where_and_what() {
    let refused = |index, bytes: &[u8]| refusal(Decoder::new(), &with(RELATION, index, bytes));
    assert_eq!(
        refused(3, b"out\xFFbox\0"),
        "Relation message, byte 15: expected a text in UTF-8, found another encoding"
    );
    assert_eq!(
        refused(4, b"x"),
        "Relation message, byte 19: expected a replica identity 'd', 'n', 'f' or 'i', \
         found 0x78 ('x')"
    );
    assert_eq!(
        refused(5, b"\x06\x81"),
        "Relation message, byte 20: expected at most 1664 columns, found 1665"
    );
    assert_eq!(
        refused(6, b"\x02"),
        "Relation message, byte 22: expected no unknown flag, found 0x02"
    );
    let long = [vec![b'a'; limits::NAME_BYTES_MAX + 1], vec![0]].concat();
    assert_eq!(
        refused(2, &long),
        "Relation message, byte 5: expected at most 1023 bytes of name, found 1024"
    );
    assert_eq!(
        refusal(Decoder::new(), b"R\0\0\0\x01public"),
        "Relation message, byte 5: expected a text ended by NUL, found no NUL up to the end"
    );
    assert_eq!(
        refusal(in_transaction(), &with(TRUNCATE, 2, b"\x04")),
        "Truncate message, byte 5: expected no unknown flag, found 0x04"
    );
    assert_eq!(
        refusal(in_transaction(), &with(TRUNCATE, 1, b"\xFF\xFF\xFF\xFF")),
        "Truncate message, byte 6: expected relation ids (4294967295 bytes), found 4 bytes"
    );
    assert_eq!(
        refusal(in_transaction(), &with(TRUNCATE, 3, b"\0\0\0\x07")),
        "Truncate message, byte 6: expected the id of a relation described before, found 7"
    );
    assert_eq!(
        refusal(in_transaction(), &with(MESSAGE, 1, b"\x02")),
        "logical decoding Message, byte 1: expected 0 or 1, found 0x02"
    );
}

#[test]
fn every_truncation_of_every_message_and_every_byte_too_many_is_refused() {
    let messages = [
        BEGIN.concat(),
        COMMIT.concat(),
        RELATION.concat(),
        INSERT.concat(),
        update(KEY_TUPLE),
        update(&[]),
        delete(FULL_TUPLE),
        TRUNCATE.concat(),
        MESSAGE.concat(),
        TYPE.concat(),
        ORIGIN.concat(),
    ];
    for message in messages {
        let fresh = || if message.starts_with(b"B") { Decoder::new() } else { in_transaction() };
        assert!(fresh().decode(&message).is_ok(), "{message:?}");
        for len in 0..message.len() {
            let error = fresh().decode(&message[..len]).map(|_| ()).unwrap_err();
            assert!(error.offset() <= len, "{error} of {len} bytes");
        }
        let longer = [message.as_slice(), b"!"].concat();
        let error: DecodeError = fresh().decode(&longer).map(|_| ()).unwrap_err();
        assert_eq!((error.offset(), error.found().to_string()), (message.len(), "1 bytes".into()));
        assert_ne!(error.message(), MessageKind::Unknown);
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let relation = |id: usize, columns: usize| {
        let id = u32::try_from(id).unwrap().to_be_bytes();
        let count = u16::try_from(columns).unwrap().to_be_bytes();
        let columns = b"\0c\0\0\0\0\x17\xFF\xFF\xFF\xFF".repeat(columns);
        [b"R".as_slice(), &id, b"s\0t\0d", &count, &columns].concat()
    };

    let mut decoder = Decoder::new();
    for id in 0..limits::RELATIONS_MAX {
        let is_nearly_full = id >= limits::RELATIONS_MAX - limits::RELATIONS_RESERVED;
        assert_eq!(decoder.is_nearly_full(), is_nearly_full, "{id}");
        assert!(decoder.decode(&relation(id, 1)).is_ok());
    }
    assert!(decoder.decode(&relation(7, 2)).is_ok(), "a known table may always change");
    assert_eq!(
        refusal(decoder, &relation(limits::RELATIONS_MAX, 1)),
        "Relation message, byte 1: expected at most 4096 relations, found 4097"
    );

    let mut wide = Decoder::new();
    let full = limits::COLUMNS_KEPT_MAX / limits::COLUMNS_MAX;
    for id in (0..full).chain(0..full) {
        assert!(wide.decode(&relation(id, limits::COLUMNS_MAX)).is_ok(), "replacing is free");
    }
    assert_eq!(
        refusal(wide, &relation(full, limits::COLUMNS_MAX)),
        format!(
            "Relation message, byte 1: expected at most 262144 columns in all, found {}",
            (full + 1) * limits::COLUMNS_MAX
        )
    );
}

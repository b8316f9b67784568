//! Properties of the decoder for any bytes, used by the fuzz target `decoder` and by ordinary
//! tests.

use pgoutput_parser::{Change, Column, Decoder, OldTuple, Relation, Tuple, encode};

/// Checks a stream of messages, each with its length in two bytes before it.
///
/// Every message is either refused, or decodes to a value whose only encoding is that message. As
/// in production, the first error ends the stream.
pub(crate) fn check(mut input: &[u8]) {
    let mut decoder = Decoder::new();
    while let Some((len, rest)) = input.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (data, rest) = rest.split_at(len);
        input = rest;
        match decoder.decode(data) {
            Ok(change) => reencodes(&change, data),
            Err(error) => {
                assert!(error.offset() <= data.len(), "{error}");
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
}

fn reencodes(change: &Change<'_>, data: &[u8]) {
    let encoded = match change {
        Change::Begin(begin) => encode::begin(begin),
        Change::Commit(commit) => {
            assert!(commit.boundary().lsn() > commit.commit_lsn);
            encode::commit(commit)
        }
        Change::Origin(origin) => encode::origin(origin),
        Change::Type(description) if is_spelled_out(data) => {
            let text = format!("{description:?}");
            assert!(text.contains("pg_catalog"), "{text}");
            return;
        }
        Change::Type(description) => encode::type_description(description),
        Change::Relation(relation) if is_spelled_out(data) => {
            assert_eq!(relation.namespace, "pg_catalog");
            return;
        }
        Change::Relation(relation) => encode_relation(relation),
        Change::Insert(insert) => encode::insert(insert.relation.id, &columns(&insert.tuple)),
        Change::Update(update) => {
            let old_values = update.old.as_ref().map(old_columns);
            let old = update.old.as_ref().zip(old_values.as_deref());
            let old = old.map(|(old, values)| old_of(old, values));
            encode::update(update.relation.id, old, &columns(&update.new))
        }
        Change::Delete(delete) => {
            let values = old_columns(&delete.old);
            encode::delete(delete.relation.id, old_of(&delete.old, &values))
        }
        Change::Truncate(truncate) => {
            let ids: Vec<u32> = truncate.relation_ids().collect();
            encode::truncate(truncate.options, &ids)
        }
        Change::Message(message) => encode::message(message),
    };
    // A condensed message may have kept all its values.
    let mut data = data.to_vec();
    if encoded.first().is_some_and(u8::is_ascii_uppercase) {
        data.iter_mut().take(1).for_each(|tag| *tag = tag.to_ascii_uppercase());
    }
    assert_eq!(encoded, data);
}

/// Whether a Relation or Type message spells out `pg_catalog`, which the server leaves empty. Both
/// forms decode to the same value, so the encoder cannot reproduce this one.
fn is_spelled_out(data: &[u8]) -> bool {
    data.get(5..).is_some_and(|rest| rest.starts_with(b"pg_catalog\0"))
}

fn encode_relation(relation: &Relation) -> Vec<u8> {
    encode::relation(
        relation.id,
        &relation.namespace,
        &relation.name,
        relation.replica_identity,
        &relation.columns,
    )
}

fn columns<'a>(tuple: &Tuple<'a>) -> Vec<Column<'a>> {
    let values: Vec<_> = tuple.columns().collect();
    assert_eq!(values.len(), tuple.len(), "a checked tuple yields every column");
    values
}

fn old_columns<'a>(old: &OldTuple<'a>) -> Vec<Column<'a>> {
    match old {
        OldTuple::Key(tuple) | OldTuple::Full(tuple) => columns(tuple),
    }
}

fn old_of<'a>(old: &OldTuple<'_>, values: &'a [Column<'a>]) -> encode::OldColumns<'a> {
    match old {
        OldTuple::Key(_) => encode::OldColumns::Key(values),
        OldTuple::Full(_) => encode::OldColumns::Full(values),
    }
}

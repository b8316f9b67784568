//! Rows to messages, over bytes as the server sends them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use pgoutput_parser::{
    Begin, Change, Column, Decoder, Lsn, PgTimestamp, RelationColumn, ReplicaIdentity, encode,
};
use walrelay_core::{
    AttributeStyle, ColumnNames, EditedMessages, Fault, LogName, Names, Routed, Router,
    RouterConfig, Template,
};

/// Columns of the smallest outbox.
fn small() -> ColumnNames {
    ColumnNames {
        aggregate_type: None,
        aggregate_id: None,
        event_type: None,
        version: None,
        schema_version: None,
        headers: None,
        occurred_at: None,
        ..ColumnNames::default()
    }
}

fn named(name: &str) -> Option<Names> {
    Some(Names::parse(name))
}

/// A router, and the open transaction it reads.
struct Table {
    router: Router,
    decoder: Decoder,
}

impl Table {
    fn new(columns: ColumnNames, ordering_key: &str) -> Self {
        Self::of(columns, ordering_key, LogName::Untold)
    }

    fn telling(columns: ColumnNames, log_name: LogName) -> Self {
        Self::of(columns, "", log_name)
    }

    fn of(columns: ColumnNames, ordering_key: &str, log_name: LogName) -> Self {
        Self::with(RouterConfig {
            project: "p".into(),
            topic: Template::parse("events").unwrap(),
            ordering_key: Template::parse(ordering_key).unwrap(),
            columns,
            style: AttributeStyle::Default,
            replay_id: None,
            edited: EditedMessages::default(),
            log_name,
        })
    }

    fn with(config: RouterConfig) -> Self {
        let router = Router::new(config);
        let mut decoder = Decoder::new();
        let commit_timestamp = PgTimestamp::from_micros(0);
        let begin = Begin { final_lsn: Lsn::new(0x1F), commit_timestamp, xid: 1 };
        decoder.decode(&encode::begin(&begin)).unwrap();
        Self { router, decoder }
    }

    /// The server describes the table, and sends a row of it.
    fn row(&mut self, columns: &[(&str, Option<&str>)]) -> Routed {
        let described: Vec<_> = columns
            .iter()
            .map(|(name, _)| RelationColumn {
                name: (*name).to_owned(),
                type_oid: 25,
                type_modifier: -1,
                is_key: false,
            })
            .collect();
        let relation =
            encode::relation(7, "public", "app_outbox", ReplicaIdentity::Full, &described);
        self.decoder.decode(&relation).unwrap();
        let values: Vec<_> = columns
            .iter()
            .map(|(_, value)| value.map_or(Column::Null, |text| Column::Text(text.as_bytes())))
            .collect();
        let sent = encode::insert(7, &values);
        let Change::Insert(insert) = self.decoder.decode(&sent).unwrap() else {
            panic!("an insert was encoded");
        };
        let routed = self.router.route(&insert).unwrap();
        assert_eq!(self.router.event_id(&insert), Ok(routed.message.event_id()));
        routed
    }
}

fn attributes(routed: &Routed) -> BTreeMap<&str, &str> {
    routed.message.attributes().collect()
}

#[test]
fn fields_that_share_a_column_all_have_its_value() {
    let columns = ColumnNames {
        aggregate_id: named("id"),
        aggregate_type: named("type"),
        event_type: named("type"),
        ..small()
    };
    let mut table = Table::new(columns, "{aggregateid}");
    let routed = table.row(&[("id", Some("e-1")), ("type", Some("paid")), ("payload", Some("x"))]);
    assert_eq!(routed.fault, None);
    assert_eq!(routed.message.event_id(), "e-1");
    assert_eq!(routed.message.ordering_key(), "e-1");
    let attributes = attributes(&routed);
    assert_eq!((attributes["event_id"], attributes["aggregate_id"]), ("e-1", "e-1"));
    assert_eq!((attributes["aggregate_type"], attributes["event_type"]), ("paid", "paid"));
}

#[test]
fn whose_positions_they_are_is_told_where_that_was_asked_for_whatever_a_header_says() {
    let row = [
        ("id", Some("e-1")),
        ("payload", Some("x")),
        ("headers", Some(r#"{"system_identifier": "the producer's"}"#)),
    ];
    let columns = || ColumnNames { headers: named("headers"), ..small() };
    let mut untold = Table::new(columns(), "");
    untold.router = untold.router.of_server("7/1".to_owned());
    assert_eq!(attributes(&untold.row(&row))["system_identifier"], "the producer's");

    let mut told = Table::telling(columns(), LogName::Told);
    told.router = told.router.of_server("7/1".to_owned());
    assert_eq!(attributes(&told.row(&row))["system_identifier"], "7/1");
}

#[test]
fn the_payload_may_be_a_field_too() {
    let columns = ColumnNames { payload: Names::parse("id"), ..small() };
    let routed = Table::new(columns, "").row(&[("id", Some("e-1"))]);
    assert_eq!((routed.message.event_id(), routed.message.data()), ("e-1", &b"e-1"[..]));
}

#[test]
fn a_renamed_column_is_found_under_the_name_of_each_description() {
    let columns = ColumnNames { version: named("version,ver"), ..small() };
    let mut table = Table::new(columns, "{version}");
    for name in ["version", "ver"] {
        let routed = table.row(&[("id", Some("e-1")), (name, Some("4")), ("payload", Some("x"))]);
        assert_eq!(attributes(&routed)["version"], "4", "{name}");
        assert_eq!(routed.message.ordering_key(), "4", "{name}");
    }
}

#[test]
fn of_two_names_that_both_exist_the_first_counts() {
    let columns = ColumnNames { version: named("version,ver"), ..small() };
    let row =
        [("id", Some("e-1")), ("ver", Some("1")), ("version", Some("2")), ("payload", Some("x"))];
    let routed = Table::new(columns, "").row(&row);
    assert_eq!(attributes(&routed)["version"], "2");
}

#[test]
fn an_empty_id_is_told_apart_from_none() {
    let mut table = Table::new(small(), "");
    assert_eq!(table.row(&[("id", None), ("payload", None)]).fault, Some(Fault::NoId));
    assert_eq!(table.row(&[("id", Some("")), ("payload", None)]).fault, Some(Fault::EmptyId));
}

#[test]
fn a_row_whose_message_was_edited_gives_that_message_whatever_is_wrong_with_the_row() {
    // Field 1 of a PubsubMessage is its data.
    let body = [&[0x0A, 5][..], b"fixed"].concat();
    let edited = EditedMessages::new([("e-1".to_owned(), body)].into());
    assert!(!format!("{edited:?}").contains("fixed"), "a payload is never shown");
    let mut table = Table::with(RouterConfig {
        project: "p".into(),
        topic: Template::parse("{route}").unwrap(),
        ordering_key: Template::parse("").unwrap(),
        columns: small(),
        style: AttributeStyle::Default,
        replay_id: None,
        log_name: LogName::Untold,
        edited,
    });
    let row = |id| [("id", Some(id)), ("route", Some("no topic!")), ("payload", Some("broken"))];
    let routed = table.row(&row("e-1"));
    assert_eq!(routed.fault, None);
    assert_eq!(routed.message.data(), b"fixed");
    let other = table.row(&row("e-2"));
    assert!(other.fault.is_some() && other.message.data() == b"broken");
}

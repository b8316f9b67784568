//! Converts rows to messages, from bytes as the server sends them.

use std::collections::BTreeMap;
use std::sync::Arc;

use pgoutput_parser::{
    Begin, Change, Column, Decoder, Lsn, PgTimestamp, RelationColumn, ReplicaIdentity, encode,
};
use walrelay_core::{
    AttributeColumns, AttributeStyle, ColumnAliases, ColumnNames, EditedMessages, Fault,
    IncompleteMessage, Message, MessagePart, REQUEST_BYTES_MAX, Routed, Router, RouterConfig,
    SystemIdentifierMode, Template,
};
use walrelay_envelope::attribute;

/// The columns of the smallest outbox.
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

fn named(name: &str) -> Option<ColumnAliases> {
    Some(ColumnAliases::parse(name))
}

/// A router, and the decoder of the open transaction.
struct Table {
    router: Router,
    decoder: Decoder,
}

impl Table {
    fn new(columns: ColumnNames, ordering_key: &str) -> Self {
        Self::of(columns, AttributeStyle::Default, ordering_key, SystemIdentifierMode::Untold)
    }

    fn styled(columns: ColumnNames, style: AttributeStyle) -> Self {
        Self::of(columns, style, "", SystemIdentifierMode::Untold)
    }

    fn telling(columns: ColumnNames, log_name: SystemIdentifierMode) -> Self {
        Self::of(columns, AttributeStyle::Default, "", log_name)
    }

    fn of(
        columns: ColumnNames,
        style: AttributeStyle,
        ordering_key: &str,
        log_name: SystemIdentifierMode,
    ) -> Self {
        Self::with(RouterConfig {
            project: "p".into(),
            topic: Template::parse("events").unwrap(),
            ordering_key: Template::parse(ordering_key).unwrap(),
            columns,
            style,
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

    /// Describes the table and sends one row with text columns.
    fn row(&mut self, columns: &[(&str, Option<&str>)]) -> Routed<'static> {
        let columns: Vec<_> = columns
            .iter()
            .map(|(name, value)| {
                let value = value.map_or(Column::Null, |text| Column::Text(text.as_bytes()));
                (*name, 25, value)
            })
            .collect();
        self.sent(&columns)
    }

    /// Describes the table and sends one row with any column types and values.
    fn sent(&mut self, columns: &[(&str, u32, Column<'_>)]) -> Routed<'static> {
        let described: Vec<_> = columns
            .iter()
            .map(|(name, type_oid, _)| RelationColumn {
                name: (*name).to_owned(),
                type_oid: *type_oid,
                type_modifier: -1,
                is_key: false,
            })
            .collect();
        let relation =
            encode::relation(7, "public", "app_outbox", ReplicaIdentity::Full, &described);
        self.decoder.decode(&relation).unwrap();
        let values: Vec<_> = columns.iter().map(|(_, _, value)| *value).collect();
        let sent = encode::insert(7, &values);
        let Change::Insert(insert) = self.decoder.decode(&sent).unwrap() else {
            panic!("an insert was encoded");
        };
        let Routed { message, fault, headers_left_out, event_type: _ } =
            self.router.route(&insert).unwrap();
        assert_eq!(self.router.event_id(&insert), Ok(message.event_id()));
        Routed { message, fault, headers_left_out, event_type: "" }
    }
}

fn attributes<'a>(routed: &'a Routed<'_>) -> BTreeMap<&'a str, &'a str> {
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
fn only_the_relay_says_whose_positions_they_are() {
    let row = [
        ("id", Some("e-1")),
        ("payload", Some("x")),
        ("headers", Some(r#"{"system_identifier": "the producer's"}"#)),
    ];
    let columns = || ColumnNames { headers: named("headers"), ..small() };
    let mut untold = Table::new(columns(), "");
    untold.router = untold.router.of_server("7/1".to_owned());
    assert_eq!(attributes(&untold.row(&row)).get("system_identifier"), None);

    let mut told = Table::telling(columns(), SystemIdentifierMode::Told);
    told.router = told.router.of_server("7/1".to_owned());
    assert_eq!(attributes(&told.row(&row))["system_identifier"], "7/1");
}

#[test]
fn no_header_takes_a_name_of_the_relays_in_either_style() {
    let headers: BTreeMap<&str, &str> = attribute::RESERVED_NAMES
        .iter()
        .map(|name| (*name, "forged"))
        .chain([("tenant", "a")])
        .collect();
    let headers = serde_json::to_string(&headers).unwrap();
    let row = [("id", Some("e-1")), ("payload", Some("x")), ("headers", Some(&*headers))];
    let cloud = AttributeStyle::CloudEvents { source: String::new() };
    for style in [AttributeStyle::Default, cloud] {
        let columns = ColumnNames { headers: named("headers"), ..small() };
        let routed = Table::styled(columns, style).row(&row);
        assert_eq!(routed.fault, None);
        assert_eq!(routed.headers_left_out, attribute::RESERVED_NAMES.len());
        let attributes = attributes(&routed);
        assert_eq!(attributes["tenant"], "a");
        assert!(!attributes.values().any(|value| *value == "forged"), "{attributes:?}");
    }
}

#[test]
fn headers_that_cannot_be_attributes_are_refused_with_their_own_reason() {
    let columns = ColumnNames { headers: named("headers"), ..small() };
    let mut table = Table::new(columns, "");
    for (headers, reason) in [
        (r#"{"a": 1"#, "the headers column cannot be read: "),
        (r#"{"": "x"}"#, "a header has no name"),
        (r#"{"goog_x": "x"}"#, "names starting with \"goog\" are reserved"),
        ("[1]", "the headers column is not a JSON object"),
    ] {
        let row = [("id", Some("e-1")), ("payload", Some("x")), ("headers", Some(headers))];
        let Some(Fault::Headers(told)) = table.row(&row).fault else { panic!("{headers} passes") };
        assert!(told.contains(reason), "{headers}: {told}");
    }
}

#[test]
fn numbers_of_headers_keep_every_digit() {
    let columns = ColumnNames { headers: named("headers"), ..small() };
    let mut table = Table::new(columns, "");
    let headers = r#"{"price": 1.10, "id": 12345678901234567890123, "far": 1e400, "list": [1.10, {"n": 0.30}]}"#;
    let row = [("id", Some("e-1")), ("payload", Some("x")), ("headers", Some(headers))];
    let routed = table.row(&row);
    assert_eq!(routed.fault, None);
    let attributes = attributes(&routed);
    for (name, value) in [
        ("price", "1.10"),
        ("id", "12345678901234567890123"),
        ("far", "1e400"),
        ("list", r#"[1.10, {"n": 0.30}]"#),
    ] {
        assert_eq!(attributes[name], value);
    }
}

#[test]
fn a_column_is_an_attribute_unless_it_is_null_and_no_header_takes_its_name() {
    let columns = AttributeColumns::parse("tenant_id,region:geo,id:key,trace:traceparent").unwrap();
    let columns = ColumnNames { headers: named("headers"), attributes: columns, ..small() };
    let mut table = Table::new(columns, "{region}");
    let headers = Some(r#"{"geo": "forged", "tenant_id": "forged", "other": "o"}"#);
    let mut row = |tenant| {
        table.row(&[
            ("id", Some("e-1")),
            ("tenant_id", tenant),
            ("region", Some("eu")),
            ("trace", Some("00-1-2-01")),
            ("payload", Some("x")),
            ("headers", headers),
        ])
    };
    let routed = row(Some(""));
    assert_eq!((&routed.fault, routed.headers_left_out), (&None, 2));
    assert_eq!(routed.message.ordering_key(), "eu");
    let found = attributes(&routed);
    for (name, value) in [
        ("tenant_id", ""),
        ("geo", "eu"),
        ("key", "e-1"),
        ("event_id", "e-1"),
        ("other", "o"),
        ("traceparent", "00-1-2-01"),
        ("googclient_traceparent", "00-1-2-01"),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name}: {found:?}");
    }
    let without = row(None);
    assert_eq!(without.headers_left_out, 2);
    assert_eq!(attributes(&without).get("tenant_id"), None);
}

#[test]
fn a_value_that_is_too_long_for_an_attribute_makes_the_row_dead_as_a_header_does() {
    let attributes = AttributeColumns::parse("notes:n").unwrap();
    let mut table = Table::new(ColumnNames { attributes, ..small() }, "");
    let long = "x".repeat(1_025);
    let mut sent = |notes| {
        table.sent(&[
            ("id", TEXT, Column::Text(b"e-1")),
            ("notes", TEXT, notes),
            ("payload", TEXT, Column::Text(b"hello")),
        ])
    };
    assert_eq!(sent(Column::Text(&long.as_bytes()[1..])).fault, None);
    let limit = sent(Column::Text(long.as_bytes()));
    let expected = "attribute \"n\" in bytes is 1025; pub/sub takes at most 1024";
    assert_eq!(limit.fault.map(|fault| fault.to_string()).as_deref(), Some(expected));
    let (parts, fault) = lacks(&sent(Column::TooLarge { bytes: 140_000_000 }));
    assert_eq!(parts, [(MessagePart::Attributes, 140_000_000)]);
    assert!(fault.contains("column \"notes\"") && fault.contains("takes 1024"), "{fault}");
}

#[test]
fn a_row_from_before_the_column_of_an_attribute_was_added_has_no_such_attribute() {
    let attributes_of = AttributeColumns::parse("tenant_id").unwrap();
    let columns = ColumnNames { headers: named("headers"), attributes: attributes_of, ..small() };
    let mut table = Table::new(columns, "");
    let headers = Some(r#"{"tenant_id": "forged"}"#);
    let before = [("id", Some("e-1")), ("payload", Some("x")), ("headers", headers)];
    let routed = table.row(&before);
    assert_eq!((&routed.fault, routed.headers_left_out), (&None, 1));
    assert_eq!(attributes(&routed).get("tenant_id"), None);
    let after =
        [("id", Some("e-2")), ("payload", Some("x")), ("headers", None), ("tenant_id", Some("a"))];
    assert_eq!(attributes(&table.row(&after))["tenant_id"], "a");
}

#[test]
fn the_payload_may_be_a_field_too() {
    let columns = ColumnNames { payload: ColumnAliases::parse("id"), ..small() };
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
fn a_row_cannot_choose_its_project() {
    let columns = ColumnNames { aggregate_type: named("type"), ..small() };
    let mut table = Table::with(RouterConfig {
        project: "p".into(),
        topic: Template::parse("{aggregatetype}").unwrap(),
        ordering_key: Template::parse("").unwrap(),
        columns,
        style: AttributeStyle::Default,
        replay_id: None,
        edited: EditedMessages::default(),
        log_name: SystemIdentifierMode::Untold,
    });
    let mut routed = |aggregate_type| {
        table.row(&[("id", Some("e-1")), ("type", Some(aggregate_type)), ("payload", Some("x"))])
    };
    let own = routed("video");
    assert_eq!((own.fault, &**own.message.topic()), (None, "projects/p/topics/video"));
    for value in ["projects/other/topics/video", "video/x", "/"] {
        let other = routed(value);
        let name = format!("projects/p/topics/{value}");
        // The recorded name is invalid also, so that a retry does not publish the row.
        assert_eq!(&**other.message.topic(), name);
        assert_eq!(other.fault, Some(Fault::Topic { name }));
    }
}

#[test]
fn an_empty_id_is_told_apart_from_none() {
    let mut table = Table::new(small(), "");
    assert_eq!(table.row(&[("id", None), ("payload", None)]).fault, Some(Fault::NoId));
    assert_eq!(table.row(&[("id", Some("")), ("payload", None)]).fault, Some(Fault::EmptyId));
}

const TEXT: u32 = 25;
const BYTEA: u32 = 17;

/// The parts that a routed row lacks, and the text of its fault.
fn lacks(routed: &Routed) -> (Vec<(MessagePart, usize)>, String) {
    let body = routed.message.body();
    let lacks = IncompleteMessage::of(body).map(|incomplete| incomplete.lacks).unwrap_or_default();
    let (topic, position) = (Arc::clone(routed.message.topic()), routed.message.position());
    let is_complete = Message::from_encoded(topic, position, "e-1", body).is_ok();
    assert_eq!(is_complete, lacks.is_empty(), "a message that lacks a part could be published");
    let failure = routed.fault.clone().map(Fault::into_failure);
    (lacks, failure.map(|failure| failure.to_string()).unwrap_or_default())
}

#[test]
fn a_payload_that_is_too_large_is_left_out_of_the_message_and_named_with_its_size() {
    let mut table = Table::new(small(), "{id}");
    let text = "x".repeat(REQUEST_BYTES_MAX + 1);
    let hex = format!("\\x{}", "00".repeat(REQUEST_BYTES_MAX + 1));
    let left_out = Column::TooLarge { bytes: 140_000_000 };
    for (type_oid, value, bytes) in [
        (TEXT, left_out, 140_000_000),
        (BYTEA, left_out, 69_999_999),
        (TEXT, Column::Text(text.as_bytes()), REQUEST_BYTES_MAX + 1),
        (BYTEA, Column::Text(hex.as_bytes()), REQUEST_BYTES_MAX + 1),
    ] {
        let id = ("id", TEXT, Column::Text(b"e-1"));
        let routed = table.sent(&[id, ("payload", type_oid, value)]);
        let (parts, fault) = lacks(&routed);
        assert_eq!(parts, [(MessagePart::Payload, bytes)]);
        let expected = format!(
            "TOO_LARGE: column \"payload\" of public.app_outbox has {bytes} bytes, and pub/sub takes 10000000: recorded \
             without the value, which only the row in the outbox has"
        );
        assert_eq!(fault, expected);
        assert_eq!((routed.message.event_id(), routed.message.ordering_key()), ("e-1", "e-1"));
        assert_eq!(attributes(&routed)["event_id"], "e-1");
        assert!(routed.message.memory() < 2_000, "{}", routed.message.memory());
    }
}

#[test]
fn a_payload_that_only_fits_without_its_attributes_is_left_out_and_a_smaller_one_is_not() {
    let mut table = Table::new(small(), "");
    let mut row = |bytes| {
        let payload = "x".repeat(bytes);
        table.row(&[("id", Some("e-1")), ("payload", Some(&payload))])
    };
    let too_large = row(REQUEST_BYTES_MAX);
    let (parts, fault) = lacks(&too_large);
    assert_eq!(parts, [(MessagePart::Payload, REQUEST_BYTES_MAX)]);
    assert!(fault.starts_with("TOO_LARGE: the payload of public.app_outbox with its"), "{fault}");
    let fitting = row(REQUEST_BYTES_MAX - 1_000);
    assert_eq!(lacks(&fitting), (Vec::new(), String::new()));
    assert_eq!(fitting.message.data().len(), REQUEST_BYTES_MAX - 1_000);
}

#[test]
fn keys_ids_and_headers_may_be_too_large_and_the_payload_stays() {
    let columns =
        ColumnNames { aggregate_id: named("aggregateid"), headers: named("headers"), ..small() };
    let mut table = Table::new(columns, "{aggregateid}");
    let large = Column::TooLarge { bytes: 70_000 };
    let whole = "k".repeat(70_000);
    let text = |text: &'static str| Column::Text(text.as_bytes());
    let mut sent = |id, key, headers| {
        table.sent(&[
            ("id", TEXT, id),
            ("aggregateid", TEXT, key),
            ("headers", TEXT, headers),
            ("payload", TEXT, text("hello")),
        ])
    };
    for key in [large, Column::Text(whole.as_bytes())] {
        let routed = sent(text("e-1"), key, Column::Null);
        let (parts, fault) = lacks(&routed);
        let expected = [(MessagePart::Attributes, 70_000), (MessagePart::OrderingKey, 70_000)];
        assert_eq!(parts, expected);
        assert!(fault.contains("column \"aggregateid\" of public.app_outbox has 70000"), "{fault}");
        assert_eq!((routed.message.ordering_key(), routed.message.data()), ("", &b"hello"[..]));
    }
    let large_id = sent(large, text("k"), Column::Null);
    assert_eq!(lacks(&large_id).0, [(MessagePart::Attributes, 70_000)]);
    assert_eq!((large_id.message.event_id(), large_id.message.ordering_key()), ("", "k"));
    let large_headers = sent(text("e-1"), text("k"), Column::TooLarge { bytes: 140_000_000 });
    let (parts, fault) = lacks(&large_headers);
    assert_eq!(parts, [(MessagePart::Attributes, 140_000_000)]);
    assert!(fault.contains("column \"headers\"") && fault.contains("takes 128000"), "{fault}");
}

#[test]
fn a_large_value_of_a_column_that_is_not_published_changes_nothing() {
    let mut table = Table::new(small(), "");
    let routed = table.sent(&[
        ("id", TEXT, Column::Text(b"e-1")),
        ("notes", TEXT, Column::TooLarge { bytes: 140_000_000 }),
        ("payload", TEXT, Column::Text(b"hello")),
    ]);
    assert_eq!(lacks(&routed), (Vec::new(), String::new()));
    assert_eq!(routed.message.data(), b"hello");
}

#[test]
fn a_row_whose_message_was_edited_gives_that_message_whatever_is_wrong_with_the_row() {
    // Field 1 of a `PubsubMessage` is its data.
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
        log_name: SystemIdentifierMode::Untold,
        edited,
    });
    let row = |id| [("id", Some(id)), ("route", Some("no topic!")), ("payload", Some("broken"))];
    let routed = table.row(&row("e-1"));
    assert_eq!(routed.fault, None);
    assert_eq!(routed.message.data(), b"fixed");
    let other = table.row(&row("e-2"));
    assert!(other.fault.is_some() && other.message.data() == b"broken");
}

//! A recovery reads exactly the rows that the slot's snapshot sees, even with concurrent writers.

use futures_util::TryStreamExt as _;
use walrelay_outbox_replay::{
    RowCursor, Scope, ServerEncoding, SettledRows, SourceRow, SourceTable, SourceValue,
    UnsettledRows, read_server_text,
};
use walrelay_pg_client::{QualifiedName, read_columns};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

const EVENTS: &str = "CREATE TABLE events (id int PRIMARY KEY)";

async fn events(session: &TestClient) -> SourceTable {
    let name = QualifiedName::new("public", "events");
    let (oid, columns) = read_columns(session, &name).await.expect("columns");
    SourceTable {
        name,
        oid,
        columns,
        aggregate_type: None,
        aggregate_id: None,
        order: Vec::new(),
        id: "id".to_owned(),
        occurred_at: None,
        row_filter: None,
    }
}

async fn count(session: &TestClient, snapshot: &str, settled: SettledRows) -> u64 {
    let table = events(session).await;
    let gap = UnsettledRows { snapshot: snapshot.to_owned(), settled, scope: Scope::default() };
    gap.count(session, &table).await.expect("a count")
}

/// Opens a session with an open transaction that has an id.
async fn writer(database: &TestDatabase) -> TestClient {
    let session = database.connect().await;
    session.run("BEGIN; SELECT pg_current_xact_id()").await;
    session
}

#[tokio::test]
async fn a_row_that_the_snapshot_sees_is_read_however_many_transactions_have_begun_since() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session.run(EVENTS).await;
    let horizon = session.text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").await;
    let below = SettledRows::Below(horizon.parse().expect("an id"));
    // A transaction that runs while the snapshot is taken, and a row of a later transaction.
    let running = writer(&database).await;
    session.run("INSERT INTO events VALUES (1)").await;
    let snapshot = session.text("SELECT pg_current_snapshot()::text").await;
    let mut later = Vec::new();
    for begun in 0..4 {
        assert_eq!(count(&session, &snapshot, below.clone()).await, 1, "{begun} begun");
        assert_eq!(count(&session, &snapshot, SettledRows::None).await, 1, "{begun}");
        later.push(writer(&database).await);
    }
    // Rows that the snapshot does not see are streamed, not read. These are rows of the running
    // transaction and of later transactions.
    running.run("INSERT INTO events VALUES (2); COMMIT").await;
    for (number, writer) in (3..).zip(&later) {
        writer.run(&format!("INSERT INTO events VALUES ({number}); COMMIT")).await;
    }
    assert_eq!(count(&session, &snapshot, below).await, 1);
    assert_eq!(count(&session, &snapshot, SettledRows::None).await, 1);
}

#[tokio::test]
async fn a_row_is_read_in_one_part_of_a_recovery_whenever_its_transaction_began() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session.run(EVENTS).await;
    let snapshot = async || session.text("SELECT pg_current_snapshot()::text").await;
    let running = [writer(&database).await, writer(&database).await];
    session.run("INSERT INTO events VALUES (1)").await;
    let first = snapshot().await;
    running[0].run("INSERT INTO events VALUES (2); COMMIT").await;
    session.run("INSERT INTO events VALUES (3)").await;
    let second = snapshot().await;
    running[1].run("INSERT INTO events VALUES (4); COMMIT").await;
    session.run("INSERT INTO events VALUES (5)").await;
    let third = snapshot().await;
    assert_eq!(count(&session, &first, SettledRows::None).await, 1);
    assert_eq!(count(&session, &second, SettledRows::SeenIn(first)).await, 2);
    assert_eq!(count(&session, &third, SettledRows::SeenIn(second)).await, 2);
    let third_again = SettledRows::SeenIn(third.clone());
    assert_eq!(count(&session, &third, third_again).await, 0);
}

#[tokio::test]
async fn a_value_that_is_too_large_is_measured_by_the_server_and_not_read() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session
        .run(
            "CREATE TABLE events (id int PRIMARY KEY, note text, raw bytea, payload jsonb);
             INSERT INTO events VALUES
               (1, 'small', 'raw', '{\"a\": 1}'),
               (2, repeat('x', 10000001), NULL, jsonb_build_object('a', repeat('y', 10000000))),
               (3, repeat('x', 10000000), convert_to(repeat('z', 10000001), 'UTF8'), 'null')",
        )
        .await;
    session.run("SET bytea_output = 'hex'").await;
    let snapshot = session.text("SELECT pg_current_snapshot()::text").await;
    let table = SourceTable { order: vec!["id".to_owned()], ..events(&session).await };
    let gap = UnsettledRows { snapshot, settled: SettledRows::None, scope: Scope::default() };
    let read = gap.rows(&session, (&table, ServerEncoding::Utf8)).await.expect("rows");
    let rows: Vec<SourceRow> = read.try_collect().await.expect("rows");
    let rows: Vec<_> = rows.into_iter().map(|row| row.values).collect();
    let text = |bytes: &[u8]| SourceValue::Text(bytes.to_vec());
    assert_eq!(rows[0], [text(b"1"), text(b"small"), text(b"\\x726177"), text(b"{\"a\": 1}")]);
    let large = |bytes| SourceValue::TooLarge { bytes };
    let second = [text(b"2"), large(10_000_001), SourceValue::Null, large(10_000_009)];
    assert_eq!(rows[1], second);
    let note = text("x".repeat(10_000_000).as_bytes());
    assert_eq!(rows[2], [text(b"3"), note, large(20_000_004), text(b"null")]);
}

/// A table with every kind of column that orders a recovery.
const OUTBOX: &str = "
CREATE TABLE outbox (id text, kind char(4), version numeric, at timestamptz, body text, bytes bytea, doc jsonb);
INSERT INTO outbox SELECT 'e' || n, CASE n % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END,
                          CASE WHEN n % 4 > 0 THEN n / 7.0 END, CASE WHEN n % 5 > 0 THEN now() END,
                          'body', '\\x00', '{}' FROM generate_series(1, 60) AS n;
INSERT INTO outbox VALUES ('e\\''s', 'a', 'NaN', 'infinity', NULL, NULL, NULL)";

async fn outbox(session: &TestClient) -> SourceTable {
    let name = QualifiedName::new("public", "outbox");
    let (oid, columns) = read_columns(session, &name).await.expect("columns");
    SourceTable {
        name,
        oid,
        columns,
        aggregate_type: None,
        aggregate_id: Some("kind".to_owned()),
        order: vec!["version".to_owned(), "at".to_owned(), "id".to_owned()],
        id: "id".to_owned(),
        occurred_at: None,
        row_filter: None,
    }
}

async fn rows_from(
    session: &TestClient,
    (table, snapshot): (&SourceTable, &str),
    from: Option<RowCursor>,
) -> Vec<SourceRow> {
    let scope = Scope { from, ..Scope::default() };
    let gap = UnsettledRows { snapshot: snapshot.to_owned(), settled: SettledRows::None, scope };
    let text = read_server_text(session).await.expect("an encoding");
    let rows = gap.rows(session, (table, text)).await.expect("rows");
    rows.try_collect().await.expect("all rows")
}

fn text(value: &SourceValue) -> Option<String> {
    match value {
        SourceValue::Text(text) => Some(String::from_utf8(text.clone()).expect("UTF-8")),
        SourceValue::Null | SourceValue::TooLarge { .. } => None,
    }
}

#[tokio::test]
async fn rows_are_read_from_every_place_in_their_order_as_they_would_have_been_from_the_first() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session.run(OUTBOX).await;
    let table = outbox(&session).await;
    let snapshot = session.text("SELECT pg_current_snapshot()::text").await;
    let all = rows_from(&session, (&table, &snapshot), None).await;
    assert_eq!(all.len(), 61);
    for (number, row) in all.iter().enumerate() {
        let order = [2, 3, 0].map(|column| text(&row.values[column])).to_vec();
        let place = RowCursor { key: row.key.clone().expect("a key"), order };
        let rest = rows_from(&session, (&table, &snapshot), Some(place)).await;
        assert_eq!(rest, all[number..], "from row {number}");
    }
}

#[tokio::test]
async fn rows_of_a_transaction_without_versions_are_read_in_the_order_of_its_statements() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session
        .run("CREATE TABLE outbox (id text, kind text, version numeric, at timestamptz DEFAULT now())")
        .await;
    // Ids that fall, a statement with several rows, and savepoints.
    session
        .run(
            "BEGIN;
             INSERT INTO outbox (id, kind) VALUES ('f1', 'a');
             SAVEPOINT one;
             INSERT INTO outbox (id, kind) VALUES ('d2', 'a'), ('c3', 'a');
             RELEASE one;
             INSERT INTO outbox (id, kind) VALUES ('e4', 'a');
             INSERT INTO outbox (id, kind, version) VALUES ('b5', 'a', 1);
             INSERT INTO outbox (id, kind) VALUES ('a6', 'a');
             COMMIT",
        )
        .await;
    let columns = vec!["version".to_owned(), "at".to_owned()];
    let table = SourceTable { order: columns, ..outbox(&session).await };
    let snapshot = session.text("SELECT pg_current_snapshot()::text").await;
    let rows = rows_from(&session, (&table, &snapshot), None).await;
    let ids: Vec<_> = rows.iter().map(|row| text(&row.values[0]).expect("an id")).collect();
    let wanted = ["f1", "d2", "c3", "e4", "a6", "b5"];
    assert_eq!(ids, wanted, "rows without a version are first");
    // A place contains only stored columns, so it begins with the first of equal rows.
    let order = [2, 3].map(|column| text(&rows[3].values[column])).to_vec();
    let place = RowCursor { key: rows[3].key.clone().expect("a key"), order };
    assert_eq!(rows_from(&session, (&table, &snapshot), Some(place)).await, rows);
}

#[tokio::test]
async fn bytes_that_are_not_utf8_are_read_where_the_server_knows_no_encoding() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    let name = format!("{}_ascii", database.name());
    let create =
        format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
    session.run(&create).await;
    let mut config: tokio_postgres::Config = database.url().parse().expect("a url");
    config.dbname(&name);
    {
        let ascii = TestClient::open(&config).await.expect("a connection");
        ascii
            .run("CREATE TABLE outbox (id text, kind char(4), version numeric, at timestamptz)")
            .await;
        ascii
            .run(
                "INSERT INTO outbox VALUES ('e1', 'a', 1, NULL),
                 ('e2', 'b', 2, NULL), (convert_from('\\xff61', 'SQL_ASCII'), 'a', 3, NULL)",
            )
            .await;
        let (table, snapshot) =
            (outbox(&ascii).await, ascii.text("SELECT pg_current_snapshot()::text").await);
        let rows = rows_from(&ascii, (&table, &snapshot), None).await;
        let ids: Vec<_> = rows.iter().map(|row| row.values[0].clone()).collect();
        let ids_wanted = [&b"e1"[..], b"\xffa", b"e2"].map(|id| SourceValue::Text(id.to_vec()));
        assert_eq!(ids, ids_wanted);
        assert_eq!(text(&rows[0].values[1]).as_deref(), Some("a   "));
        // The key has the text that the stream has, as the value above.
        assert_eq!(rows[2].key.as_ref().map(|key| key.aggregate_id.as_str()), Some("b   "));
    }
    session.run(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

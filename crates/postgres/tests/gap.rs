//! Which rows a new slot does not stream: exactly those that its snapshot sees, whoever writes meanwhile.

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use futures_util::TryStreamExt as _;
use pgoutput_parser::Column;
use support::Session;
use tokio_postgres::SimpleQueryMessage;
use walrelay_postgres::{Gap, GapTable, QualifiedName, Scope, SettledRows, read_columns};
use walrelay_testkit::postgres::{TestDatabase, installed_majors};

const EVENTS: &str = "CREATE TABLE events (id int PRIMARY KEY)";

async fn events(session: &Session) -> GapTable {
    let name = QualifiedName::new("public", "events");
    let (oid, columns) = read_columns(session, &name).await.expect("columns");
    GapTable {
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

async fn count(session: &Session, snapshot: &str, settled: SettledRows) -> u64 {
    let table = events(session).await;
    let gap = Gap { snapshot: snapshot.to_owned(), settled, scope: Scope::default() };
    gap.count(session, &table).await.expect("a count")
}

/// A session with an open transaction that has an id.
async fn writer(database: &TestDatabase) -> Session {
    let session = Session::on(database).await;
    session.run("BEGIN; SELECT pg_current_xact_id()").await;
    session
}

#[tokio::test]
async fn a_row_that_the_snapshot_sees_is_read_however_many_transactions_have_begun_since() {
    for major in installed_majors() {
        let Some(database) = TestDatabase::create_on(major).await else { continue };
        let session = Session::on(&database).await;
        session.run(EVENTS).await;
        let horizon = session.text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").await;
        let below = SettledRows::Below(horizon.parse().expect("an id"));
        // One that runs while the snapshot is taken, and one row of a transaction behind it.
        let running = writer(&database).await;
        session.run("INSERT INTO events VALUES (1)").await;
        let snapshot = session.text("SELECT pg_current_snapshot()::text").await;
        let mut later = Vec::new();
        for begun in 0..4 {
            assert_eq!(
                count(&session, &snapshot, below.clone()).await,
                1,
                "{major}, {begun} begun"
            );
            assert_eq!(count(&session, &snapshot, SettledRows::None).await, 1, "{major}, {begun}");
            later.push(writer(&database).await);
        }
        // What the snapshot does not see is streamed, and not read here: neither what ran nor what began.
        running.run("INSERT INTO events VALUES (2); COMMIT").await;
        for (number, writer) in (3..).zip(&later) {
            writer.run(&format!("INSERT INTO events VALUES ({number}); COMMIT")).await;
        }
        assert_eq!(count(&session, &snapshot, below).await, 1, "{major}");
        assert_eq!(count(&session, &snapshot, SettledRows::None).await, 1, "{major}");
        database.drop_all().await;
    }
}

#[tokio::test]
async fn a_value_that_is_too_large_is_measured_by_the_server_and_not_read() {
    for major in installed_majors() {
        let Some(database) = TestDatabase::create_on(major).await else { continue };
        let session = Session::on(&database).await;
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
        let table = GapTable { order: vec!["id".to_owned()], ..events(&session).await };
        let gap = Gap { snapshot, settled: SettledRows::None, scope: Scope::default() };
        let rows = gap.rows(&session, &table).await.expect("rows");
        let messages: Vec<_> = rows.try_collect().await.expect("rows");
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(table.values(row).expect("values")),
            _ => None,
        });
        let rows: Vec<_> = rows.collect();
        let text = Column::Text;
        assert_eq!(rows[0], [text(b"1"), text(b"small"), text(b"\\x726177"), text(b"{\"a\": 1}")]);
        let (note, payload) =
            (Column::TooLarge { bytes: 10_000_001 }, Column::TooLarge { bytes: 10_000_009 });
        assert_eq!(rows[1], [text(b"2"), note, Column::Null, payload], "{major}");
        let (note, raw) = ("x".repeat(10_000_000), Column::TooLarge { bytes: 20_000_004 });
        assert_eq!(rows[2], [text(b"3"), text(note.as_bytes()), raw, text(b"null")], "{major}");
        database.drop_all().await;
    }
}

//! Which rows a new slot does not stream: exactly those that its snapshot sees, whoever writes meanwhile.

use walrelay_outbox_admin::{Gap, GapTable, Scope, SettledRows, read_columns};
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase, installed_majors};

const EVENTS: &str = "CREATE TABLE events (id int PRIMARY KEY)";

async fn count(session: &TestClient, snapshot: &str, settled: SettledRows) -> u64 {
    let name = QualifiedName::new("public", "events");
    let (oid, columns) = read_columns(session, &name).await.expect("columns");
    let table = GapTable {
        name,
        oid,
        columns,
        aggregate_type: None,
        aggregate_id: None,
        order: Vec::new(),
        id: "id".to_owned(),
        occurred_at: None,
        row_filter: None,
    };
    let gap = Gap { snapshot: snapshot.to_owned(), settled, scope: Scope::default() };
    gap.count(session, &table).await.expect("a count")
}

/// A session with an open transaction that has an id.
async fn writer(database: &TestDatabase) -> TestClient {
    let session = database.connect().await;
    session.run("BEGIN; SELECT pg_current_xact_id()").await;
    session
}

#[tokio::test]
async fn a_row_that_the_snapshot_sees_is_read_however_many_transactions_have_begun_since() {
    for major in installed_majors() {
        let Some(database) = TestDatabase::create_on(major).await else { continue };
        let session = database.connect().await;
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

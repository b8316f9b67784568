//! Events are written in the caller's transaction, for each payload type, with both drivers.

use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use walrelay_outbox::{Emitted, Event, Outbox};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

const APP_OUTBOX: &str = include_str!("../../../../migrations/0001_app_outbox.sql");
const PRODUCER: &str = include_str!("../../../../migrations/0003_producer.sql");

const PAYLOAD_TYPES: [(&str, &str); 4] = [
    ("jsonb", "payload::text"),
    ("json", "payload::text"),
    ("text", "payload"),
    ("bytea", "convert_from(payload, 'UTF8')"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

/// A session of one of the drivers.
enum Producer {
    TokioPostgres(TestClient),
    Sqlx(PgConnection),
}

impl Producer {
    async fn both(database: &TestDatabase) -> [Self; 2] {
        let sqlx = PgConnection::connect(database.url()).await.expect("a connection");
        [Self::TokioPostgres(database.connect().await), Self::Sqlx(sqlx)]
    }

    /// Writes events in one transaction. An error is returned as its SQLSTATE.
    async fn emit(
        &mut self,
        outbox: &Outbox,
        events: &[&Event<'_>],
        end: End,
    ) -> Result<Vec<i64>, String> {
        let mut versions = Vec::new();
        match self {
            Self::TokioPostgres(client) => {
                let transaction = client.transaction().await.expect("a transaction");
                for event in events {
                    versions.push(outbox.emit(&transaction, event).await.map_err(code)?);
                }
                match end {
                    End::Commit => transaction.commit().await.expect("a commit"),
                    End::RollBack => transaction.rollback().await.expect("a rollback"),
                }
            }
            Self::Sqlx(connection) => {
                let mut transaction = connection.begin().await.expect("a transaction");
                for event in events {
                    versions.push(outbox.emit(&mut *transaction, event).await.map_err(sqlx_code)?);
                }
                match end {
                    End::Commit => transaction.commit().await.expect("a commit"),
                    End::RollBack => transaction.rollback().await.expect("a rollback"),
                }
            }
        }
        Ok(versions)
    }

    /// Writes an event with an idempotency key, and commits.
    async fn emit_once(&mut self, outbox: &Outbox, event: &Event<'_>, key: &str) -> Emitted {
        match self {
            Self::TokioPostgres(client) => {
                let transaction = client.transaction().await.expect("a transaction");
                let emitted = outbox.emit_once(&transaction, event, key).await.expect("an event");
                transaction.commit().await.expect("a commit");
                emitted
            }
            Self::Sqlx(connection) => {
                let mut transaction = connection.begin().await.expect("a transaction");
                let emitted =
                    outbox.emit_once(&mut *transaction, event, key).await.expect("an event");
                transaction.commit().await.expect("a commit");
                emitted
            }
        }
    }
}

fn code(error: tokio_postgres::Error) -> String {
    error.code().expect("an error of the server").code().to_owned()
}

fn sqlx_code(error: sqlx::Error) -> String {
    let error = error.into_database_error().expect("an error of the server");
    error.code().expect("a SQLSTATE").into_owned()
}

async fn create_outbox(database: &TestDatabase, payload_type: &str) -> TestClient {
    let session = database.connect().await;
    let declared = "payload        jsonb";
    assert!(APP_OUTBOX.contains(declared));
    session.run(&APP_OUTBOX.replace(declared, &format!("payload {payload_type}"))).await;
    session.run(PRODUCER).await;
    session
}

#[tokio::test]
async fn an_event_is_committed_with_the_transaction_for_each_payload_type() {
    for (payload_type, shown) in PAYLOAD_TYPES {
        let Some(database) = TestDatabase::create_or_skip().await else { return };
        let session = create_outbox(&database, payload_type).await;
        for (id, mut producer) in ["A-1", "A-2"].into_iter().zip(Producer::both(&database).await) {
            let outbox = Outbox::default();
            let placed = Event::new("order", id, "OrderPlaced", &json!({ "total": 42 }))
                .expecting_version(0)
                .with_header("traceparent", "00-1-2-01")
                .with_schema_version(3);
            let paid = Event::new("order", id, "OrderPaid", &json!({}));
            let undone = producer.emit(&outbox, &[&placed, &paid], End::RollBack).await;
            let done = producer.emit(&outbox, &[&placed, &paid], End::Commit).await;
            assert_eq!([undone, done], [Ok(vec![1, 2]), Ok(vec![1, 2])], "{payload_type}");
            let row = format!(
                "SELECT string_agg(concat_ws(' ', version, schema_version, headers ->> 'traceparent',
                                             replace({shown}, ' ', '')), ', ' ORDER BY version)
                   FROM app_outbox WHERE aggregateid = '{id}'"
            );
            let rows = r#"1 3 00-1-2-01 {"total":42}, 2 1 {}"#;
            assert_eq!(session.text(&row).await, rows, "{payload_type}");

            let late = Event::new("order", id, "OrderPaid", &json!({})).expecting_version(7);
            let conflict = producer.emit(&outbox, &[&late], End::Commit).await;
            assert_eq!(conflict, Err("PT409".to_owned()));
        }
    }
}

#[tokio::test]
async fn a_repeated_key_returns_the_first_event() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = create_outbox(&database, "bytea").await;
    for (id, mut producer) in ["A-1", "A-2"].into_iter().zip(Producer::both(&database).await) {
        let event = Event::new("order", id, "OrderPlaced", vec![0_u8, 255]);
        let first = producer.emit_once(&Outbox::default(), &event, id).await;
        let second = producer.emit_once(&Outbox::default(), &event, id).await;
        assert!(first.is_new && !second.is_new);
        assert_eq!(first.event_id, second.event_id);
        assert_eq!(second.version, 1);
    }
    assert_eq!(
        session.text("SELECT string_agg(payload::text, ',') FROM app_outbox").await,
        r"\x00ff,\x00ff"
    );
}

#[tokio::test]
async fn an_outbox_in_a_schema_is_found_without_the_search_path() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session.run("CREATE SCHEMA \"My-Events\"").await;
    for file in [APP_OUTBOX, PRODUCER] {
        session.run(&file.replace("public.app_", "\"My-Events\".app_")).await;
    }
    let outbox = Outbox::in_schema("My-Events");
    for (id, mut producer) in ["A-1", "A-2"].into_iter().zip(Producer::both(&database).await) {
        let event = Event::new("order", id, "OrderPlaced", &json!({ "total": 42 }));
        assert_eq!(producer.emit(&outbox, &[&event], End::Commit).await, Ok(vec![1]));
        let emitted = producer.emit_once(&outbox, &event, id).await;
        assert_eq!((emitted.version, emitted.is_new), (2, true));
    }
    let rows = "SELECT count(*)::text FROM \"My-Events\".app_outbox";
    assert_eq!(session.text(rows).await, "4");
}

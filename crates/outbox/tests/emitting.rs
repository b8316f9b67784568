//! Events are written in the caller's transaction, for each payload type.

use serde_json::json;
use tokio_postgres::error::SqlState;
use walrelay_outbox::{Event, Outbox, emit, emit_once};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

const APP_OUTBOX: &str = include_str!("../../../migrations/0001_app_outbox.sql");
const PRODUCER: &str = include_str!("../../../migrations/0003_producer.sql");

/// Returns a database whose outbox has payloads of this type.
async fn outbox_of(payload_type: &str) -> Option<(TestDatabase, TestClient)> {
    let database = TestDatabase::create_or_skip().await?;
    let session = database.connect().await;
    let declared = "payload        jsonb";
    assert!(APP_OUTBOX.contains(declared));
    session.run(&APP_OUTBOX.replace(declared, &format!("payload {payload_type}"))).await;
    session.run(PRODUCER).await;
    Some((database, session))
}

#[tokio::test]
async fn an_event_is_committed_with_the_transaction_for_each_payload_type() {
    for (payload_type, shown) in [
        ("jsonb", "payload::text"),
        ("json", "payload::text"),
        ("text", "payload"),
        ("bytea", "convert_from(payload, 'UTF8')"),
    ] {
        let Some((_database, mut session)) = outbox_of(payload_type).await else { return };
        for is_committed in [false, true] {
            let transaction = session.transaction().await.unwrap();
            let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }))
                .expecting_version(0)
                .with_header("traceparent", "00-1-2-01")
                .with_schema_version(3);
            assert_eq!(emit(&transaction, &event).await.unwrap(), 1);
            match is_committed {
                true => transaction.commit().await.unwrap(),
                false => transaction.rollback().await.unwrap(),
            }
        }
        let row = format!(
            "SELECT concat_ws(' ', count(*), min(version), min(schema_version), min(headers ->> 'traceparent'),
                              replace(min({shown}), ' ', '')) FROM app_outbox"
        );
        assert_eq!(session.text(&row).await, r#"1 1 3 00-1-2-01 {"total":42}"#, "{payload_type}");

        let transaction = session.transaction().await.unwrap();
        let event = Event::new("order", "A-1", "OrderPaid", &json!({})).expecting_version(7);
        let conflict = emit(&transaction, &event).await.unwrap_err();
        assert_eq!(conflict.code(), Some(&SqlState::from_code("PT409")));
    }
}

#[tokio::test]
async fn a_repeated_key_returns_the_first_event() {
    let Some((_database, mut session)) = outbox_of("bytea").await else { return };
    let mut emitted = Vec::new();
    for _ in 0..2 {
        let transaction = session.transaction().await.unwrap();
        let event = Event::new("order", "A-1", "OrderPlaced", vec![0_u8, 255]);
        emitted.push(emit_once(&transaction, &event, "request-7").await.unwrap());
        transaction.commit().await.unwrap();
    }
    assert!(emitted[0].is_new && !emitted[1].is_new);
    assert_eq!(emitted[0].event_id, emitted[1].event_id);
    assert_eq!(emitted[1].version, 1);
    assert_eq!(
        session.text("SELECT string_agg(payload::text, ',') FROM app_outbox").await,
        r"\x00ff"
    );
}

#[tokio::test]
async fn an_outbox_in_a_schema_is_found_without_the_search_path() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let mut session = database.connect().await;
    session.run("CREATE SCHEMA \"My-Events\"").await;
    for file in [APP_OUTBOX, PRODUCER] {
        session.run(&file.replace("public.app_", "\"My-Events\".app_")).await;
    }
    let transaction = session.transaction().await.unwrap();
    let outbox = Outbox::in_schema("My-Events");
    let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }));
    assert_eq!(outbox.emit(&transaction, &event).await.unwrap(), 1);
    let emitted = outbox.emit_once(&transaction, &event, "request-7").await.unwrap();
    assert_eq!((emitted.version, emitted.is_new), (2, true));
    transaction.commit().await.unwrap();
    let rows = "SELECT count(*)::text FROM \"My-Events\".app_outbox";
    assert_eq!(session.text(rows).await, "2");
}

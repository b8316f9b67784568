//! The functions exist for each type that a payload column may have.

use tokio_postgres::error::SqlState;
use walrelay_outbox_store::migrate;
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// Payload types, and SQL that shows a payload as text.
const TYPES: [(&str, &str); 4] = [
    ("jsonb", "payload::text"),
    ("json", "payload::text"),
    ("text", "payload"),
    ("bytea", "convert_from(payload, 'UTF8')"),
];

/// Returns a migrated database whose outbox has a payload of this type.
async fn outbox_of(payload_type: &str) -> Option<(TestDatabase, TestClient)> {
    let database = TestDatabase::create_or_skip().await?;
    let session = database.connect().await;
    session
        .run(&format!(
            "CREATE TABLE app_outbox (
               id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
               aggregateid text NOT NULL, event_type text NOT NULL, version bigint NOT NULL,
               schema_version int NOT NULL DEFAULT 1, payload {payload_type} NOT NULL, headers jsonb,
               occurred_at timestamptz NOT NULL DEFAULT now())"
        ))
        .await;
    migrate(&session, &[QualifiedName::new("public", "app_outbox")])
        .await
        .expect("the migrations run");
    Some((database, session))
}

#[tokio::test]
async fn each_payload_type_has_the_functions() {
    for (payload_type, as_text) in TYPES {
        assert_functions(payload_type, as_text).await;
    }
}

async fn assert_functions(payload_type: &str, as_text: &str) {
    let Some((_database, session)) = outbox_of(payload_type).await else { return };
    session
        .run(
            r#"SELECT app_outbox_emit('order', '1', 'placed', '{"n": "\\"}');
                       SELECT app_outbox_emit_once('order', '2', 'placed', '{"n": 2}', 'key');
                       SELECT app_outbox_emit_once('order', '2', 'placed', '{"n": 2}', 'key');
                       CREATE TABLE items (id int PRIMARY KEY, name text);
                       INSERT INTO items VALUES (1, 'é\');
                       SELECT app_outbox_snapshot('items', 'item', 'id');
                       SELECT app_outbox_capture('items', 'item', 'id');
                       UPDATE items SET name = 'b'"#,
        )
        .await;
    let rows = format!(
                "SELECT string_agg(aggregateid || event_type || version || ' ' || {as_text}, ', '
                                   ORDER BY aggregatetype DESC, aggregateid, version) FROM app_outbox"
            );
    // An escape of bytea makes one backslash of two.
    let first = match payload_type {
        "bytea" => r"\",
        _ => r"\\",
    };
    let expected = format!(
        r#"1placed1 {{"n": "{first}"}}, 2placed1 {{"n": 2}}, 1snapshot1 {{"id": 1, "name": "é\\"}}, 1updated2 {{"id": 1, "name": "b"}}"#
    );
    assert_eq!(session.text(&rows).await, expected, "{payload_type}");
}

#[tokio::test]
async fn the_limit_counts_the_bytes_of_the_message() {
    for (payload_type, large) in [
        ("bytea", "convert_to(repeat('x', %), 'UTF8')"),
        ("text", "repeat('x', %)"),
        ("json", "to_json(repeat('x', % - 2))"),
    ] {
        let Some((_database, session)) = outbox_of(payload_type).await else { continue };
        let emit = |bytes: u32| {
            format!(
                "SELECT app_outbox_emit('o', '1', 'x', {})",
                large.replace('%', &bytes.to_string())
            )
        };
        session.run(&emit(9_850_000)).await;
        let error = session.batch_execute(&emit(9_850_001)).await.expect_err(payload_type);
        assert_eq!(error.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED), "{payload_type}");
    }
}

//! `app_outbox_emit` assigns consecutive versions without gaps, even with concurrent writers.

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_outbox_store::migrate;
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

use super::world::{refused, world};

#[tokio::test]
async fn versions_of_an_aggregate_have_no_gaps() {
    let Some(world) = world().await else { return };
    let emit = |id: &str| {
        format!("SELECT app_outbox_emit('order', '{id}', 'changed', '{{\"by\": \"{id}\"}}')::text")
    };
    assert_eq!(world.text(&emit("1")).await, "1");
    assert_eq!(world.text(&emit("2")).await, "1");
    world.run(&format!("BEGIN; {}; ROLLBACK", emit("1"))).await;
    assert_eq!(world.text(&emit("1")).await, "2");
    // Versions of rows that retention deleted are not used again.
    world.run("DELETE FROM app_outbox").await;
    assert_eq!(world.text(&emit("1")).await, "3");

    assert_eq!(world.outbox().await, [r#"order 1 changed 3 {"by": "1"}"#]);
}

#[tokio::test]
async fn the_whole_event_is_written() {
    let Some(world) = world().await else { return };
    world
        .run(
            "SELECT app_outbox_emit('order', '1', 'placed', '{\"total\": 3}',
               headers => '{\"traceparent\": \"00-1-2-01\"}', schema_version => 4)",
        )
        .await;
    let row = "SELECT concat_ws(' ', version, schema_version, headers, occurred_at = now() OR occurred_at < now()) FROM app_outbox";
    assert_eq!(world.text(row).await, r#"1 4 {"traceparent": "00-1-2-01"} t"#);
}

#[tokio::test]
async fn an_unexpected_version_is_a_conflict() {
    let Some(world) = world().await else { return };
    let emit = |expected: i32| {
        format!(
            "SELECT app_outbox_emit('order', '1', 'changed', '{{}}', expected_version => {expected})"
        )
    };
    world.run(&emit(0)).await;
    world.run(&emit(1)).await;
    for expected in [0, 1, 3] {
        let error = world.refused(&emit(expected)).await;
        // PostgREST answers a code PTxyz with the HTTP status xyz.
        assert_eq!(error.code(), &SqlState::from_code("PT409"));
        assert_eq!(error.message(), format!("order 1 is at version 2, not {expected}"));
    }
    world.run(&emit(2)).await;
    assert_eq!(world.outbox().await.len(), 3);
}

#[tokio::test]
async fn writers_at_the_same_time_take_turns() {
    let Some(world) = world().await else { return };
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        writers.spawn(write(world.session().await));
    }
    let conflicts: usize = writers.join_all().await.into_iter().sum();

    let row = "SELECT concat_ws(' ', count(*), count(DISTINCT version), min(version), max(version)) FROM app_outbox";
    assert_eq!(world.text(row).await, "200 200 1 200");
    assert_eq!(world.text("SELECT version::text FROM app_outbox_aggregate").await, "200");
    eprintln!("{conflicts} conflicts");
}

/// Writes 25 events, every second one only if the version is still the expected one. Returns the
/// number of conflicts.
async fn write(session: TestClient) -> usize {
    let mut conflicts = 0;
    for n in 0..25 {
        let expected = "(SELECT max(version) FROM app_outbox_aggregate WHERE aggregateid = 'hot')";
        let expected = if n % 2 == 0 { expected } else { "NULL" };
        let emit = format!("SELECT app_outbox_emit('order', 'hot', 'changed', '{{}}', {expected})");
        while let Err(error) = session.batch_execute(&emit).await {
            assert_eq!(error.code(), Some(&SqlState::from_code("PT409")), "{error:?}");
            conflicts += 1;
        }
    }
    conflicts
}

#[tokio::test]
async fn what_no_message_could_hold_is_refused_where_it_is_written() {
    let Some(world) = world().await else { return };
    for (id, payload, code) in [
        ("''", "'{}'", SqlState::INVALID_PARAMETER_VALUE),
        ("NULL", "'{}'", SqlState::INVALID_PARAMETER_VALUE),
        ("repeat('é', 513)", "'{}'", SqlState::INVALID_PARAMETER_VALUE),
        ("'1'", "to_jsonb(repeat('x', 9900000))", SqlState::PROGRAM_LIMIT_EXCEEDED),
        ("'1'", "NULL", SqlState::NOT_NULL_VIOLATION),
    ] {
        let error =
            world.refused(&format!("SELECT app_outbox_emit('order', {id}, 'x', {payload})")).await;
        assert_eq!(error.code(), &code, "{id} {payload}");
    }
    world.run("SELECT app_outbox_emit('order', repeat('é', 512), 'x', to_jsonb(repeat('x', 9800000)))").await;
    assert_eq!(world.text("SELECT count(*)::text FROM app_outbox_aggregate").await, "1");
}

#[tokio::test]
async fn nobody_may_call_it_without_a_grant_and_a_grant_is_enough() {
    let Some(world) = world().await else { return };
    let emit = "SELECT app_outbox_emit('order', '1', 'placed', '{}')";
    world
        .run(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('outbox_writer') IS NULL THEN CREATE ROLE outbox_writer LOGIN; END IF;
             END $$",
        )
        .await;
    let writer = TestClient::as_role(&world.database, "outbox_writer").await;
    assert_eq!(refused(&writer, emit).await.code(), &SqlState::INSUFFICIENT_PRIVILEGE);

    world.run("GRANT EXECUTE ON FUNCTION app_outbox_emit TO outbox_writer").await;
    writer.run(emit).await;

    // The function runs with the owner's privileges, so it must never run the caller's code. A
    // temporary type comes first in a search path that does not name pg_temp last.
    let grant = format!("GRANT TEMPORARY ON DATABASE {} TO outbox_writer", world.database.name());
    world.run(&grant).await;
    let intruder = TestClient::as_role(&world.database, "outbox_writer").await;
    intruder
        .run(
            "CREATE FUNCTION pg_temp.seize(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
               RAISE EXCEPTION 'seized by %', current_user; END $$;
             CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.seize(VALUE));
             CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (pg_temp.seize(VALUE::pg_catalog.text))",
        )
        .await;
    intruder.run(emit).await;
    world.run("DROP OWNED BY outbox_writer").await;
}

#[tokio::test]
async fn it_stands_beside_an_outbox_in_any_schema_and_not_beside_one_of_another_shape() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    session
        .run(
            "CREATE SCHEMA \"It's 100% \"\"odd\"\"\"; CREATE SCHEMA billing; CREATE SCHEMA old;
             CREATE TABLE old.app_outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)",
        )
        .await;
    let odd = QualifiedName::new("It's 100% \"odd\"", "app_outbox");
    let tables = [
        odd.clone(),
        QualifiedName::new("billing", "events"),
        QualifiedName::new("old", "app_outbox"),
    ];
    for _ in 0..2 {
        migrate(&session, &tables).await.unwrap();
    }

    let made = "SELECT string_agg(n.nspname || ' ' || c.relname, ', ') FROM pg_class c
                  JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'app_outbox_aggregate'";
    assert_eq!(session.text(made).await, "It's 100% \"odd\" app_outbox_aggregate");
    let schema = "\"It's 100% \"\"odd\"\"\"";
    session
        .run(&format!(
            "CREATE TABLE t (id int PRIMARY KEY);
             SELECT {schema}.app_outbox_capture('t', 'thing', 'id');
             INSERT INTO t VALUES (7);
             SELECT {schema}.app_outbox_emit('thing', '7', 'named', '{{}}')"
        ))
        .await;
    let events =
        format!("SELECT string_agg(event_type || version, ' ' ORDER BY version) FROM {odd}");
    assert_eq!(session.text(&events).await, "inserted1 named2");
}

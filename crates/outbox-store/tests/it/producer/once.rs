//! `app_outbox_emit_once` writes one event per idempotency key, also when transactions race.

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_core::Random;
use walrelay_testkit::postgres::TestClient;

use super::world::{ProducerDatabase, refused, world};

fn once(key: &str, arguments: &str) -> String {
    format!(
        "SELECT concat_ws(' ', version, is_new, event_id) FROM app_outbox_emit_once(
           'order', '1', 'placed', '{{}}', '{key}'{arguments})"
    )
}

#[tokio::test]
async fn the_same_key_returns_the_first_event_and_writes_nothing() {
    let Some(world) = world().await else { return };
    let first = world.text(&once("request-1", ", expected_version => 0")).await;
    assert!(first.starts_with("1 t "), "{first}");
    // The expected version was that of the first call.
    let repeated = world.text(&once("request-1", ", expected_version => 0")).await;
    assert_eq!(repeated, first.replace("1 t ", "1 f "));
    assert_eq!(world.text("SELECT id::text FROM app_outbox").await, first[4..]);

    let second = world.text(&once("request-2", ", headers => '{\"a\": \"b\"}'")).await;
    assert!(second.starts_with("2 t "), "{second}");
    assert_eq!(
        world.refused(&once("request-3", ", expected_version => 1")).await.code(),
        &SqlState::from_code("PT409")
    );
    // A refused call and a rolled back call leave their keys free.
    world.run(&format!("BEGIN; {}; ROLLBACK", once("request-3", ""))).await;
    let third = world.text(&once("request-3", "")).await;
    assert!(third.starts_with("3 t "), "{third}");
    // The key outlives the event, which retention deletes.
    world.run("DELETE FROM app_outbox").await;
    assert_eq!(world.text(&once("request-2", "")).await, second.replace("2 t ", "2 f "));
    assert_eq!(world.outbox().await.len(), 0);
}

#[tokio::test]
async fn a_key_of_another_event_is_an_error() {
    let Some(world) = world().await else { return };
    world.run(&once("request", "")).await;
    for event in ["'order', '2', 'placed'", "'video', '1', 'placed'", "'order', '1', 'paid'"] {
        let sql = format!("SELECT app_outbox_emit_once({event}, '{{}}', 'request')");
        let error = world.refused(&sql).await;
        assert_eq!(error.code(), &SqlState::UNIQUE_VIOLATION, "{event}");
        assert_eq!(error.message(), "idempotency key 'request' belongs to event placed of order 1");
    }
    for key in ["''", "NULL", "repeat('x', 1025)"] {
        let sql = format!("SELECT app_outbox_emit_once('order', '1', 'x', '{{}}', {key})");
        let error = world.refused(&sql).await;
        assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE, "{key}");
    }
}

#[tokio::test]
async fn fifty_sessions_with_one_key_write_one_event_at_every_isolation_level() {
    let Some(world) = world().await else { return };
    world.run("CREATE TABLE work (key text, session int)").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        assert_one_event(&world, level).await;
    }
}

async fn assert_one_event(world: &ProducerDatabase, level: &'static str) {
    let mut sessions = JoinSet::new();
    for number in 0..50 {
        sessions.spawn(work_once(world.session().await, level, number));
    }
    sessions.join_all().await;
    for (table, column) in [("work", "key"), ("app_outbox", "aggregateid")] {
        let count = format!("SELECT count(*)::text FROM {table} WHERE {column} = '{level}'");
        assert_eq!(world.text(&count).await, "1", "{table} at {level}");
    }
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The transaction is rolled back, even if it wrote an event.
    Undone,
    /// The transaction is committed, unless another session has done the work.
    Kept,
}

/// Does the same work as every other session, and undoes it if another session has done it. Three
/// of ten attempts are rolled back at random.
async fn work_once(session: TestClient, level: &str, number: u64) {
    let mut random = Random::new(number);
    loop {
        let ending = if random.next_u32() % 10 < 3 { Ending::Undone } else { Ending::Kept };
        match attempt(&session, (level, number), ending).await {
            Ok(()) if ending == Ending::Kept => return,
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
                session.run("ROLLBACK").await;
            }
        }
    }
}

async fn attempt(
    session: &TestClient,
    (level, number): (&str, u64),
    ending: Ending,
) -> Result<(), tokio_postgres::Error> {
    let change =
        format!("BEGIN ISOLATION LEVEL {level}; INSERT INTO work VALUES ('{level}', {number})");
    session.batch_execute(&change).await?;
    let emit = format!(
        "SELECT is_new FROM app_outbox_emit_once('order', '{level}', 'placed', '{{}}', 'key of {level}')"
    );
    let is_new: bool = session.query_one(&emit, &[]).await?.get(0);
    let is_kept = is_new && ending == Ending::Kept;
    session.batch_execute(if is_kept { "COMMIT" } else { "ROLLBACK" }).await
}

#[tokio::test]
async fn keyed_and_plain_events_of_one_aggregate_never_deadlock() {
    let Some(world) = world().await else { return };
    let mut writers = JoinSet::new();
    for number in 0..8 {
        writers.spawn(write_keys(world.session().await, number));
    }
    writers.join_all().await;
    let gaps =
        "SELECT count(*)::text FROM (SELECT max(version) <> count(*) AS has_gap FROM app_outbox
                  GROUP BY aggregateid) AS a WHERE has_gap";
    assert_eq!(world.text(gaps).await, "0");
    let keys = "SELECT count(*)::text FROM app_outbox_key";
    assert_eq!(world.text(keys).await, "60", "each key has one event");
}

/// Writes plain events, and events of keys that every writer uses, of three aggregates.
async fn write_keys(session: TestClient, number: u64) {
    let mut random = Random::new(number);
    for key in 0..60 {
        let id = key % 3;
        session
            .run(&format!(
                "SELECT app_outbox_emit_once('order', '{id}', 'keyed', '{{}}', 'key {key}')"
            ))
            .await;
        let plain_id = random.next_u32() % 3;
        session
            .run(&format!("SELECT app_outbox_emit('order', '{plain_id}', 'plain', '{{}}')"))
            .await;
    }
}

#[tokio::test]
async fn a_grant_on_the_function_is_enough() {
    let Some(world) = world().await else { return };
    world
        .run(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('outbox_once') IS NULL THEN CREATE ROLE outbox_once LOGIN; END IF;
             END $$",
        )
        .await;
    let writer = TestClient::as_role(&world.database, "outbox_once").await;
    let emit = once("k", "");
    assert_eq!(refused(&writer, &emit).await.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    world.run("GRANT EXECUTE ON FUNCTION app_outbox_emit_once TO outbox_once").await;
    writer.run(&emit).await;
    let keys = "SELECT * FROM app_outbox_key";
    assert_eq!(refused(&writer, keys).await.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    world.run("DROP OWNED BY outbox_once").await;
}

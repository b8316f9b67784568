//! `app_outbox_snapshot` writes one event for each existing row while producers keep writing.

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::seed::Seed;

use super::world::{ProducerDatabase, refused, world};

const STEP: &str =
    "SELECT is_done FROM app_outbox_snapshot('orders', 'order', 'id', batch_rows => 30)";

async fn with_orders(world: &ProducerDatabase, rows: u32) {
    world
        .run(&format!(
            "CREATE TABLE orders (id int PRIMARY KEY, n int NOT NULL, secret text);
             INSERT INTO orders SELECT i, 0, 'x' FROM generate_series(1, {rows}) AS i"
        ))
        .await;
}

async fn finish(session: &TestClient, step: &str) -> u32 {
    let mut steps = 1;
    while !session.query_one(step, &[]).await.expect(step).get::<_, bool>(0) {
        steps += 1;
    }
    steps
}

#[tokio::test]
async fn each_row_is_one_event_in_the_order_of_the_ids() {
    let Some(world) = world().await else { return };
    with_orders(&world, 95).await;
    world.run("SELECT app_outbox_emit('order', '7', 'placed', '{}')").await;
    let step = "SELECT is_done FROM app_outbox_snapshot('orders', 'order', 'id', event_type => 'imported',
                  columns => ARRAY['n'], condition => 'orders.n = 0 AND id <> 9 -- not 9', batch_rows => 30)";
    assert_eq!(finish(&world, step).await, 4);
    // A finished snapshot stays finished.
    assert_eq!(finish(&world, step).await, 1);

    let events = world.outbox().await;
    assert_eq!(events.len(), 1 + 93, "not 7, which has an event, and not 9");
    let ids: Vec<i32> =
        events[1..].iter().map(|one| one.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!(events[1], r#"order 1 imported 1 {"n": 0, "id": 1}"#);
    let progress = "SELECT concat_ws(' ', events, skipped, last_id, finished_at IS NOT NULL) FROM app_outbox_snapshot";
    assert_eq!(world.text(progress).await, "93 1 95 t");

    let all = "SELECT is_done FROM app_outbox_snapshot('orders', 'order', 'id', include_versioned => true)";
    finish(&world, all).await;
    assert_eq!(world.outbox().await.len(), 1 + 93 + 95);
}

#[tokio::test]
async fn a_table_that_cannot_be_read_completely_is_refused() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE TABLE plain (id int NOT NULL, other int UNIQUE, part int, name text PRIMARY KEY);
             CREATE UNIQUE INDEX ON plain (id) WHERE id > 0;
             CREATE UNIQUE INDEX ON plain (id, part);
             CREATE VIEW seen AS SELECT * FROM plain;
             CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)",
        )
        .await;
    for (arguments, problem) in [
        ("'plain', 't', 'id'", "has no unique index on column id alone"),
        ("'plain', 't', 'other'", "allows null in column other"),
        ("'plain', 't', 'missing'", "has no column missing"),
        ("'plain', 't', 'name', columns => '{absent}'", "has no column absent"),
        ("'seen', 't', 'id'", "is not a table, or has child tables"),
        ("'parent', 't', 'id'", "is not a table, or has child tables"),
    ] {
        let error = world.refused(&format!("SELECT app_outbox_snapshot({arguments})")).await;
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{arguments}");
        assert!(error.message().ends_with(problem), "{error}");
    }
    let error = world
        .refused("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT app_outbox_snapshot('plain', 't', 'name')")
        .await;
    assert_eq!(error.code(), &SqlState::ACTIVE_SQL_TRANSACTION);
    world.run("ROLLBACK").await;
}

#[tokio::test]
async fn row_level_security_that_may_hide_rows_is_refused() {
    let Some(world) = world().await else { return };
    with_orders(&world, 3).await;
    world
        .run(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('outbox_reader') IS NULL THEN CREATE ROLE outbox_reader LOGIN; END IF;
             END $$;
             GRANT SELECT ON orders TO outbox_reader;
             GRANT SELECT, INSERT, UPDATE ON app_outbox_snapshot TO outbox_reader;
             CREATE POLICY reader ON app_outbox_snapshot TO outbox_reader USING (true) WITH CHECK (true);
             GRANT EXECUTE ON FUNCTION app_outbox_snapshot, app_outbox_lock, app_outbox_emit, app_outbox_payload
                TO outbox_reader;
             CREATE POLICY own ON orders FOR SELECT TO outbox_reader USING (id = 1);
             ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        )
        .await;
    let reader = TestClient::as_role(&world.database, "outbox_reader").await;
    assert_eq!(refused(&reader, STEP).await.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    world.run("ALTER TABLE orders DISABLE ROW LEVEL SECURITY").await;
    finish(&reader, STEP).await;
    assert_eq!(world.outbox().await.len(), 3);
    world.run("DROP OWNED BY outbox_reader").await;
}

#[tokio::test]
async fn only_the_first_row_of_a_batch_waits_for_its_aggregate() {
    let Some(world) = world().await else { return };
    with_orders(&world, 10).await;
    world.run("SELECT app_outbox_emit('order', '9', 'placed', '{}'); DELETE FROM app_outbox").await;
    let (writer, second) = (world.session().await, world.session().await);
    // Aggregate 9 exists and is locked. Aggregate 4 is being inserted.
    for (session, id) in [(&writer, 4), (&second, 9)] {
        session
            .run(&format!("BEGIN; SELECT app_outbox_emit('order', '{id}', 'busy', '{{}}')"))
            .await;
    }
    world.run("SET lock_timeout = '7s'").await;
    let last = "SELECT last_id FROM app_outbox_snapshot('orders', 'order', 'id', include_versioned => true)";
    assert_eq!(world.text(last).await, "3");
    assert_eq!(world.text("SHOW lock_timeout").await, "7s");
    world.run("SET lock_timeout = '10ms'").await;
    let error = world.refused(last).await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "the first row waits");
    world.run("RESET lock_timeout").await;
    writer.run("COMMIT").await;
    assert_eq!(world.text(last).await, "8");
    second.run("ROLLBACK").await;
    assert_eq!(world.text(last).await, "10");
}

#[tokio::test]
async fn the_last_event_of_each_aggregate_is_its_row_while_writers_emit() {
    race(Writing::Emits).await;
}

#[tokio::test]
async fn the_last_event_of_each_aggregate_is_its_row_while_changes_are_captured() {
    race(Writing::IsCaptured).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Emits,
    IsCaptured,
}

const ROWS: u64 = 400;

/// Runs two snapshots of the same table beside four writers, and ends their sessions at random.
async fn race(writing: Writing) {
    let Some(world) = world().await else { return };
    with_orders(&world, 400).await;
    if writing == Writing::IsCaptured {
        world.run("SELECT app_outbox_capture('orders', 'order', 'id', ARRAY['n'])").await;
    }
    let mut writers = JoinSet::new();
    for number in 0..4 {
        writers.spawn(write(world.session().await, writing, number));
    }
    let mut seed = Seed::new(7);
    for _ in 0..6 {
        step_until_killed(&world, &mut seed).await;
    }
    let (one, other) = (world.session().await, world.session().await);
    tokio::join!(finish(&one, STEP), finish(&other, STEP));
    writers.join_all().await;
    assert_right(&world).await;
}

/// Reads batches in a session that another session ends at a random moment.
async fn step_until_killed(world: &ProducerDatabase, seed: &mut Seed) {
    let (stepper, killer) = (world.session().await, world.session().await);
    let pid = stepper.text("SELECT pg_backend_pid()::text").await;
    let kill = async {
        for _ in 0..seed.between(1, 40) {
            killer.run("SELECT 1").await;
        }
        killer.run(&format!("SELECT pg_terminate_backend({pid})")).await;
    };
    let steps = async { while stepper.query_one(STEP, &[]).await.is_ok() {} };
    tokio::join!(kill, steps);
}

/// Changes rows, some of them several in a transaction, in the order of their ids.
async fn write(session: TestClient, writing: Writing, number: u64) {
    let mut seed = Seed::new(number);
    for _ in 0..150 {
        let mut ids: Vec<u64> =
            (0..seed.between(1, 3)).map(|_| seed.between(1, ROWS + 20)).collect();
        ids.sort_unstable_by_key(ToString::to_string);
        ids.dedup();
        let mut sql = "BEGIN;".to_owned();
        for id in ids {
            let change = match seed.between(0, 9) {
                0 if id > ROWS => {
                    format!("INSERT INTO orders VALUES ({id}, 1) ON CONFLICT DO NOTHING;")
                }
                _ => format!("UPDATE orders SET n = n + 1 WHERE id = {id};"),
            };
            sql.push_str(&change);
            if writing == Writing::Emits {
                sql.push_str(&format!(
                    "SELECT app_outbox_emit('order', '{id}', 'changed', jsonb_build_object('n', n, 'id', id))
                       FROM orders WHERE id = {id};"
                ));
            }
        }
        session.run(&format!("{sql} COMMIT")).await;
    }
}

async fn assert_right(world: &ProducerDatabase) {
    let wrong = "SELECT concat_ws(' ', count(*), string_agg(o.id::text, ',')) FROM orders o
                   LEFT JOIN LATERAL (SELECT payload, version FROM app_outbox
                                       WHERE aggregateid = o.id::text ORDER BY version DESC LIMIT 1) AS last ON true
                  WHERE (last.payload ->> 'n')::int IS DISTINCT FROM o.n";
    assert_eq!(world.text(wrong).await, "0", "rows whose last event differs");
    let gaps = "SELECT count(*)::text FROM (SELECT max(version) <> count(*) OR min(version) <> 1 AS has_gap
                                              FROM app_outbox GROUP BY aggregateid) AS a WHERE has_gap";
    assert_eq!(world.text(gaps).await, "0");
    let repeated =
        "SELECT count(*)::text FROM (SELECT FROM app_outbox WHERE event_type = 'snapshot'
                      GROUP BY aggregateid HAVING count(*) > 1) AS a";
    assert_eq!(world.text(repeated).await, "0", "rows with two events of the snapshot");
}

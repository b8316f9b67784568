//! SQL on the outbox that the core set of tests repeats on every major version of Postgres.

use walrelay_testkit::checker::{self, Committed};
use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Runs every case on one relay and one table, and compares the published rows.
#[tokio::test]
async fn the_outbox_is_read_after_any_sql() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    let mut committed = Vec::new();
    let basics = Workload::of_rows(500).insert(world.client()).await.expect("rows are inserted");
    committed.extend(basics);
    committed.extend(inserted_and_deleted(&world).await);
    // The following cases leave their rows in the outbox, so the test reads the committed rows from
    // the table.
    savepoints(&world).await;
    copied(&world).await;
    columns_come_and_go(&world).await;
    large_and_compressible(&world).await;
    let known: std::collections::BTreeSet<String> =
        committed.iter().map(|row| row.event_id.clone()).collect();
    let rest = world.committed().await;
    committed.extend(rest.into_iter().filter(|row| !known.contains(&row.event_id)));

    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&committed);
    verdict.assert_exactly_once();
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

/// Inserts and deletes rows in one transaction. They are published although they never stay in the
/// table.
async fn inserted_and_deleted(world: &InboxDatabase) -> Vec<Committed> {
    world.execute("BEGIN").await;
    let sql = "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
               SELECT 'video', 'passing', 'test.inserted', 1000 + n, jsonb_build_object('n', n)
                 FROM generate_series(1, 50) AS n RETURNING id::text, aggregateid, payload::text";
    let rows = world.client().query(sql, &[]).await.expect("rows are inserted");
    world.execute("DELETE FROM app_outbox WHERE aggregateid = 'passing'; COMMIT").await;
    let committed = rows.iter().map(|row| Committed {
        event_id: row.get(0),
        key: row.get(1),
        data: row.get::<_, String>(2).into_bytes(),
    });
    committed.collect()
}

/// Inserts rows around a savepoint. Rows rolled back to the savepoint are not published, and all
/// others are.
async fn savepoints(world: &InboxDatabase) {
    let insert = |first: u32| {
        format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'saved', 'test.inserted', n, jsonb_build_object('n', n)
               FROM generate_series({first}, {first} + 9) AS n;"
        )
    };
    let (kept, gone, nested, last) = (insert(2_000), insert(2_100), insert(2_200), insert(2_300));
    world
        .execute(&format!(
            "BEGIN; {kept} SAVEPOINT a; {gone} ROLLBACK TO a; SAVEPOINT b; SAVEPOINT c; {nested}
             RELEASE b; {last} COMMIT"
        ))
        .await;
    assert_eq!(
        world.number("SELECT count(*) FROM app_outbox WHERE aggregateid = 'saved'").await,
        30
    );
}

/// Inserts rows by COPY, which writes many rows in one WAL record.
async fn copied(world: &InboxDatabase) {
    world
        .execute(
            "CREATE TEMP TABLE draft AS
               SELECT gen_random_uuid() AS id, 'video' AS aggregatetype, 'copied-' || n % 5 AS aggregateid,
                      'test.inserted' AS event_type, 3000 + n AS version, jsonb_build_object('n', n) AS payload
                 FROM generate_series(1, 2000) AS n",
        )
        .await;
    let path = std::env::temp_dir().join(format!("{}.copy", world.name()));
    let path = path.display();
    world
        .execute(&format!(
            "COPY (SELECT * FROM draft ORDER BY version) TO '{path}';
             COPY app_outbox (id, aggregatetype, aggregateid, event_type, version, payload) FROM '{path}'"
        ))
        .await;
    world.execute_on_server(&format!("rm {path}")).await;
}

/// Adds and drops columns. The relay reads columns by name from the latest Relation message.
async fn columns_come_and_go(world: &InboxDatabase) {
    let insert = |version: u32| {
        format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'altered', 'test.inserted', {version}, '{{\"n\": {version}}}');"
        )
    };
    let rows: Vec<String> = (6_000..6_006).map(insert).collect();
    world
        .execute(&format!(
            "{} ALTER TABLE app_outbox ADD COLUMN note text DEFAULT 'added'; {}
             ALTER TABLE app_outbox ADD COLUMN more int, ALTER COLUMN note DROP DEFAULT; {}
             BEGIN; {} ALTER TABLE app_outbox DROP COLUMN note; {} COMMIT;
             ALTER TABLE app_outbox DROP COLUMN more; {}",
            rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]
        ))
        .await;
}

/// Inserts compressed out-of-line rows of over a megabyte, whose payload size differs from their
/// size in the WAL.
async fn large_and_compressible(world: &InboxDatabase) {
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'large-' || n % 2, 'test.inserted', 7000 + n,
                    jsonb_build_object('n', n, 'compressible', repeat('x', 2000000))
               FROM generate_series(1, 4) AS n;
             INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'large-' || n % 2, 'test.inserted', 8000 + n,
                    jsonb_build_object('n', n, 'random',
                      (SELECT string_agg(md5(random()::text || i || n), '') FROM generate_series(1, 40000) AS i))
               FROM generate_series(1, 4) AS n",
        )
        .await;
}

#[tokio::test]
async fn a_partitioned_outbox_is_read_through_its_root() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world
        .execute(
            "CREATE TABLE app_outbox (
               id uuid NOT NULL DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
               aggregateid text NOT NULL, event_type text NOT NULL, version bigint NOT NULL,
               schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL, headers jsonb,
               occurred_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (version, id)
             ) PARTITION BY RANGE (version);
             CREATE TABLE app_outbox_low PARTITION OF app_outbox FOR VALUES FROM (MINVALUE) TO (50);
             -- The columns of a partition may stand in another order.
             CREATE TABLE app_outbox_high (
               version bigint NOT NULL, payload jsonb NOT NULL, headers jsonb, gone text,
               id uuid NOT NULL DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
               aggregateid text NOT NULL, event_type text NOT NULL,
               schema_version int NOT NULL DEFAULT 1, occurred_at timestamptz NOT NULL DEFAULT now());
             ALTER TABLE app_outbox_high DROP COLUMN gone;
             ALTER TABLE app_outbox ATTACH PARTITION app_outbox_high FOR VALUES FROM (50) TO (MAXVALUE)",
        )
        .await;
    world.succeed(["init"]).await;
    let relay = world.start_relay([]).await;
    let committed = Workload::of_rows(100).insert(world.client()).await.expect("rows are inserted");
    world.pubsub.wait_stored(DEADLINE, 100).await;
    world.wait_confirmed(DEADLINE).await;
    checker::check(&committed, &world.pubsub.stored()).assert_exactly_once();
    drop(relay);
}

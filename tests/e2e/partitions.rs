//! A partitioned outbox whose partitions are attached and removed under traffic. No row is lost or
//! reordered.

use std::time::Duration;

use walrelay_testkit::checker::{self, Committed};
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

/// The versions per partition, which the producer writes in about a second. Three partitions exist
/// in advance, for a busy machine.
const SPAN: u32 = 1_000;
/// The number of partitions that are attached and removed.
const PARTITIONS: u32 = 6;

/// The outbox, and `kept` for committed rows, because the rows disappear with their partitions.
const TABLES: &str = "
CREATE TABLE app_outbox (
  id uuid NOT NULL DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
  aggregateid text NOT NULL, event_type text NOT NULL, version bigint NOT NULL,
  schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL, headers jsonb,
  occurred_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (version, id)
) PARTITION BY RANGE (version);
CREATE TABLE kept (version bigint, event_id text, key text, data text);";

fn partition(n: u32) -> String {
    format!("outbox_{n}")
}

/// Attaches a partition as the manual recommends. `PARTITION OF` would lock the outbox until every
/// open transaction on it has ended.
async fn attach(world: &InboxDatabase, n: u32) {
    let (name, from, to) = (partition(n), n * SPAN, (n + 1) * SPAN);
    world
        .execute(&format!(
            "CREATE TABLE {name} (LIKE app_outbox INCLUDING ALL);
             ALTER TABLE app_outbox ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
        ))
        .await;
}

/// Copies the rows of a partition that receives no more writes into `kept`, and removes the
/// partition.
async fn remove(world: &InboxDatabase, n: u32) {
    let name = partition(n);
    let keep = "INSERT INTO kept SELECT version, id::text, aggregateid, payload::text FROM";
    world.execute(&format!("{keep} {name}")).await;
    let detach = format!("ALTER TABLE app_outbox DETACH PARTITION {name}");
    match n % 3 {
        0 => world.execute(&detach).await,
        1 => world.execute(&format!("{detach} CONCURRENTLY")).await,
        // Dropped while it is attached.
        _ => {}
    }
    world.execute(&format!("DROP TABLE {name}")).await;
}

async fn wait_written(producer: &Producer, rows: u32) {
    wait_until(DEADLINE, "the producer to write into the next partition", async || {
        (producer.rows_count() >= rows).then_some(())
    })
    .await;
}

async fn committed(world: &InboxDatabase) -> Vec<Committed> {
    let sql = "SELECT event_id, key, data FROM (
                 SELECT * FROM kept
                 UNION ALL SELECT version, id::text, aggregateid, payload::text FROM app_outbox) AS o
                ORDER BY version";
    let rows = world.client().query(sql, &[]).await.expect("the rows can be read");
    let row = |row: &tokio_postgres::Row| Committed {
        event_id: row.get(0),
        key: row.get(1),
        data: row.get::<_, String>(2).into_bytes(),
    };
    rows.iter().map(row).collect()
}

async fn come_and_go(world: &InboxDatabase) {
    world.execute(TABLES).await;
    for n in 0..3 {
        attach(world, n).await;
    }
    world.succeed(["init"]).await;
    let mut relay = world.start_relay([]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(10));
    for n in 0..PARTITIONS {
        attach(world, n + 3).await;
        if n == PARTITIONS / 2 {
            // Partitions with rows that the relay has not read from the WAL are also removed.
            assert_eq!(relay.terminate(DEADLINE).await, Some(0));
        }
        wait_written(&producer, (n + 1) * SPAN + 1).await;
        remove(world, n).await;
        if n == PARTITIONS - 2 {
            relay = world.start_relay([]).await;
        }
    }
    // The default partition accepts rows outside all other partitions.
    world.execute("CREATE TABLE outbox_other (LIKE app_outbox INCLUDING ALL)").await;
    world.execute("ALTER TABLE app_outbox ATTACH PARTITION outbox_other DEFAULT").await;
    wait_written(&producer, (PARTITIONS + 3) * SPAN + 100).await;
    producer.stop().await;
    let others = world.number("SELECT count(*) FROM outbox_other").await;
    assert!(others >= 100, "{others} rows are in the default partition");

    let committed = committed(world).await;
    world.pubsub.wait_stored(DEADLINE, committed.len() as u64).await;
    world.wait_confirmed(DEADLINE).await;
    assert!(committed.len() > ((PARTITIONS + 3) * SPAN) as usize);
    checker::check(&committed, &world.pubsub.stored()).assert_exactly_once();
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn partitions_attached_detached_and_dropped_under_traffic_lose_and_reorder_nothing() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    come_and_go(&world).await;
}

#[tokio::test]
async fn rows_that_a_partition_brings_along_are_not_published_and_those_written_to_it_are() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(TABLES).await;
    attach(&world, 0).await;
    world.succeed(["init"]).await;
    let relay = world.start_relay([]).await;
    let insert = |table: &str, version: u32| {
        format!(
            "INSERT INTO {table} (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v', 'made', {version}, '{{}}')"
        )
    };
    world.execute("CREATE TABLE outbox_1 (LIKE app_outbox INCLUDING ALL)").await;
    world.execute(&insert("outbox_1", 1000)).await;
    world
        .execute(
            "ALTER TABLE app_outbox ATTACH PARTITION outbox_1 FOR VALUES FROM (1000) TO (2000)",
        )
        .await;
    // Inserts into the partition itself and through the root.
    world.execute(&insert("outbox_1", 1001)).await;
    world.execute(&insert("app_outbox", 1002)).await;
    world.execute("ALTER TABLE app_outbox DETACH PARTITION outbox_1").await;
    world.execute(&insert("outbox_1", 1003)).await;
    world.execute(&insert("app_outbox", 1)).await;
    world.pubsub.wait_stored(DEADLINE, 3).await;
    world.wait_confirmed(DEADLINE).await;
    let messages = world.pubsub.emulator().published(&walrelay_tests::topic("video.events"));
    let versions: Vec<_> = messages.iter().filter_map(|m| m.attribute("version")).collect();
    assert_eq!(versions, ["1001", "1002", "1"]);
    let sources: Vec<_> = messages.iter().filter_map(|m| m.attribute("source")).collect();
    assert_eq!(sources, ["public.app_outbox"; 3]);
    drop(relay);
}

#[tokio::test]
async fn a_partition_whose_rows_are_not_in_the_wal_is_refused() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(TABLES).await;
    attach(&world, 0).await;
    world.succeed(["init"]).await;
    world.execute("ALTER TABLE outbox_0 SET UNLOGGED").await;
    for command in [&["check"][..], &["run", "--until-caught-up"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("are unlogged"), "{command:?}: {}", refused.text);
        assert!(
            refused.text.contains("ALTER TABLE public.outbox_0 SET LOGGED"),
            "{}",
            refused.text
        );
    }
    world.execute("ALTER TABLE outbox_0 SET LOGGED").await;
    world.catch_up().await;
}

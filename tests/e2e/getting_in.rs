//! The ways from an existing system: snapshots of business tables, outboxes that were polled
//! before, and events with idempotency keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

/// The rows of the business table.
const ROWS: u64 = 12_000;

const SNAPSHOT: [&str; 8] = [
    "snapshot",
    "videos",
    "--aggregate-type",
    "video",
    "--aggregate-id",
    "id",
    "--yes",
    "--columns=n",
];

async fn with_videos(world: &InboxDatabase) {
    world
        .execute(&format!(
            "CREATE TABLE videos (id int PRIMARY KEY, n int NOT NULL, secret text);
             INSERT INTO videos SELECT i, 0, 'x' FROM generate_series(1, {ROWS}) AS i;
             SELECT app_outbox_capture('videos', 'video', 'id', ARRAY['n'])"
        ))
        .await;
}

/// Changes rows, inserts some and deletes some, until it is aborted.
async fn change(session: TestClient) {
    let mut seed = Seed::new(11);
    loop {
        let id = seed.between(1, ROWS + 100);
        let sql = match seed.between(0, 9) {
            0 => format!("DELETE FROM videos WHERE id = {id}"),
            1 => format!("INSERT INTO videos VALUES ({id}, 1) ON CONFLICT DO NOTHING"),
            _ => format!("UPDATE videos SET n = n + 1 WHERE id = {id}"),
        };
        session.run(&sql).await;
    }
}

/// Returns the table as a consumer builds it from the topic. Deleted rows are absent.
fn projection(world: &InboxDatabase) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    for message in world.pubsub.emulator().published(&topic("video.events")) {
        let key = message.key().to_owned();
        match message.attribute("event_type") {
            Some("deleted") => drop(rows.remove(&key)),
            _ => drop(rows.insert(key, String::from_utf8_lossy(&message.data()).into_owned())),
        }
    }
    rows
}

#[tokio::test]
async fn a_snapshot_with_kills_beside_a_writer_makes_a_projection_equal_to_the_table() {
    let Some(world) = InboxDatabase::create().await else { return };
    with_videos(&world).await;
    let mut writer = JoinSet::new();
    writer.spawn(change(world.connect().await));
    for kill in 1..=2 {
        let mut running = world.command(SNAPSHOT).start();
        let goal = kill * 3_000;
        wait_until(DEADLINE, "events of the snapshot", async || {
            let done = "SELECT coalesce(max(events + skipped), 0) FROM app_outbox_snapshot";
            (world.number(done).await >= goal).then_some(())
        })
        .await;
        running.kill();
    }
    let unfinished = "SELECT count(*) FROM app_outbox_snapshot WHERE finished_at IS NULL";
    assert_eq!(world.number(unfinished).await, 1, "the kills came in the middle");
    let told = world.succeed(SNAPSHOT).await;
    assert!(told.contains("finished: "), "{told}");
    writer.shutdown().await;

    world.catch_up().await;
    let rows = "SELECT id::text, jsonb_build_object('id', id, 'n', n)::text FROM videos";
    let rows = world.client().query(rows, &[]).await.expect("the table");
    let table: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(projection(&world), table);
    // A finished snapshot is not repeated.
    let before = world.number("SELECT count(*) FROM app_outbox").await;
    let again = world.succeed(SNAPSHOT).await;
    assert!(again.contains("finished: 0 event(s) written by this run"), "{again}");
    world.succeed(SNAPSHOT.into_iter().chain(["--restart"])).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, before);
}

#[tokio::test]
async fn a_dry_run_of_a_snapshot_counts_and_writes_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    with_videos(&world).await;
    world.execute("UPDATE videos SET n = 1 WHERE id <= 10").await;
    let dry =
        ["snapshot", "videos", "--aggregate-type", "video", "--aggregate-id", "id", "--dry-run"];
    let told = world.succeed(dry.into_iter().chain(["--where", "id <= 25"])).await;
    assert!(told.contains("would write at most 15 event(s) for the 25 row(s) of videos"), "{told}");
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 10);
    // Without a terminal, the command needs --yes.
    let asked = world.run(SNAPSHOT.into_iter().filter(|argument| *argument != "--yes")).await;
    assert_eq!(asked.code, Some(2), "{}", asked.text);
    let arguments =
        ["snapshot", "nowhere", "--aggregate-type", "v", "--aggregate-id", "x", "--yes"];
    let refused = world.run(arguments).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(
        refused.text.contains("nowhere") && refused.text.contains("does not exist"),
        "{}",
        refused.text
    );
}

#[tokio::test]
async fn an_event_with_a_used_idempotency_key_is_not_written_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let emit =
        ["emit", "video", "v-1", "Published", "{}", "--idempotency-key", "request-7", "-o", "json"];
    let first: serde_json::Value = serde_json::from_str(&world.succeed(emit).await).expect("JSON");
    let again: serde_json::Value = serde_json::from_str(&world.succeed(emit).await).expect("JSON");
    assert_eq!((&first["is_new"], &again["is_new"]), (&true.into(), &false.into()));
    assert_eq!(first["event_id"], again["event_id"]);
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 1);
}

/// An outbox that a program polls, with the mark of published rows.
const POLLED: &str = "CREATE TABLE app_outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
    event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1,
    payload jsonb NOT NULL, headers jsonb,
    occurred_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)";

#[tokio::test]
async fn a_polled_outbox_is_cut_over_under_traffic_without_a_gap_or_an_overlap() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(POLLED).await;
    Workload::of_rows(600).insert(world.client()).await.expect("rows");
    let producer = Producer::start(world.url(), Duration::from_millis(5));
    wait_until(DEADLINE, "rows of the producer", async || {
        (producer.rows_count() > 100).then_some(())
    })
    .await;
    // The old publisher has published half of the rows, and is stopped.
    let publish = "UPDATE app_outbox SET published_at = now() WHERE version % 2 = 0";
    world.execute(publish).await;

    let earlier = world.number("SELECT count(*) FROM app_outbox WHERE published_at IS NOT NULL");
    let taken = format!("never {} for which it is false and 0 for which it is null", earlier.await);
    // The last columns are never null, by a constraint of the table and by a domain.
    world
        .execute(
            "CREATE DOMAIN mark AS text CHECK (VALUE <> '') NOT NULL; CREATE DOMAIN deep_mark AS mark;
             ALTER TABLE app_outbox ADD checked text DEFAULT 'x' CHECK (checked IS NOT NULL),
               ADD by_domain deep_mark DEFAULT 'x'",
        )
        .await;
    for (column, says) in [
        ("sent_at", "has no column"),
        ("published_at", &*taken),
        ("occurred_at", "is never null"),
        ("checked", "is never null"),
        ("by_domain", "is never null"),
    ] {
        let refused = world.run(["init", "--backfill", "--unpublished-column", column]).await;
        assert_eq!(refused.code, Some(2), "{column}: {}", refused.text);
        assert!(refused.text.contains(says), "{column}: {}", refused.text);
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        assert_eq!(world.number(slots).await, 0, "{column}");
    }
    let init = ["init", "--backfill", "--unpublished-column", "published_at", "--yes"];
    world.succeed(init).await;
    let goal = producer.rows_count() + 100;
    wait_until(DEADLINE, "rows behind the slot", async || {
        (producer.rows_count() > goal).then_some(())
    })
    .await;
    let mut relay = world.relay([]).start();
    world.pubsub.wait_stored(DEADLINE, 50).await;
    relay.kill();
    // A second run neither changes the rows to publish nor begins a second backfill.
    world.run(init).await;
    producer.stop().await;
    world.catch_up().await;

    let rows = "SELECT id::text FROM app_outbox WHERE published_at IS NULL";
    let rows = world.client().query(rows, &[]).await.expect("the outbox");
    let unpublished: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let published: BTreeSet<String> =
        messages.iter().filter_map(|m| m.attribute("event_id").map(str::to_owned)).collect();
    assert_eq!(published, unpublished);
}

#[tokio::test]
async fn a_snapshot_with_a_wrong_column_names_the_options_to_change() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE people (id text PRIMARY KEY, name text)").await;
    let snapshot = ["snapshot", "people", "--aggregate-type", "person", "--yes", "--aggregate-id"];
    for (rest, problem) in [
        (vec!["id", "--where", "nme = 'a'"], "nme"),
        (vec!["nope"], "nope"),
        (vec!["id", "--columns", "nme"], "has no column nme"),
        (vec!["name"], "allows null in column name"),
    ] {
        let refused = world.run(snapshot.into_iter().chain(rest)).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        for part in [problem, "--aggregate-id"] {
            assert!(refused.text.contains(part), "{part}: {}", refused.text);
        }
        for other in ["walrelay init", "walrelay check"] {
            assert!(!refused.text.contains(other), "{other}: {}", refused.text);
        }
    }
}

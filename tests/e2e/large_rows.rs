//! Rows far beyond Pub/Sub's message limit. The relay skips over their data in bounded memory,
//! records them as dead, and blocks no other row.

use std::time::Duration;

use serde_json::Value;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Relay;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Less than half of the memory limit in the shipped manifests, and less than twice the size of the
/// row.
const MEMORY_MAX_BYTES: u64 = 200 << 20;

/// The server needs time to compress, decode and send the row.
const LARGE_ROW_DEADLINE: Duration = Duration::from_secs(120);

const LARGE: &str = "00000000-0000-4000-8000-00000000b16b";

/// Inserts a row of 140 MB that the server generates.
async fn insert_large(world: &InboxDatabase) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{LARGE}', 'video', 'v-0', 'test.large', 20,
                     jsonb_build_object('x', repeat('x', 140000000)))"
        ))
        .await;
}

fn assert_light(relay: &Relay) {
    let Some(peak) = relay.peak_memory_bytes() else { return };
    eprintln!("peak memory of the relay: {} MiB", peak >> 20);
    assert!(peak < MEMORY_MAX_BYTES, "the relay took {} MiB", peak >> 20);
}

async fn json(world: &InboxDatabase, arguments: &[&str]) -> Value {
    let text = world.succeed(arguments.iter().copied()).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks that the row is recorded with its identity and without its payload.
async fn assert_recorded_without_payload(world: &InboxDatabase) {
    let row = json(world, &["dispatch", "show", LARGE, "--output", "json"]).await;
    assert_eq!(row["status"], "dead", "{row}");
    assert_eq!(row["error_code"], "TOO_LARGE", "{row}");
    let lacks = &row["message"]["lacks"][0];
    assert_eq!((&lacks["part"], &lacks["bytes"]), (&"data".into(), &140_000_009.into()), "{row}");
    assert_eq!(row["message"]["data"], Value::Null, "{row}");
    assert_eq!(row["message"]["attributes"]["event_id"], LARGE, "{row}");
    assert!(row["message_bytes"].as_u64().is_some_and(|bytes| bytes < 1_000), "{row}");
    let error = row["last_error"].as_str().unwrap_or_default();
    let cause = "column \"payload\" of public.app_outbox has 140000009 bytes";
    assert!(error.contains(cause), "{error}");
}

#[tokio::test]
async fn a_row_of_140_megabytes_is_dead_in_bounded_memory_and_its_neighbours_are_published() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();
    insert_large(&world).await;
    let rest = Workload { first_number: 21, ..Workload::of_rows(20) };
    rest.insert(world.client()).await.unwrap();

    world.wait_dispatch(LARGE_ROW_DEADLINE, "dead", 1).await;
    world.pubsub.wait_stored(DEADLINE, 40).await;
    world.wait_confirmed(DEADLINE).await;
    assert_light(&relay);
    let verdict = world.check(&world.committed().await);
    assert_eq!((verdict.lost.len(), verdict.reordered.len()), (1, 0), "{verdict}");
    assert_recorded_without_payload(&world).await;

    // A retry would publish the event without its payload, so it is refused.
    let refused = world.run(["dispatch", "retry", LARGE]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("--payload-file"), "{}", refused.text);
    let left = world.succeed(["dispatch", "retry", "--yes", "--all-dead"]).await;
    assert!(left.contains("0 row(s) are due now\n1 row(s) are left as they are"), "{left}");
    // A retry by a manual UPDATE has the same result.
    world
        .execute("UPDATE app_outbox_dispatch SET status = 'retrying', next_attempt_at = now()")
        .await;
    world.execute(&format!("NOTIFY walrelay_dispatch, '{}'", world.name())).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    assert_eq!(world.pubsub.stored_count(), 40);

    let payload = std::env::temp_dir().join(format!("{}-payload.json", world.name()));
    std::fs::write(&payload, "{\"see\": \"gs://bucket/object\"}").unwrap();
    let edited = ["dispatch", "edit", LARGE, "--payload-file", payload.to_str().unwrap()];
    let edited = world.run(edited).await;
    std::fs::remove_file(&payload).unwrap();
    assert_eq!(edited.code, Some(0), "{}", edited.text);
    world.wait_dispatch(DEADLINE, "published", 1).await;
    world.pubsub.wait_stored(DEADLINE, 41).await;
}

#[tokio::test]
async fn a_row_of_140_megabytes_is_not_read_from_the_table_and_its_neighbours_are_backfilled() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init"]).await;
    world.succeed(["slot", "drop", "--yes"]).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();
    insert_large(&world).await;
    world.succeed(["init", "--backfill"]).await;
    let relay = world.start_relay([]).await;

    world.wait_dispatch(LARGE_ROW_DEADLINE, "dead", 1).await;
    world.pubsub.wait_stored(DEADLINE, 20).await;
    world.wait_confirmed(DEADLINE).await;
    assert_light(&relay);
    assert_recorded_without_payload(&world).await;
    let traced = world.run(["trace", LARGE]).await.text;
    assert!(traced.contains("TOO_LARGE") || traced.contains("dead"), "{traced}");
}

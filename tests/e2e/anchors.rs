//! Anchors: creation at the slot's position, display with their cost, advance and drop. Creation is
//! refused when WAL headroom is short.

use serde_json::Value;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

async fn listed(world: &InboxDatabase) -> Vec<Value> {
    let text = world.succeed(["anchor", "list", "--output", "json"]).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn slots(world: &InboxDatabase) -> i64 {
    world
        .number("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
        .await
}

#[tokio::test]
async fn an_anchor_keeps_the_slots_position_until_it_is_moved_or_dropped() {
    let Some(world) = InboxDatabase::create().await else { return };
    // The slot may be active.
    let relay = world.start_relay([]).await;
    let created = world.succeed(["anchor", "create", "daily"]).await;
    assert!(created.contains(&format!("slot {}_anchor_daily", world.name())), "{created}");
    let before = listed(&world).await;
    Workload::of_rows(500).insert(world.client()).await.expect("rows");
    world.wait_confirmed(DEADLINE).await;

    let after = listed(&world).await;
    assert_eq!(after.len(), 1, "{after:?}");
    assert_eq!(after[0]["anchor"], "daily");
    assert_eq!(after[0]["confirmed_flush_lsn"], before[0]["confirmed_flush_lsn"]);
    let (was, is) = (before[0]["retained_bytes"].as_u64(), after[0]["retained_bytes"].as_u64());
    assert!(is > was, "{was:?} {is:?}");
    assert!(after[0]["reaches_back_to"].is_string(), "{after:?}");

    world.succeed(["anchor", "advance", "--yes", "daily"]).await;
    let moved = listed(&world).await;
    assert_ne!(moved[0]["confirmed_flush_lsn"], before[0]["confirmed_flush_lsn"]);
    // Slots never move backwards.
    let position = before[0]["confirmed_flush_lsn"].as_str().unwrap().to_owned();
    let back = world.run(["anchor", "advance", "--yes", "daily", "--to-lsn", &position]).await;
    assert_eq!(back.code, Some(2), "{}", back.text);

    assert!(world.succeed(["anchor", "drop", "--yes", "daily"]).await.contains("dropped"));
    assert_eq!(slots(&world).await, 1, "the slot itself is left");
    assert!(world.succeed(["anchor", "list"]).await.contains("no anchor"));
    drop(relay);
}

#[tokio::test]
async fn a_running_relay_notes_times_so_that_an_anchor_can_be_moved_to_one() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    wait_until(DEADLINE, "a time to be noted", async || {
        (world.number("SELECT count(*) FROM app_outbox_relay_time").await > 0).then_some(())
    })
    .await;
    // Simulates a relay that has run for hours.
    world
        .execute("UPDATE app_outbox_relay_time SET noted_at = noted_at - interval '3 hours'")
        .await;
    world.wait_confirmed(DEADLINE).await;

    world.succeed(["anchor", "advance", "--yes", "a", "--to-time", "1h"]).await;
    let unknown = world.run(["anchor", "advance", "--yes", "a", "--to-time", "30d"]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.text);
    assert!(unknown.text.contains("no position is known from"), "{}", unknown.text);
    assert!(unknown.text.contains("the earliest known one is "), "{}", unknown.text);
    assert!(unknown.text.contains("walrelay replay start --source table"), "{}", unknown.text);
}

#[tokio::test]
async fn an_anchor_is_refused_when_slots_or_wal_headroom_are_short() {
    let Some(installation) = installation_or_skip() else { return };
    let settings = [
        ("wal_level", "logical"),
        ("max_replication_slots", "2"),
        ("max_wal_size", "512MB"),
        ("max_slot_wal_keep_size", "128MB"),
    ];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let Some(world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    assert!(world.succeed(["anchor", "create", "a"]).await.contains("no replication slot is left"));
    let full = world.run(["anchor", "create", "b"]).await;
    assert_eq!(full.code, Some(3), "{}", full.text);
    assert!(full.text.contains("max_replication_slots"), "{}", full.text);
    world.succeed(["anchor", "drop", "--yes", "a"]).await;

    // The slot already retains so much WAL that a copy would leave no headroom for the relay's
    // budget.
    for _ in 0..80 {
        world
            .execute("SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))")
            .await;
    }
    let short = world.run(["anchor", "create", "a"]).await;
    assert_eq!(short.code, Some(3), "{}", short.text);
    assert!(short.text.contains("max_slot_wal_keep_size"), "{}", short.text);
    world.succeed(["anchor", "create", "a", "--wal-budget", "16MiB"]).await;
    assert_eq!(slots(&world).await, 2);

    // Advanced past a running-xacts record of the server, the anchor releases older WAL.
    world.execute("CHECKPOINT").await;
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let kept = listed(&world).await[0]["retained_bytes"].as_u64();
    assert!(kept > Some(64 << 20), "{kept:?}");
    world.succeed(["anchor", "advance", "--yes", "a"]).await;
    let left = listed(&world).await[0]["retained_bytes"].as_u64();
    assert!(left < Some(16 << 20), "{left:?}");
}

#[tokio::test]
async fn an_anchor_that_does_not_exist_is_answered_with_those_that_do() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "one"]).await;
    let done = world.run(["anchor", "drop", "--yes", "two"]).await;
    assert_eq!(done.code, Some(2), "{}", done.text);
    assert!(done.text.contains("one"), "{}", done.text);
    let again = world.run(["anchor", "create", "one"]).await;
    assert_eq!(again.code, Some(2), "{}", again.text);
}

#[tokio::test]
async fn a_dropped_slot_names_the_anchors_that_still_retain_wal() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    world.succeed(["anchor", "create", "daily"]).await;
    let dropped = world.succeed(["slot", "drop", "--yes"]).await;
    assert!(dropped.contains("`walrelay anchor drop daily` releases it"), "{dropped}");
    world.succeed(["anchor", "drop", "--yes", "daily"]).await;
}

//! `--on-gap hold`: an event waits for the preceding version.

use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

/// Counts the events that wait for a version.
const WAITING: &str =
    "SELECT count(*) FROM app_inbox WHERE status = 'retrying' AND error_code = 'VERSION_GAP'";

/// Inserts these versions of two keys. The first key has gaps.
async fn publish(world: &InboxDatabase, versions: &[i64]) {
    for version in versions {
        world
            .execute(&format!(
                "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                 VALUES ('video', 'key-1', 'made', {version}, jsonb_build_object('n', {version})),
                        ('video', 'key-2', 'made', {version}, jsonb_build_object('n', {version}))"
            ))
            .await;
    }
}

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    Some(world)
}

async fn versions(world: &InboxDatabase, key: &str) -> Vec<i64> {
    let sql =
        "SELECT o.version FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id
                WHERE a.key = $1 ORDER BY a.n";
    let rows = world.client().query(sql, &[&key]).await.expect("the effects can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn events_after_a_missing_version_wait_and_other_keys_do_not() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer(["--on-gap", "hold"]).await;
    publish(&world, &[1, 2]).await;
    world.catch_up().await;
    world.wait_applied(4).await;
    // Versions assigned without a lock on the aggregate may commit in this order.
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'key-1', 'made', v, jsonb_build_object('n', v) FROM generate_series(4, 6) AS v",
        )
        .await;
    publish_one(&world, "key-2", 3).await;
    world.catch_up().await;
    world.wait_applied(5).await;
    wait_until(DEADLINE, "three events to wait", async || {
        (world.number(WAITING).await == 3).then_some(())
    })
    .await;
    assert_eq!(versions(&world, "key-1").await, [1, 2]);
    assert_eq!(versions(&world, "key-2").await, [1, 2, 3]);
    let status = world.succeed(["consumer", "status", CONSUMER, "--output", "json"]).await;
    assert!(status.contains("\"keys_waiting_for_a_version\": 1"), "{status}");
    let listed = world.succeed(["inbox", "list", "--output", "json"]).await;
    assert!(listed.contains("version 3 has not come, 2 was applied last"), "{listed}");
    assert!(listed.contains("walrelay inbox retry"), "{listed}");

    publish_one(&world, "key-1", 3).await;
    world.catch_up().await;
    world.wait_applied(9).await;
    assert_eq!(versions(&world, "key-1").await, [1, 2, 3, 4, 5, 6]);
    // Later events find no gap, although version 3 was committed after later versions.
    publish_one(&world, "key-1", 7).await;
    world.catch_up().await;
    world.wait_applied(10).await;
    assert_eq!(world.number(WAITING).await, 0);
    drop(consumer);
}

async fn publish_one(world: &InboxDatabase, key: &str, version: i64) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', '{key}', 'made', {version}, jsonb_build_object('n', {version}))"
        ))
        .await;
}

#[tokio::test]
async fn an_event_whose_version_never_comes_is_dead_until_somebody_applies_it_without() {
    let Some(world) = world().await else { return };
    let _consumer = world.start_consumer(["--on-gap", "hold", "--max-attempts", "2"]).await;
    publish(&world, &[1, 3, 4]).await;
    world.catch_up().await;
    wait_until(DEADLINE, "both keys to be held by a dead event", async || {
        let dead =
            "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND error_code = 'VERSION_GAP'";
        (world.number(dead).await == 2).then_some(())
    })
    .await;
    assert_eq!(versions(&world, "key-1").await, [1]);
    let of_key_1 =
        "SELECT event_id FROM app_inbox WHERE status = 'dead' AND ordering_key = 'key-1'";
    let row = world.client().query_one(of_key_1, &[]).await.expect("it is dead");
    world.succeed(["inbox", "retry", row.get(0)]).await;
    world.wait_applied(4).await;
    assert_eq!(versions(&world, "key-1").await, [1, 3, 4]);
    // A discarded event leaves no gap for its successors.
    let of_key_2 =
        "SELECT event_id FROM app_inbox WHERE status = 'dead' AND ordering_key = 'key-2'";
    let other = world.client().query_one(of_key_2, &[]).await.expect("it is dead");
    world.succeed(["inbox", "discard", "--yes", other.get(0), "--reason", "not wanted"]).await;
    world.wait_applied(5).await;
    assert_eq!(versions(&world, "key-2").await, [1, 4]);
}

#[tokio::test]
async fn without_it_and_where_the_dead_let_their_key_go_on_nothing_waits_for_ever() {
    let Some(world) = world().await else { return };
    publish(&world, &[1, 3]).await;
    world.catch_up().await;
    world.consume_all().await;
    assert_eq!(versions(&world, "key-1").await, [1, 3]);

    let hold = ["--on-gap", "hold", "--on-dead", "continue", "--max-attempts", "2"];
    let _consumer = world.start_consumer(hold).await;
    publish(&world, &[5]).await;
    world.catch_up().await;
    world.wait_applied(6).await;
    assert_eq!(versions(&world, "key-1").await, [1, 3, 5]);
}

//! A failing key or topic with more rows than the memory budget blocks no other key.

use std::time::Duration;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase};

/// The time in which healthy keys must be published.
const SOON: Duration = Duration::from_secs(20);

async fn insert_in_large_transactions(world: &InboxDatabase, workload: Workload) {
    let large = Workload { rows_per_transaction: 1_000, rollback_every: 0, ..workload };
    large.insert(world.client()).await.expect("the rows are inserted");
}

#[tokio::test]
async fn a_failing_key_larger_than_the_budget_is_recorded_and_others_flow() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "3s"]).await;
    world.pubsub.fault("key=sick-0,reject=NOT_FOUND");
    let (prefix, sick) = ("sick-".to_owned(), Workload::of_rows(23_000));
    let sick = Workload { aggregate_prefix: prefix, aggregates_count: 1, ..sick };
    insert_in_large_transactions(&world, sick).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();

    world.pubsub.wait_stored(SOON, 20).await;
    world.wait_dispatch(DEADLINE, "retrying", 23_000).await;
    world.wait_confirmed(DEADLINE).await;
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
}

#[tokio::test]
async fn at_a_limited_rate_a_key_without_replies_stops_no_other_key() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay(["--rate", "200", "--publish-timeout", "10s"]).await;
    world.pubsub.fault("key=order-0,black-hole");
    // The key has 50 rows, which is more than the 40 that are read ahead at this rate.
    let prefix = "order-".to_owned();
    let orders =
        Workload { aggregate_prefix: prefix, aggregates_count: 20, ..Workload::of_rows(1_000) };
    insert_in_large_transactions(&world, orders).await;

    world.pubsub.wait_stored(SOON, 950).await;
    world.pubsub.heal();
    world.pubsub.wait_stored(DEADLINE, 1_000).await;
}

#[tokio::test]
async fn a_run_until_caught_up_ends_once_the_rows_of_a_missing_topic_are_recorded() {
    let Some(world) = InboxDatabase::create().await else { return };
    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(20) };
    missing.insert(world.client()).await.expect("the rows are inserted");
    world.succeed(["run", "--until-caught-up", "--park-after", "1s"]).await;
    world.wait_dispatch(DEADLINE, "retrying", 20).await;
}

#[tokio::test]
async fn a_missing_topic_larger_than_the_budget_stops_no_other_topic_by_default() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(24_000) };
    insert_in_large_transactions(&world, Workload { aggregates_count: 700, ..missing }).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();

    world.pubsub.wait_stored(SOON, 20).await;
    wait_until(DEADLINE, "/readyz to name the topic", async || {
        let (code, body) = http_get(relay.http_address(), "/readyz").await.ok()?;
        (code == 503 && body.contains("audio.events")).then_some(())
    })
    .await;
}

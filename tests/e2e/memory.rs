//! Memory stays bounded for any transaction size and any number of keys.

use std::time::Duration;

use walrelay_testkit::checker;
use walrelay_testkit::relay::Relay;
use walrelay_tests::{DEADLINE, InboxDatabase};

const MEMORY_MAX_BYTES: u64 = 100 << 20;

fn assert_light(relay: &Relay) {
    let Some(peak) = relay.peak_memory_bytes() else { return };
    eprintln!("peak memory of the relay: {} MiB", peak >> 20);
    assert!(peak < MEMORY_MAX_BYTES, "the relay took {} MiB", peak >> 20);
}

async fn insert_one_transaction(world: &InboxDatabase, rows_count: u32) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'v-' || n, 'test.inserted', n,
                    jsonb_build_object('n', n, 'padding', repeat('x', 100))
               FROM generate_series(1, {rows_count}) AS n"
        ))
        .await;
}

#[tokio::test]
async fn two_hundred_thousand_aggregates_in_one_transaction_fit_into_a_hundred_mebibytes() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;

    insert_one_transaction(&world, 200_000).await;

    let long = Duration::from_secs(180);
    world.pubsub.wait_stored(long, 200_000).await;
    world.wait_confirmed(DEADLINE).await;
    assert_light(&relay);
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn two_million_rows_in_one_transaction_fit_into_a_hundred_mebibytes() {
    let Some(()) = walrelay_testkit::long_run_or_skip() else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;

    insert_one_transaction(&world, 2_000_000).await;

    let long = Duration::from_secs(1_800);
    world.pubsub.wait_stored(long, 2_000_000).await;
    world.wait_confirmed(DEADLINE).await;
    assert_light(&relay);
    let committed = world.committed().await;
    checker::check(&committed, &world.pubsub.stored()).assert_exactly_once();
}

#[tokio::test]
async fn an_outage_in_the_middle_of_a_large_transaction_does_not_fill_the_memory() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    world.pubsub.fault("reject=UNAVAILABLE");

    insert_one_transaction(&world, 100_000).await;

    // Reading stops when the budget is full. The relay's metric shows the number of messages in
    // memory.
    walrelay_testkit::wait_until(DEADLINE, "reading to stop at the budget", async || {
        let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
        let line = metrics.lines().find(|line| line.starts_with("walrelay_in_flight_messages "))?;
        let messages: f64 = line.rsplit(' ').next()?.parse().ok()?;
        (messages >= 10_000.0).then_some(())
    })
    .await;
    assert_eq!(world.pubsub.stored_count(), 0);
    assert_eq!(world.dispatch_count("retrying").await, 0, "an outage parks nothing");
    world.pubsub.heal();
    world.pubsub.wait_stored(Duration::from_secs(120), 100_000).await;
    world.wait_confirmed(DEADLINE).await;
    assert_light(&relay);
    world.check(&world.committed().await).assert_exactly_once();
}

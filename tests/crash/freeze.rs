//! A relay that is frozen for longer than `wal_sender_timeout`, and sessions terminated from
//! outside.

use std::time::Duration;

use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use crate::campaign::settle_and_check;

const PACE: Duration = Duration::from_millis(20);

/// Options that make the server drop a silent relay after one second.
const SHORT_TIMEOUTS: [&str; 4] = ["--wal-sender-timeout", "1s", "--status-interval", "300ms"];

#[tokio::test]
async fn a_relay_frozen_for_longer_than_the_sender_timeout_loses_its_slot_and_comes_back() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(SHORT_TIMEOUTS).await;
    let producer = Producer::start(world.url(), PACE);
    world.pubsub.wait_stored(DEADLINE, 100).await;

    relay.signal(Signal::Stop);
    world.wait_slot_free(DEADLINE).await;
    relay.signal(Signal::Continue);

    let goal = world.pubsub.stored_count() + 100;
    world.pubsub.wait_stored(DEADLINE, goal).await;
    settle_and_check(&world, producer).await.assert_clean();
}

#[tokio::test]
async fn a_frozen_relay_that_thaws_beside_its_successor_breaks_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    let first = world.start_relay(SHORT_TIMEOUTS).await;
    let producer = Producer::start(world.url(), PACE);
    world.pubsub.wait_stored(DEADLINE, 100).await;

    first.signal(Signal::Stop);
    let second = world.start_relay(SHORT_TIMEOUTS).await;
    let goal = world.pubsub.stored_count() + 100;
    world.pubsub.wait_stored(DEADLINE, goal).await;
    first.signal(Signal::Continue);
    first.wait_for_line(DEADLINE, "standing by").await;

    settle_and_check(&world, producer).await.assert_clean();
    drop(second);
}

#[tokio::test]
async fn sessions_ended_by_an_administrator_are_opened_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    let producer = Producer::start(world.url(), PACE);
    for _ in 0..3 {
        let goal = world.pubsub.stored_count() + 100;
        world.pubsub.wait_stored(DEADLINE, goal).await;
        // All sessions except the test's own: the WAL sender, the relay's SQL session and the
        // producer.
        world
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;
        wait_until(DEADLINE, "the relay to stream again", async || {
            let sql = "SELECT count(*) FROM pg_replication_slots
                        WHERE slot_name = current_database() AND active";
            (world.number(sql).await == 1).then_some(())
        })
        .await;
    }
    settle_and_check(&world, producer).await.assert_clean();
    drop(relay);
}

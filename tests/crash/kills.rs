//! SIGKILL at random moments and at every failpoint.

use std::time::{Duration, Instant};

use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use crate::campaign::{DEATHS, kill_until, wait_for_more};

#[tokio::test]
async fn killed_at_random_and_at_every_failpoint_nothing_is_lost_and_order_holds() {
    let Some(world) = InboxDatabase::create().await else { return };
    let account =
        kill_until(&world, Duration::from_millis(10), |kills| kills == 2 * DEATHS.len()).await;
    eprintln!("{account}");
    account.assert_kept();
}

/// A relay records its settled position ten times a second, and restarts from that position.
#[tokio::test]
async fn five_kills_at_500_rows_a_second_repeat_at_most_400_rows_together() {
    let Some(world) = InboxDatabase::create().await else { return };
    // The producer inserts ten rows per transaction.
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    for _ in 0..5 {
        let mut relay = world.start_relay([]).await;
        wait_for_more(&world, 500).await;
        relay.kill();
        relay.wait_ended(DEADLINE).await;
        world.wait_slot_free(DEADLINE).await;
    }
    let committed = u64::from(producer.stop().await);
    world.catch_up().await;
    let repeated = world.pubsub.stored_count() - committed;
    eprintln!("{repeated} of {committed} rows were repeated");
    assert!(repeated <= 400, "{repeated} of {committed}");
}

/// Runs for `WALRELAY_SOAK_MINUTES`, or for `WALRELAY_SOAK_KILLS` kills regardless of the time.
#[tokio::test]
#[ignore = "runs for as long as it is told to: make soak MINUTES=60"]
async fn soak_killed_again_and_again_under_load() {
    let minutes = setting("WALRELAY_SOAK_MINUTES").unwrap_or(10);
    let kills_max = setting("WALRELAY_SOAK_KILLS").unwrap_or(u64::MAX);
    let Some(world) = InboxDatabase::create().await else { return };
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let account = kill_until(&world, Duration::from_millis(20), |kills| {
        kills as u64 >= kills_max || Instant::now() >= until
    })
    .await;
    eprintln!("{account}");
    account.assert_kept();
}

#[expect(clippy::disallowed_methods, reason = "a test's switch, not configuration")]
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

//! Two relays with `--take-over-after`: a live holder keeps the slot, and a dead holder loses it.

use std::time::Duration;

use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

const TAKE_OVER: [&str; 2] = ["--take-over-after", "3s"];

#[tokio::test]
async fn a_holder_that_is_alive_is_left_alone_and_a_frozen_one_is_ended() {
    let Some(world) = InboxDatabase::create().await else { return };
    let first = world.start_relay(TAKE_OVER).await;
    let second = world.relay(TAKE_OVER).start();
    second.wait_for_line(DEADLINE, "standing by").await;
    let taken = || {
        let lines = [first.lines(), second.lines()].concat();
        lines.iter().filter(|line| line.contains("taking the slot over")).count()
    };

    // First idle, then under traffic, for three times the takeover time.
    let began = std::time::Instant::now();
    let mut producer = None;
    wait_until(DEADLINE, "nine seconds", async || {
        assert_eq!(taken(), 0, "a holder that is alive was ended");
        if began.elapsed() > Duration::from_secs(5) && producer.is_none() {
            producer = Some(Producer::start(world.url(), Duration::from_millis(50)));
        }
        (began.elapsed() > Duration::from_secs(9)).then_some(())
    })
    .await;
    second.wait_for_http(DEADLINE, "/livez", 200).await;
    second.wait_for_http(DEADLINE, "/readyz", 503).await;

    first.signal(Signal::Stop);
    second.wait_for_line(DEADLINE, "\"streaming\"").await;
    let stored = world.pubsub.stored_count();
    world.pubsub.wait_stored(DEADLINE, stored + 100).await;
    drop(first);
    producer.expect("it was started").stop().await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

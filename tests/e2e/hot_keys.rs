//! A key near Pub/Sub's throughput limit per key is reported before it falls behind.

use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// One second of load: 45 rows of 20 kB for one aggregate, and one row for each of 200 others.
const A_SECOND: &str =
    "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
     SELECT 'video', CASE WHEN n <= 45 THEN 'the-hot-one' ELSE 'small-' || n END, 'test', n,
            jsonb_build_object('n', n, 'padding',
                               repeat('x', CASE WHEN n <= 45 THEN 20000 ELSE 200 END))
       FROM generate_series(1, 245) AS n";

#[tokio::test]
async fn a_key_near_pubsubs_bound_is_named_within_ten_seconds() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;

    let began = Instant::now();
    let heaviest = walrelay_testkit::wait_until(DEADLINE, "the hot key to be named", async || {
        let due = began + Duration::from_secs(began.elapsed().as_secs() + 1);
        world.execute(A_SECOND).await;
        tokio::time::sleep_until(due.into()).await;
        let status = relay.wait_for_http(DEADLINE, "/status", 200).await;
        let status: Value = serde_json::from_str(&status).expect("/status is JSON");
        let heaviest = status["relay"]["heaviest_keys"][0].clone();
        (heaviest["bytes_per_second"].as_u64()? >= 700_000).then_some(heaviest)
    })
    .await;

    // A quiet machine reports the key within the promised ten seconds. A busy machine may insert
    // more slowly.
    assert!(began.elapsed() < Duration::from_secs(20), "named after {:?}", began.elapsed());
    assert_eq!(heaviest["ordering_key"], "the-hot-one");
    assert_eq!(heaviest["topic"], "projects/test/topics/video.events");
    let is_counted = |metrics: &str| metrics.lines().any(|line| line == "walrelay_hot_keys 1");
    relay.wait_for_metrics(DEADLINE, is_counted).await;
    let warning = relay.wait_for_line(DEADLINE, "approaches Pub/Sub's limit").await;
    assert!(!warning.contains("the-hot-one"), "a key in the log: {warning}");
}

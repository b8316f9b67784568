//! Several instances of a consumer on one subscription: the distribution of keys, and the speed-up.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

const EVENTS: u32 = 1_500;
/// The number of applied events after which every instance has started up.
const BEGUN: i64 = 300;

/// Options that make each instance wait for the database most of the time, so that the CPU is not
/// the limit.
const SMALL: [&str; 4] = ["--batch", "20", "--workers", "1"];

/// The result of applying a backlog with several instances and a distant database.
struct Applied {
    elapsed: Duration,
    /// The number of events per instance.
    shares: Vec<u32>,
}

async fn apply(instances: usize) -> Option<Applied> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    let (at, name) = world.url().split_once('@')?.1.split_once('/')?;
    let proxy = Proxy::start(at).await;
    proxy.set(Network::Delayed(Duration::from_millis(50)));
    let user = world.url().split_once('@')?.0;
    let url = format!("{user}@{}/{name}", proxy.address());
    let mut consumers = Vec::new();
    for _ in 0..instances {
        let options = SMALL.into_iter().chain(["--database-url", &url]);
        consumers.push(world.start_consumer(options).await);
    }
    world.insert_events(100, EVENTS).await;
    world.catch_up().await;
    world.wait_applied(BEGUN).await;
    let began = Instant::now();
    world.wait_applied(EVENTS.into()).await;
    let elapsed = began.elapsed();
    world.assert_applied_exactly_once().await;
    let mut shares = Vec::new();
    for consumer in &consumers {
        shares.push(share(consumer).await);
    }
    Some(Applied { elapsed, shares })
}

/// Returns the number of events that an instance has applied. Waits until its last batch is
/// counted.
async fn share(consumer: &Relay) -> u32 {
    let metrics = wait_until(DEADLINE, "the instance to hold nothing", async || {
        let metrics = consumer.wait_for_http(DEADLINE, "/metrics", 200).await;
        metrics.contains("walrelay_inbox_held_messages{consumer=\"ledger\"} 0\n").then_some(metrics)
    })
    .await;
    let counts = metrics.lines().filter_map(|line| {
        line.strip_prefix("walrelay_inbox_events_total{consumer=\"ledger\",result=\"done\"} ")?
            .parse::<u32>()
            .ok()
    });
    counts.sum()
}

#[tokio::test]
async fn two_instances_share_the_keys_and_are_faster_than_one() {
    let Some(one) = apply(1).await else { return };
    let Some(two) = apply(2).await else { return };
    assert_eq!(one.shares, [EVENTS]);
    assert_eq!(two.shares.iter().sum::<u32>(), EVENTS);
    assert!(two.shares.iter().all(|share| *share >= EVENTS / 4), "{:?}", two.shares);
    let (one, two) = (one.elapsed.as_secs_f64(), two.elapsed.as_secs_f64());
    assert!(one > 1.4 * two, "one took {one:.1} s, two took {two:.1} s");
}

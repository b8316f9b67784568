//! Network faults on either side of the relay: cuts, black holes and refused connections.

use std::time::Duration;

use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use crate::campaign::settle_and_check;

const PACE: Duration = Duration::from_millis(20);

/// Starts a relay whose database connections pass through a proxy. The test's own connections do
/// not.
async fn relay_behind_postgres_proxy(world: &InboxDatabase) -> (Proxy, Relay) {
    let (_, address) = world.url().split_once('@').expect("a user");
    let (upstream, database) = address.split_once('/').expect("a database");
    let proxy = Proxy::start(upstream).await;
    let url = format!("postgresql://postgres@{}/{database}", proxy.address());
    let options =
        ["--database-url", &url, "--wal-sender-timeout", "1s", "--status-interval", "300ms"];
    let relay = world.start_relay(options).await;
    (proxy, relay)
}

async fn relay_behind_pubsub_proxy(world: &InboxDatabase) -> (Proxy, Relay) {
    let proxy = Proxy::start(world.pubsub.address()).await;
    let command = world.relay(["--publish-timeout", "1s"]);
    let relay = command.env("PUBSUB_EMULATOR_HOST", &proxy.address().to_string()).start();
    relay.wait_for_line(DEADLINE, "\"streaming\"").await;
    (proxy, relay)
}

async fn wait_for_more(world: &InboxDatabase, count: u64) {
    let goal = world.pubsub.stored_count() + count;
    world.pubsub.wait_stored(DEADLINE, goal).await;
}

/// Waits until the relay has logged `text` `count` times.
async fn wait_for_lines(relay: &Relay, text: &str, count: usize) {
    wait_until(DEADLINE, &format!("{count} lines with {text:?}"), async || {
        let found = relay.lines().iter().filter(|line| line.contains(text)).count();
        (found >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn connections_to_postgres_that_are_cut_are_opened_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (proxy, relay) = relay_behind_postgres_proxy(&world).await;
    let producer = Producer::start(world.url(), PACE);
    for cut in 1..=3 {
        wait_for_more(&world, 100).await;
        proxy.cut();
        wait_for_lines(&relay, "session broke off", cut).await;
    }
    wait_for_more(&world, 100).await;
    settle_and_check(&world, producer).await.assert_clean();
}

#[tokio::test]
async fn a_black_hole_before_postgres_is_noticed_and_left() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (proxy, relay) = relay_behind_postgres_proxy(&world).await;
    let producer = Producer::start(world.url(), PACE);
    wait_for_more(&world, 100).await;

    proxy.set(Network::BlackHole);
    wait_for_lines(&relay, "session broke off", 1).await;
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
    proxy.set(Network::Fine);

    wait_for_more(&world, 100).await;
    settle_and_check(&world, producer).await.assert_clean();
}

#[tokio::test]
async fn a_postgres_that_refuses_connections_for_a_while_is_waited_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (proxy, relay) = relay_behind_postgres_proxy(&world).await;
    let producer = Producer::start(world.url(), PACE);
    wait_for_more(&world, 50).await;

    proxy.set(Network::Refusing);
    proxy.cut();
    let before = proxy.accepted_count();
    // An attempt opens up to two connections.
    let has_retried = async || (proxy.accepted_count() >= before + 6).then_some(());
    wait_until(DEADLINE, "three refused attempts", has_retried).await;
    wait_for_lines(&relay, "session broke off", 1).await;
    proxy.set(Network::Fine);

    wait_for_more(&world, 100).await;
    settle_and_check(&world, producer).await.assert_clean();
}

#[tokio::test]
async fn connections_to_pubsub_that_are_cut_are_opened_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (proxy, _relay) = relay_behind_pubsub_proxy(&world).await;
    let producer = Producer::start(world.url(), PACE);
    for _ in 0..5 {
        wait_for_more(&world, 100).await;
        proxy.cut();
    }
    wait_for_more(&world, 100).await;
    settle_and_check(&world, producer).await.assert_clean();
}

#[tokio::test]
async fn a_black_hole_before_pubsub_is_noticed_and_left() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (proxy, relay) = relay_behind_pubsub_proxy(&world).await;
    let producer = Producer::start(world.url(), PACE);
    wait_for_more(&world, 100).await;

    proxy.set(Network::BlackHole);
    wait_for_lines(&relay, "publish refused", 1).await;
    let confirmed = world.confirmed_flush().await;
    proxy.set(Network::Fine);

    wait_for_more(&world, 100).await;
    settle_and_check(&world, producer).await.assert_clean();
    assert!(world.confirmed_flush().await > confirmed);
    let sessions = relay.lines().iter().filter(|line| line.contains("session broke off")).count();
    assert_eq!(sessions, 0, "Pub/Sub's refusals has cost the connection to Postgres");
}

#[tokio::test]
async fn keys_that_fail_in_every_way_at_once_keep_their_order() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay(["--park-after", "300ms", "--publish-timeout", "1s"]).await;
    let producer = Producer::start(world.url(), PACE);
    for fault in [
        "key=v-0,percent=50,reject=UNAVAILABLE",
        "key=v-1,percent=30,fail-after-publish=DEADLINE_EXCEEDED",
        "key=v-2,percent=20,black-hole",
        "key=v-3,reject=INTERNAL",
        "key=v-4,percent=50,delay=50ms",
        "key=v-5,percent=50,reject=RESOURCE_EXHAUSTED",
        "key=v-6,percent=20,reject=PERMISSION_DENIED",
    ] {
        world.pubsub.fault(fault);
    }
    wait_for_more(&world, 1_000).await;
    wait_until(DEADLINE, "rows of the dead key to be parked", async || {
        (world.dispatch_count("retrying").await > 0).then_some(())
    })
    .await;
    world.pubsub.heal();
    settle_and_check(&world, producer).await.assert_clean();
}

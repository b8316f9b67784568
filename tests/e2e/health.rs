//! Health reports are accurate, and the end of an outage is noticed soon.

use std::time::{Duration, Instant};

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// The time to notice the end of an outage: two seconds, plus slack for a busy machine.
const SOON: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_total_outage_is_not_ready_and_its_end_is_noticed_within_seconds() {
    let Some(world) = InboxDatabase::create().await else { return };
    let proxy = Proxy::start(world.pubsub.address()).await;
    let command = world.relay([]).env("PUBSUB_EMULATOR_HOST", &proxy.address().to_string());
    let relay = command.start();
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;

    proxy.set(Network::Refusing);
    proxy.cut();
    Workload::of_rows(100).insert(world.client()).await.unwrap();
    let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(!body.is_empty());
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
    // Long enough for an exponential back-off to have grown.
    let began = Instant::now();
    wait_until(DEADLINE, "eight seconds of outage", async || {
        (began.elapsed() > Duration::from_secs(8)).then_some(())
    })
    .await;
    assert_eq!(world.pubsub.stored_count(), 0);

    let healed = Instant::now();
    proxy.set(Network::Fine);
    world.pubsub.wait_stored(DEADLINE, 100).await;
    assert!(healed.elapsed() < SOON, "{:?}", healed.elapsed());
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn without_credentials_run_exits_with_the_code_of_pubsub() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(5).insert(world.client()).await.unwrap();
    let nothing = "/nonexistent/credentials.json";
    let command = world
        .relay([])
        .env("PUBSUB_EMULATOR_HOST", "")
        .env("GOOGLE_APPLICATION_CREDENTIALS", nothing)
        .env("HOME", "/nonexistent");
    let done = command.finish(DEADLINE).await;
    assert_eq!(done.code, Some(4), "{}", done.text);
}

#[tokio::test]
async fn a_discarded_last_row_of_a_refused_topic_makes_it_ready_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "300ms"]).await;
    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(1) };
    let committed = missing.insert(world.client()).await.unwrap();
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    world.wait_dispatch(DEADLINE, "retrying", 1).await;
    world
        .succeed(["dispatch", "discard", "--yes", &committed[0].event_id, "--reason", "test"])
        .await;
    relay.wait_for_http(Duration::from_secs(20), "/readyz", 200).await;
}

#[tokio::test]
async fn a_topic_refused_in_one_session_and_published_to_in_the_next_is_ready() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "1h"]).await;
    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(5) };
    missing.insert(world.client()).await.unwrap();
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    world.pubsub.create_topic("audio.events");
    let end_sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";
    world.number(end_sessions).await;
    world.pubsub.wait_stored(DEADLINE, 5).await;
    relay.wait_for_http(Duration::from_secs(20), "/readyz", 200).await;
}

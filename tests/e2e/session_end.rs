//! A session that ends while Pub/Sub is a black hole. The relay reports the end, stays alive, and
//! releases the database at once.

use std::time::{Duration, Instant};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Starts a relay with publish requests that never receive a reply.
async fn relay_with_unanswered_requests(world: &InboxDatabase) -> Relay {
    let relay = world.start_relay(["--publish-timeout", "20s"]).await;
    world.pubsub.fault("black-hole");
    Workload::of_rows(60).insert(world.client()).await.expect("the rows are inserted");
    let received = || world.pubsub.emulator().stats().publish_requests > 0;
    wait_until(DEADLINE, "a request to be out", async || received().then_some(())).await;
    relay
}

#[tokio::test]
async fn a_session_cut_off_before_a_black_hole_is_seen_to_end_and_the_next_begins_at_once() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = relay_with_unanswered_requests(&world).await;
    let began = Instant::now();
    let end_sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";
    world.number(end_sessions).await;

    let body = wait_until(DEADLINE, "/readyz to tell what is waited for", async || {
        let (code, body) = http_get(relay.http_address(), "/readyz").await.ok()?;
        (code == 503 && body.contains("have no answer yet")).then_some(body)
    })
    .await;
    assert!(body.contains("\"phase\":\"ending\""), "{body}");
    assert_eq!(http_get(relay.http_address(), "/livez").await.expect("an answer").0, 200);
    let streams =
        "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()";
    wait_until(DEADLINE, "the next session to hold the slot", async || {
        (world.number(streams).await == 1).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    // The relay is not ready during the outage, and ready after the requests have timed out.
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    world.pubsub.heal();
    world.pubsub.wait_stored(DEADLINE, 60).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn a_fast_shutdown_of_the_server_does_not_wait_for_a_black_hole() {
    let Some(installation) = installation_or_skip() else { return };
    let mut server = PrivatePostgres::start(&installation, &[]).expect("a server");
    let Some(world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    let relay = relay_with_unanswered_requests(&world).await;
    let began = Instant::now();
    server.stop_fast().expect("it stops");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(http_get(relay.http_address(), "/livez").await.expect("an answer").0, 200);
}

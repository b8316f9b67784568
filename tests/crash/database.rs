//! A database that restarts, crashes, or removes WAL that the slot needs.

use std::time::{Duration, Instant};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use crate::campaign::settle_and_check;

const PACE: Duration = Duration::from_millis(20);

/// Starts a private server with a test environment on it.
async fn own_server(settings: &[(&str, &str)]) -> Option<(InboxDatabase, PrivatePostgres)> {
    let installation = installation_or_skip()?;
    let server = PrivatePostgres::start(&installation, settings).expect("a server starts");
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    Some((world, server))
}

#[tokio::test]
async fn a_database_that_restarts_is_followed() {
    survives_server_event(|server| server.restart().unwrap()).await;
}

#[tokio::test]
async fn a_database_that_crashes_is_followed() {
    survives_server_event(|server| {
        server.crash().unwrap();
        server.restart().unwrap();
    })
    .await;
}

/// Applies `happening` to the server twice under load, and checks that no row is lost.
async fn survives_server_event(happening: fn(&mut PrivatePostgres)) {
    let Some((mut world, mut server)) = own_server(&[]).await else { return };
    let _relay = world.start_relay([]).await;
    let producer = Producer::start(world.url(), PACE);
    for _ in 0..2 {
        let goal = world.pubsub.stored_count() + 100;
        world.pubsub.wait_stored(DEADLINE, goal).await;
        happening(&mut server);
    }
    world.reconnect().await;
    let goal = world.pubsub.stored_count() + 100;
    world.pubsub.wait_stored(DEADLINE, goal).await;
    settle_and_check(&world, producer).await.assert_clean();
    drop(world);
}

#[tokio::test]
async fn a_database_that_stops_during_an_outage_of_pubsub_is_let_go() {
    let Some((mut world, mut server)) = own_server(&[]).await else { return };
    let relay = world.start_relay([]).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    let committed = Workload::of_rows(100).insert(world.client()).await.unwrap();
    relay.wait_for_line(DEADLINE, "publish refused").await;

    let began = Instant::now();
    server.stop_fast().unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "the server waited {took:?} for a confirmation");

    server.restart().unwrap();
    world.reconnect().await;
    world.pubsub.heal();
    world.wait_confirmed(DEADLINE).await;
    world.check(&committed).assert_clean();
    drop(world);
}

#[tokio::test]
async fn a_slot_that_the_server_invalidates_ends_the_relay_with_its_own_exit_code() {
    let settings =
        [("max_slot_wal_keep_size", "16MB"), ("min_wal_size", "32MB"), ("max_wal_size", "32MB")];
    let Some((world, server)) = own_server(&settings).await else { return };
    let mut relay = world.start_relay(["--on-slot-lost", "stop"]).await;
    Workload::of_rows(10).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 10).await;
    world.wait_confirmed(DEADLINE).await;
    wait_until(DEADLINE, "the relay's row", async || {
        (world.number("SELECT count(*) FROM app_outbox_relay").await == 1).then_some(())
    })
    .await;

    // Unpublished rows keep the slot at its position while the WAL grows beyond its limit.
    world.pubsub.fault("reject=UNAVAILABLE");
    let more = Workload { first_number: 10, ..Workload::of_rows(10) };
    more.insert(world.client()).await.unwrap();
    world.execute("CREATE TABLE business (filler text)").await;
    world.execute("ALTER TABLE business ALTER filler SET STORAGE PLAIN").await;
    for _ in 0..5 {
        world
            .execute(
                "INSERT INTO business SELECT repeat('x', 1000) FROM generate_series(1, 16000);
                 SELECT pg_switch_wal()",
            )
            .await;
        world.execute("CHECKPOINT").await;
    }

    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(5));
    let told = relay.lines().join("\n");
    assert!(told.contains("lost") && told.contains(world.name()), "{told}");
    let status = world.run(["status"]).await;
    assert_eq!(status.code, Some(5), "{}", status.text);
    let again = world.relay(["--on-slot-lost", "stop"]).finish(DEADLINE).await;
    assert_eq!(again.code, Some(5), "{}", again.text);
    drop(world);
    drop(server);
}

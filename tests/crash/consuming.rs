//! Kills consumers and relays, and crashes the database between commit and acknowledgement. Each
//! event must still take effect once and in order per key.

use std::time::Duration;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_tests::{CONSUMER, InboxDatabase, Producer};

const PACE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn consumer_and_relay_are_killed_again_and_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    // A killed consumer acknowledges no leased message, and 30 % of the other acknowledgements are
    // lost.
    world.pubsub.fault(&format!("on=acknowledge,subscription={CONSUMER},percent=30,lose"));
    let producer = Producer::start(world.url(), PACE);
    for round in 0..4 {
        // The messages leased by a killed consumer are redelivered when their leases expire.
        let mut relay = world.start_relay([]).await;
        let mut consumer = world.start_consumer(["--batch", "10"]).await;
        world.wait_applied(world.applied_count().await + 40).await;
        consumer.kill();
        if round % 2 == 0 {
            relay.kill();
        }
    }
    producer.stop().await;
    world.pubsub.heal();
    world.catch_up().await;
    // The consumer does not run with `--until-caught-up`: messages leased by the last killed
    // consumer are not redelivered yet.
    let consumer = world.start_consumer([]).await;
    world.wait_applied(world.number("SELECT count(*) FROM app_outbox").await).await;
    drop(consumer);
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_database_that_crashes_under_the_consumer_has_every_event_once() {
    let Some(installation) = installation_or_skip() else { return };
    let mut server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
    let Some(mut world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    world.set_up_consumer().await;
    world.insert_events(20, 4000).await;
    world.catch_up().await;
    let _consumer = world.start_consumer(["--batch", "5"]).await;
    for _ in 0..3 {
        world.wait_applied(world.applied_count().await + 200).await;
        server.crash().expect("it crashes");
        server.restart().expect("it starts");
        world.reconnect().await;
    }
    world.wait_applied(4000).await;
    world.assert_applied_exactly_once().await;
    drop(world);
    drop(server);
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_is_found_in_the_inbox() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(10, 2000).await;
    world.catch_up().await;
    let consumer = world.start_consumer(["--batch", "5"]).await;
    // Sessions are terminated at any point: before, during and after their COMMIT.
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND query LIKE '%app_inbox_apply%'";
    let mut cuts = 0;
    for _ in 0..20 {
        let applied = world.applied_count().await;
        // A fast consumer has applied everything before the last cut.
        if applied + 20 > 2000 {
            break;
        }
        world.wait_applied(applied + 20).await;
        world.number(cut).await;
        cuts += 1;
    }
    assert!(cuts >= 3, "the consumer was too fast: only {cuts} cuts");
    world.wait_applied(2000).await;
    drop(consumer);
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

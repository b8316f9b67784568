//! A consumer that is killed, a database that crashes between commit and acknowledgement, a relay that is
//! killed meanwhile: each event still takes effect once, in order per key.

use std::time::{Duration, Instant};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, Producer, World};

use crate::kills::setting;

const PACE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn consumer_and_relay_are_killed_again_and_again() {
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    // Nothing of what is killed is acknowledged, and some of the rest is not either.
    world.pubsub.fault(&format!("on=acknowledge,subscription={CONSUMER},percent=30,lose"));
    let producer = Producer::start(world.url(), PACE);
    for round in 0..4 {
        // What a killed consumer held comes to the next once its leases have run out.
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
    // Not until caught up: what the last one held when it was killed has not come again yet.
    let consumer = world.start_consumer([]).await;
    world.wait_applied(world.number("SELECT count(*) FROM app_outbox").await).await;
    drop(consumer);
    world.assert_applied_exactly_once().await;
}

/// Of 500 keys and of one in a hundred events that fail; `WALRELAY_CAMPAIGN_EVENTS` for another number.
#[tokio::test]
async fn with_poison_and_kills_everything_else_takes_effect_once_and_an_audit_agrees() {
    let events = setting("WALRELAY_CAMPAIGN_EVENTS").unwrap_or(10_000);
    let events = i64::try_from(events).expect("a number of events");
    let (poison, begun) = (events / 100, Instant::now());
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    // Every hundredth fails; keys go on without it.
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'key-' || (n + n / 100) % 500, 'made', n,
                    CASE WHEN n % 100 = 0 THEN '{{\"fails\": true}}'::jsonb ELSE '{{}}' END
               FROM generate_series(1, {events}) AS n"
        ))
        .await;
    let options = ["--max-attempts", "2", "--on-dead", "continue", "--batch", "50"];
    let mut relay = world.start_relay([]).await;
    for round in 1..=10 {
        let mut consumer = world.start_consumer(options).await;
        world.wait_applied(world.applied_count().await + events / 30).await;
        consumer.kill();
        if round % 2 == 0 {
            relay.kill();
            relay = world.start_relay([]).await;
        }
    }
    let consumer = world.start_consumer(options).await;
    // However many there are, some have to come all the time.
    while world.applied_count().await < events - poison {
        world.wait_applied((world.applied_count().await + 500).min(events - poison)).await;
    }
    wait_until(DEADLINE, "the poison to be dead", async || {
        let dead =
            "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND last_error LIKE '%poison%'";
        (world.number(dead).await == poison).then_some(())
    })
    .await;
    drop(consumer);

    let applied = "SELECT count(*) - count(DISTINCT event_id) FROM effect.applied";
    assert_eq!(world.number(applied).await, 0, "events were applied twice");
    assert_eq!(world.applied_count().await, events - poison);
    let sum = "SELECT sum(events)::bigint FROM effect.balance";
    assert_eq!(world.number(sum).await, events - poison);
    let inversions = "SELECT count(*) FROM (
          SELECT o.version, lag(o.version) OVER (PARTITION BY a.key ORDER BY a.n) AS before
            FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id) AS x
        WHERE before > version";
    assert_eq!(world.number(inversions).await, 0, "the order of a key was broken");
    let listed = world.succeed(["inbox", "list", "--status", "dead", "--limit", "100000"]).await;
    let reasons = i64::try_from(listed.matches("22000: poison").count()).expect("a small number");
    assert_eq!(reasons, poison, "{listed}");
    wait_until(DEADLINE, "everything to be settled on record", async || {
        let told = world.run(["audit", "--grace", "0s"]).await;
        assert_eq!(told.code, Some(0), "{}", told.text);
        told.text.contains(&format!("{events} settled event(s)")).then_some(())
    })
    .await;
    world.execute("DELETE FROM app_inbox WHERE ctid IN (SELECT ctid FROM app_inbox LIMIT 1)").await;
    let holed = world.run(["audit", "--grace", "0s"]).await;
    assert_eq!(holed.code, Some(1), "{}", holed.text);
    assert!(holed.text.contains("1 are MISSING"), "{}", holed.text);
    drop(relay);
    eprintln!("{events} events, 10 consumers and 5 relays killed: {} s", begun.elapsed().as_secs());
}

#[tokio::test]
async fn a_database_that_crashes_under_the_consumer_has_every_event_once() {
    let Some(installation) = installation_or_skip() else { return };
    let mut server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
    let Some(mut world) = World::create_at(&server.url("postgres")).await else { return };
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
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(10, 2000).await;
    world.catch_up().await;
    let consumer = world.start_consumer(["--batch", "5"]).await;
    // Sessions are cut wherever they are: before, in and after their COMMIT.
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND query LIKE '%app_inbox_apply%'";
    for _ in 0..20 {
        world.wait_applied(world.applied_count().await + 20).await;
        world.number(cut).await;
    }
    world.wait_applied(2000).await;
    drop(consumer);
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

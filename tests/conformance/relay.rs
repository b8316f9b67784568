//! The relay and the consumer against the official emulator. All other tests of them use the embedded
//! emulator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_testkit::emulator::official_or_skip;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::RelayCommand;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

use crate::service::{Kind, Service};

#[tokio::test]
async fn the_relay_works_with_the_official_emulator() {
    let Some(address) = official_or_skip() else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    let mut service = Service::connect(Kind::Official, address, None).await;
    service.create_topic("video.events").await.unwrap();
    service.subscribe("video.events", "videos").await.unwrap();
    let committed = Workload::of_rows(300).insert(world.client()).await.unwrap();

    let relay = world.relay(["--until-caught-up"]);
    let relay = relay
        .env("PUBSUB_EMULATOR_HOST", &service.address)
        .env("PUBSUB_PROJECT_ID", &service.project);
    let done = relay.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);

    let mut arrived: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    wait_until(Duration::from_secs(30), "all rows to be delivered", async || {
        let received = service.pull_once("videos", 100).await;
        service.acknowledge("videos", &received).await;
        count += received.len();
        for delivery in &received {
            let message = delivery.message.as_ref().expect("a message");
            let ids = arrived.entry(message.ordering_key.clone()).or_default();
            ids.push(message.attributes["event_id"].clone());
        }
        (count >= 300).then_some(())
    })
    .await;
    for (key, ids) in arrived {
        let expected = committed.iter().filter(|row| row.key == key);
        assert_eq!(ids, expected.map(|row| row.event_id.clone()).collect::<Vec<_>>(), "{key}");
    }
}

/// Google's emulator answers pings from 0.8.32 on.
#[tokio::test]
async fn a_consumer_on_the_official_emulator_stays_ready_whether_its_pings_are_answered_or_not() {
    let Some(address) = official_or_skip() else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    let mut service = Service::connect(Kind::Official, address, None).await;
    service.create_topic("video.events").await.unwrap();
    let there = |command: RelayCommand| {
        command
            .env("PUBSUB_EMULATOR_HOST", &service.address)
            .env("PUBSUB_PROJECT_ID", &service.project)
    };
    let create = ["--create", "--topic", "video.events", "--subscription", CONSUMER];
    let init = ["consumer", "init", CONSUMER].into_iter().chain(create);
    let done = there(world.command(init)).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    world.set_up_handler().await;

    let consumer = there(world.consumer([])).with_http().start();
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let started = Instant::now();
    // A ping without an answer ends the stream after 15 s.
    wait_until(DEADLINE, "the first ping to be answered, or not", async || {
        let (code, body) = http_get(consumer.http_address(), "/readyz").await.ok()?;
        assert_eq!(code, 200, "{body}");
        (started.elapsed() > Duration::from_secs(18)).then_some(())
    })
    .await;
    world.insert_events(5, 20).await;
    let caught_up = there(world.command(["run", "--until-caught-up"])).finish(DEADLINE).await;
    assert_eq!(caught_up.code, Some(0), "{}", caught_up.text);
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let complaint = consumer.lines().into_iter().find(|line| line.contains("no stream to Pub/Sub"));
    assert_eq!(complaint, None);
}

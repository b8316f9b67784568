//! The relay against the official emulator. All other tests of the relay use the embedded emulator.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_testkit::emulator::official_or_skip;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

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

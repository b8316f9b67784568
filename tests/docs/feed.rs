//! Publishes messages for the consumer programs of a page. The first message makes the programs
//! fail. After they continue, each event is published twice, as after a lost reply.

use std::sync::atomic::{AtomicI64, Ordering};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::{PublishRequest, PubsubMessage};
use tonic::transport::Channel;
use walrelay_emulator::{Emulator, Stats, SubscriptionOptions};
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, PubSub, topic};

/// The programs' subscription, `SUBSCRIPTION`.
pub(crate) const SUBSCRIPTION: &str = "projects/test/subscriptions/balances";

const EVENTS_EACH: i64 = 2;

/// The number of deliveries of a failing message which proves that a program continues after the
/// first failure.
const DELIVERIES: u64 = 5;

/// A topic with an ordered subscription, and the number of published events.
pub(crate) struct Feed {
    publisher: PublisherClient<Channel>,
    emulator: Emulator,
    events: AtomicI64,
}

impl Feed {
    pub(crate) async fn open(pubsub: &PubSub) -> Self {
        pubsub.create_topic("order.events");
        pubsub
            .emulator()
            .create_subscription(
                SUBSCRIPTION,
                &topic("order.events"),
                SubscriptionOptions::default(),
            )
            .expect("a new subscription");
        let channel = Channel::from_shared(format!("http://{}", pubsub.address()));
        let channel = channel.expect("an address").connect().await.expect("the Pub/Sub is there");
        let emulator = pubsub.emulator().clone();
        Self { publisher: PublisherClient::new(channel), emulator, events: AtomicI64::new(0) }
    }

    /// Returns the number of events. Each event was published twice.
    pub(crate) fn events_published(&self) -> i64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Publishes an event with missing fields, in its own key, so that every handler fails. Returns
    /// the statistics from before.
    pub(crate) async fn publish_a_failing_one(&self) -> Stats {
        let before = self.emulator.stats();
        let name = format!("failing-{}", self.events_published());
        let mut failing = message(1);
        failing.data = br#"{"total": 1}"#.to_vec().into();
        failing.ordering_key.clone_from(&name);
        for attribute in ["event_id", "aggregate_id"] {
            failing.attributes.insert(attribute.to_owned(), name.clone());
        }
        self.send(vec![failing]).await;
        before
    }

    /// Waits until a program has continued after the failure: it acknowledged the message, or
    /// rejected the message and received it again.
    pub(crate) async fn wait_for_the_failure(&self, before: &Stats, place: &str) {
        wait_until(DEADLINE, &format!("{place} to go on after a failure"), async || {
            let now = self.emulator.stats();
            let is_past = now.messages_acknowledged > before.messages_acknowledged
                || now.messages_delivered >= before.messages_delivered + DELIVERIES;
            is_past.then_some(())
        })
        .await;
    }

    /// Publishes the next versions of the aggregate `tested`: 2 and 3, then 4 and 5, and so on.
    pub(crate) async fn publish(&self) {
        let first = 2 + self.events.fetch_add(EVENTS_EACH, Ordering::Relaxed);
        let versions = first..first + EVENTS_EACH;
        let twice = versions.clone().chain(versions);
        self.send(twice.map(message).collect()).await;
    }

    async fn send(&self, messages: Vec<PubsubMessage>) {
        let request = PublishRequest { topic: topic("order.events"), messages };
        self.publisher.clone().publish(request).await.expect("the messages are stored");
    }
}

fn message(version: i64) -> PubsubMessage {
    let attributes = [
        ("event_id", format!("tested-{version}")),
        ("event_type", "OrderPaid".to_owned()),
        ("aggregate_type", "order".to_owned()),
        ("aggregate_id", "tested".to_owned()),
        ("version", version.to_string()),
        ("schema_version", "1".to_owned()),
        ("occurred_at", "2026-11-21T10:00:00.000000Z".to_owned()),
        ("commit_lsn", format!("1/{version:X}")),
        ("tx_index", "0".to_owned()),
        ("system_identifier", "7526439217643552815/1".to_owned()),
    ];
    PubsubMessage {
        data: format!(r#"{{"status": "v{version}", "total": {version}}}"#).into_bytes().into(),
        attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        ordering_key: "tested".to_owned(),
        ..PubsubMessage::default()
    }
}

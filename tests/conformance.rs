//! One suite of what a publisher and a subscriber may rely on, against both stand-ins for Pub/Sub.
//!
//! The official emulator is the reference for how the service behaves; the embedded one must behave
//! the same, except where it enforces what production enforces and the official emulator does not.
//! Those differences are listed in the last part, each with what either of them does.

use std::collections::BTreeMap;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::subscriber_client::SubscriberClient;
use proto::{PublishRequest, PubsubMessage, PullRequest, ReceivedMessage, Subscription, Topic};
use tonic::transport::Channel;
use tonic::{Code, Status};
use walrelay_testkit::emulator::official_or_skip;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::{random_name, wait_until};
use walrelay_tests::{DEADLINE, PubSub, World};

/// Ours, or Google's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    Official,
}

/// A Pub/Sub with a project, a topic and an ordered subscription that no other test uses.
struct Service {
    kind: Kind,
    address: String,
    project: String,
    publisher: PublisherClient<Channel>,
    subscriber: SubscriberClient<Channel>,
    _embedded: Option<PubSub>,
}

/// Everything each test runs against.
async fn services() -> Vec<Service> {
    let embedded = PubSub::start();
    let address = embedded.address().to_owned();
    let mut services = vec![Service::connect(Kind::Embedded, address, Some(embedded)).await];
    if let Some(official) = official_or_skip() {
        services.push(Service::connect(Kind::Official, official, None).await);
    }
    services
}

impl Service {
    async fn connect(kind: Kind, address: String, embedded: Option<PubSub>) -> Self {
        let url = format!("http://{address}");
        let channel = Channel::from_shared(url).expect("an address").connect().await;
        let channel = channel.expect("the Pub/Sub is there");
        // Names of projects have no underscore.
        let project = random_name("p").replace('_', "-");
        let mut service = Self {
            kind,
            address,
            project,
            publisher: PublisherClient::new(channel.clone()).max_encoding_message_size(64 << 20),
            subscriber: SubscriberClient::new(channel),
            _embedded: embedded,
        };
        service.create_topic("orders").await.expect("a new topic");
        service.subscribe("orders", "all").await.expect("a new subscription");
        service
    }

    fn topic(&self, name: &str) -> String {
        format!("projects/{}/topics/{name}", self.project)
    }

    fn subscription(&self, name: &str) -> String {
        format!("projects/{}/subscriptions/{name}", self.project)
    }

    async fn create_topic(&mut self, name: &str) -> Result<(), Status> {
        let topic = Topic { name: self.topic(name), ..Topic::default() };
        self.publisher.create_topic(topic).await.map(drop)
    }

    async fn subscribe(&mut self, topic: &str, name: &str) -> Result<(), Status> {
        let subscription = Subscription {
            name: self.subscription(name),
            topic: self.topic(topic),
            ack_deadline_seconds: 10,
            enable_message_ordering: true,
            ..Subscription::default()
        };
        self.subscriber.create_subscription(subscription).await.map(drop)
    }

    async fn publish(
        &mut self,
        topic: &str,
        messages: Vec<PubsubMessage>,
    ) -> Result<Vec<String>, Status> {
        let request = PublishRequest { topic: self.topic(topic), messages };
        let response = self.publisher.publish(request).await?;
        Ok(response.into_inner().message_ids)
    }

    /// Pulls until `count` messages have come.
    async fn pull(&mut self, name: &str, count: usize) -> Vec<ReceivedMessage> {
        let mut received = Vec::new();
        while received.len() < count {
            received.extend(self.pull_once(name, count - received.len()).await);
        }
        received
    }

    async fn pull_once(&mut self, name: &str, count: usize) -> Vec<ReceivedMessage> {
        let request = PullRequest {
            subscription: self.subscription(name),
            max_messages: i32::try_from(count).expect("few messages"),
            ..PullRequest::default()
        };
        let pulled = tokio::time::timeout(DEADLINE, self.subscriber.pull(request)).await;
        let pulled = pulled.unwrap_or_else(|_| panic!("{:?}: nothing came", self.kind));
        pulled.expect("a pull").into_inner().received_messages
    }

    async fn acknowledge(&mut self, name: &str, received: &[ReceivedMessage]) {
        let request = proto::AcknowledgeRequest {
            subscription: self.subscription(name),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
        };
        self.subscriber.acknowledge(request).await.expect("an acknowledgement");
    }

    async fn give_back(&mut self, name: &str, received: &[ReceivedMessage]) {
        let request = proto::ModifyAckDeadlineRequest {
            subscription: self.subscription(name),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
            ack_deadline_seconds: 0,
        };
        self.subscriber.modify_ack_deadline(request).await.expect("a change of the deadline");
    }
}

fn message(key: &str, data: &str) -> PubsubMessage {
    PubsubMessage {
        data: data.as_bytes().to_vec().into(),
        ordering_key: key.to_owned(),
        ..PubsubMessage::default()
    }
}

fn data(received: &[ReceivedMessage]) -> Vec<String> {
    let data = received.iter().map(|received| {
        let message = received.message.as_ref().expect("a message");
        String::from_utf8_lossy(&message.data).into_owned()
    });
    data.collect()
}

#[tokio::test]
async fn a_message_arrives_as_it_was_published_with_the_id_that_was_answered() {
    for mut service in services().await {
        let attributes = [("event_id", "e-1"), ("empty", ""), ("ümlaut", "ß")];
        let attributes: BTreeMap<String, String> =
            attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let bytes: Vec<u8> = (0..=255).collect();
        let sent = PubsubMessage {
            data: bytes.into(),
            attributes,
            ordering_key: "A 17/ü".to_owned(),
            ..PubsubMessage::default()
        };
        let ids = service.publish("orders", vec![sent.clone()]).await.unwrap();

        let received = service.pull("all", 1).await;
        let got = received[0].message.clone().unwrap();
        assert_eq!(
            (&got.data, &got.attributes),
            (&sent.data, &sent.attributes),
            "{:?}",
            service.kind
        );
        assert_eq!((got.ordering_key, vec![got.message_id]), (sent.ordering_key, ids));
        assert!(got.publish_time.is_some());
    }
}

#[tokio::test]
async fn messages_of_a_key_come_in_the_order_they_were_published() {
    for mut service in services().await {
        for request in 0..20 {
            let (key, first) = (["a", "b"][request % 2], 5 * (request / 2));
            let numbers = first..first + 5;
            let messages = numbers.map(|n| message(key, &format!("{key}-{n:02}"))).collect();
            let ids = service.publish("orders", messages).await.unwrap();
            assert_eq!(ids.len(), 5);
        }
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut count = 0;
        while count < 100 {
            let received = service.pull_once("all", 100).await;
            service.acknowledge("all", &received).await;
            count += received.len();
            data(&received)
                .into_iter()
                .for_each(|text| seen.entry(text[..1].to_owned()).or_default().push(text));
        }
        for (key, texts) in seen {
            let expected: Vec<String> = (0..50).map(|n| format!("{key}-{n:02}")).collect();
            assert_eq!(texts, expected, "{:?}", service.kind);
        }
    }
}

#[tokio::test]
async fn what_is_given_back_comes_again_in_order_and_what_is_acknowledged_does_not() {
    for mut service in services().await {
        let messages = (0..4).map(|n| message("a", &n.to_string())).collect();
        service.publish("orders", messages).await.unwrap();
        let first = service.pull("all", 4).await;
        assert_eq!(data(&first), ["0", "1", "2", "3"], "{:?}", service.kind);
        service.give_back("all", &first).await;

        let again = service.pull("all", 4).await;
        assert_eq!(data(&again), ["0", "1", "2", "3"], "{:?}", service.kind);
        service.acknowledge("all", &again).await;

        // Whatever comes next is new.
        service.publish("orders", vec![message("a", "4")]).await.unwrap();
        assert_eq!(data(&service.pull("all", 1).await), ["4"], "{:?}", service.kind);
    }
}

#[tokio::test]
async fn each_subscription_gets_what_was_published_after_its_creation() {
    for mut service in services().await {
        service.publish("orders", vec![message("", "before")]).await.unwrap();
        service.subscribe("orders", "late").await.unwrap();
        service.publish("orders", vec![message("", "after")]).await.unwrap();

        assert_eq!(data(&service.pull("late", 1).await), ["after"], "{:?}", service.kind);
        let mut all = data(&service.pull("all", 2).await);
        all.sort();
        assert_eq!(all, ["after", "before"], "{:?}", service.kind);
    }
}

#[tokio::test]
async fn a_name_that_is_missing_taken_or_malformed_is_refused_with_the_same_code() {
    for mut service in services().await {
        let kind = service.kind;
        let missing = service.publish("nowhere", vec![message("", "x")]).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{kind:?}: {missing}");
        let taken = service.create_topic("orders").await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists, "{kind:?}: {taken}");
        let twice = service.subscribe("orders", "all").await.unwrap_err();
        assert_eq!(twice.code(), Code::AlreadyExists, "{kind:?}: {twice}");
        let orphan = service.subscribe("nowhere", "other").await.unwrap_err();
        assert_eq!(orphan.code(), Code::NotFound, "{kind:?}: {orphan}");
        let malformed = service.create_topic("1 x").await.unwrap_err();
        assert_eq!(malformed.code(), Code::InvalidArgument, "{kind:?}: {malformed}");
    }
}

#[tokio::test]
async fn an_empty_message_and_more_than_a_thousand_messages_are_refused() {
    for mut service in services().await {
        for messages in [vec![PubsubMessage::default()], vec![message("", "x"); 1_001]] {
            let refused = service.publish("orders", messages).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{:?}: {refused}", service.kind);
        }
        let most = service.publish("orders", vec![message("", "x"); 1_000]).await.unwrap();
        assert_eq!(most.len(), 1_000, "{:?}", service.kind);
    }
}

#[tokio::test]
async fn a_deleted_topic_is_not_found_any_more() {
    for mut service in services().await {
        let request = proto::DeleteTopicRequest { topic: service.topic("orders") };
        service.publisher.delete_topic(request).await.unwrap();
        let gone = service.publish("orders", vec![message("", "x")]).await.unwrap_err();
        assert_eq!(gone.code(), Code::NotFound, "{:?}: {gone}", service.kind);
    }
}

/// What production refuses and the official emulator takes: the differences that are meant.
#[tokio::test]
async fn the_embedded_one_enforces_limits_of_production_that_the_official_emulator_does_not() {
    let long = "x".repeat(1_025);
    let attribute = |name: &str, value: &str| PubsubMessage {
        attributes: [(name.to_owned(), value.to_owned())].into(),
        ..message("", "x")
    };
    let many = PubsubMessage {
        attributes: (0..101).map(|n| (format!("a{n}"), String::new())).collect(),
        ..message("", "x")
    };
    let requests = [
        ("two ordering keys in one request", vec![message("a", "1"), message("b", "2")]),
        ("keyed and unkeyed messages in one request", vec![message("a", "1"), message("", "2")]),
        ("an ordering key over 1,024 bytes", vec![message(&long, "1")]),
        ("an attribute value over 1,024 bytes", vec![attribute("a", &long)]),
        ("an attribute key over 256 bytes", vec![attribute(&long[..257], "1")]),
        ("an attribute key that begins with goog", vec![attribute("goog-x", "1")]),
        ("more than 100 attributes", vec![many]),
    ];
    for mut service in services().await {
        for (what, messages) in &requests {
            let answer = service.publish("orders", messages.clone()).await;
            let code = answer.map(drop).map_err(|status| status.code());
            let expected = match service.kind {
                Kind::Embedded => Err(Code::InvalidArgument),
                Kind::Official => Ok(()),
            };
            assert_eq!(code, expected, "{:?}: {what}", service.kind);
        }
    }
}

#[tokio::test]
async fn the_relay_works_with_the_official_emulator() {
    let Some(address) = official_or_skip() else { return };
    let Some(world) = World::create().await else { return };
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

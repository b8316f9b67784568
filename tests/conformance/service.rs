//! Both Pub/Sub emulators, and a client for either.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::seek_request::Target;
use proto::subscriber_client::SubscriberClient;
use proto::{PublishRequest, PubsubMessage, PullRequest, ReceivedMessage, Subscription, Topic};
use tonic::Status;
use tonic::transport::Channel;
use walrelay_testkit::emulator::official_or_skip;
use walrelay_testkit::random_name;
use walrelay_tests::{DEADLINE, PubSub};

/// The embedded or the official emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Embedded,
    Official,
}

/// A Pub/Sub with a project, a topic and an ordered subscription that no other test uses.
pub(crate) struct Service {
    pub(crate) kind: Kind,
    pub(crate) address: String,
    pub(crate) project: String,
    pub(crate) publisher: PublisherClient<Channel>,
    pub(crate) subscriber: SubscriberClient<Channel>,
    _embedded: Option<PubSub>,
}

/// Returns all emulators that each test runs against.
pub(crate) async fn services() -> Vec<Service> {
    let mut services = vec![ours().await];
    if let Some(official) = official_or_skip() {
        services.push(Service::connect(Kind::Official, official, None).await);
    }
    services
}

/// Returns only the embedded emulator, for features that the official emulator lacks.
pub(crate) async fn ours() -> Service {
    let embedded = PubSub::start();
    let address = embedded.address().to_owned();
    Service::connect(Kind::Embedded, address, Some(embedded)).await
}

impl Service {
    pub(crate) async fn connect(kind: Kind, address: String, embedded: Option<PubSub>) -> Self {
        let url = format!("http://{address}");
        let channel = Channel::from_shared(url).expect("an address").connect().await;
        let channel = channel.expect("the Pub/Sub is there");
        // Project names may not contain underscores.
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

    /// Connects another client to the same emulator.
    pub(crate) async fn another(&self) -> Self {
        let url = format!("http://{}", self.address);
        let channel = Channel::from_shared(url).expect("an address").connect().await;
        let channel = channel.expect("the Pub/Sub is there");
        Self {
            kind: self.kind,
            address: self.address.clone(),
            project: self.project.clone(),
            publisher: PublisherClient::new(channel.clone()),
            subscriber: SubscriberClient::new(channel),
            _embedded: None,
        }
    }

    pub(crate) fn topic(&self, name: &str) -> String {
        format!("projects/{}/topics/{name}", self.project)
    }

    pub(crate) fn subscription(&self, name: &str) -> String {
        format!("projects/{}/subscriptions/{name}", self.project)
    }

    pub(crate) fn snapshot(&self, name: &str) -> String {
        format!("projects/{}/snapshots/{name}", self.project)
    }

    pub(crate) async fn create_topic(&mut self, name: &str) -> Result<(), Status> {
        let topic = Topic { name: self.topic(name), ..Topic::default() };
        self.publisher.create_topic(topic).await.map(drop)
    }

    pub(crate) async fn subscribe(&mut self, topic: &str, name: &str) -> Result<(), Status> {
        self.subscribe_with(topic, name, |_| {}).await
    }

    /// Creates an ordered subscription, with changes by `change`.
    pub(crate) async fn subscribe_with(
        &mut self,
        topic: &str,
        name: &str,
        change: impl FnOnce(&mut Subscription),
    ) -> Result<(), Status> {
        let mut subscription = Subscription {
            name: self.subscription(name),
            topic: self.topic(topic),
            ack_deadline_seconds: 10,
            enable_message_ordering: true,
            ..Subscription::default()
        };
        change(&mut subscription);
        self.subscriber.create_subscription(subscription).await.map(drop)
    }

    /// Updates a subscription with `change`. Only the fields in `paths` apply.
    pub(crate) async fn update(
        &mut self,
        name: &str,
        paths: &[&str],
        change: impl FnOnce(&mut Subscription),
    ) -> Result<Subscription, Status> {
        let mut subscription = Subscription {
            name: self.subscription(name),
            topic: self.topic("orders"),
            ..Subscription::default()
        };
        change(&mut subscription);
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let request = proto::UpdateSubscriptionRequest {
            subscription: Some(subscription),
            update_mask: Some(prost_types::FieldMask { paths }),
        };
        self.subscriber.update_subscription(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn publish(
        &mut self,
        topic: &str,
        messages: Vec<PubsubMessage>,
    ) -> Result<Vec<String>, Status> {
        let request = PublishRequest { topic: self.topic(topic), messages };
        let response = self.publisher.publish(request).await?;
        Ok(response.into_inner().message_ids)
    }

    /// Pulls until `count` messages have arrived.
    pub(crate) async fn pull(&mut self, name: &str, count: usize) -> Vec<ReceivedMessage> {
        let mut received = Vec::new();
        while received.len() < count {
            received.extend(self.pull_once(name, count - received.len()).await);
        }
        received
    }

    pub(crate) async fn pull_once(&mut self, name: &str, count: usize) -> Vec<ReceivedMessage> {
        let request = PullRequest {
            subscription: self.subscription(name),
            max_messages: i32::try_from(count).expect("few messages"),
            ..PullRequest::default()
        };
        let pulled = tokio::time::timeout(DEADLINE, self.subscriber.pull(request)).await;
        let pulled = pulled.unwrap_or_else(|_| panic!("{:?}: nothing came", self.kind));
        pulled.expect("a pull").into_inner().received_messages
    }

    /// Pulls the immediately available messages.
    #[expect(deprecated, reason = "there is no other way to ask without waiting")]
    pub(crate) async fn pull_now(&mut self, name: &str) -> Vec<ReceivedMessage> {
        let request = PullRequest {
            subscription: self.subscription(name),
            max_messages: 100,
            return_immediately: true,
        };
        self.subscriber.pull(request).await.expect("a pull").into_inner().received_messages
    }

    pub(crate) async fn seek(&mut self, name: &str, target: Target) -> Result<(), Status> {
        let request =
            proto::SeekRequest { subscription: self.subscription(name), target: Some(target) };
        self.subscriber.seek(request).await.map(drop)
    }

    /// Seeks to a snapshot by its short name.
    pub(crate) async fn seek_to(&mut self, name: &str, snapshot: &str) -> Result<(), Status> {
        let target = Target::Snapshot(self.snapshot(snapshot));
        self.seek(name, target).await
    }

    pub(crate) async fn take_snapshot(
        &mut self,
        subscription: &str,
        name: &str,
    ) -> Result<proto::Snapshot, Status> {
        let request = proto::CreateSnapshotRequest {
            name: self.snapshot(name),
            subscription: self.subscription(subscription),
            ..Default::default()
        };
        self.subscriber.create_snapshot(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn try_acknowledge(
        &mut self,
        name: &str,
        ack_ids: &[&str],
    ) -> Result<(), Status> {
        let request = proto::AcknowledgeRequest {
            subscription: self.subscription(name),
            ack_ids: ack_ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        self.subscriber.acknowledge(request).await.map(drop)
    }

    pub(crate) async fn acknowledge(&mut self, name: &str, received: &[ReceivedMessage]) {
        let request = proto::AcknowledgeRequest {
            subscription: self.subscription(name),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
        };
        self.subscriber.acknowledge(request).await.expect("an acknowledgement");
    }

    pub(crate) async fn give_back(&mut self, name: &str, received: &[ReceivedMessage]) {
        let request = proto::ModifyAckDeadlineRequest {
            subscription: self.subscription(name),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
            ack_deadline_seconds: 0,
        };
        self.subscriber.modify_ack_deadline(request).await.expect("a change of the deadline");
    }
}

pub(crate) fn message(key: &str, data: &str) -> PubsubMessage {
    PubsubMessage {
        data: data.as_bytes().to_vec().into(),
        ordering_key: key.to_owned(),
        ..PubsubMessage::default()
    }
}

pub(crate) fn data(received: &[ReceivedMessage]) -> Vec<String> {
    let data = received.iter().map(|received| {
        let message = received.message.as_ref().expect("a message");
        String::from_utf8_lossy(&message.data).into_owned()
    });
    data.collect()
}

pub(crate) fn attributed(key: &str, data: &str, name: &str, value: &str) -> PubsubMessage {
    PubsubMessage { attributes: [(name.to_owned(), value.to_owned())].into(), ..message(key, data) }
}

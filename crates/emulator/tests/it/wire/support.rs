//! An emulator on its own port, and raw clients for it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::subscriber_client::SubscriberClient;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use walrelay_emulator::{Emulator, Log, Options, Ordering, SubscriptionOptions};

pub(crate) const TOPIC: &str = "projects/test/topics/orders.events";
pub(crate) const SUBSCRIPTION: &str = "projects/test/subscriptions/orders.all";

/// A running emulator, which ends when dropped.
pub(crate) struct Server {
    pub(crate) emulator: Emulator,
    pub(crate) address: SocketAddr,
    pub(crate) control: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(Options { log: Log::Keep, ..Options::default() }).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let emulator = Emulator::new(options);
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, control) = (grpc.local_addr().unwrap(), http.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        let grpc_server = emulator.clone();
        tasks.spawn(async move { grpc_server.serve(grpc, async { drop(stopped.await) }).await });
        let control_server = emulator.clone();
        tasks.spawn(async move {
            control_server.serve_control(http, std::future::pending()).await.unwrap();
        });
        Self { emulator, address, control, stop: Some(stop), tasks }
    }

    /// Starts an emulator with one topic.
    pub(crate) async fn with_topic() -> Self {
        let server = Self::start().await;
        server.emulator.create_topic(TOPIC).unwrap();
        server
    }

    /// Starts an emulator with one topic and an ordered subscription.
    pub(crate) async fn with_subscription() -> Self {
        let server = Self::with_topic().await;
        let options = SubscriptionOptions { ordering: Ordering::PerKey, ..Default::default() };
        server.emulator.create_subscription(SUBSCRIPTION, TOPIC, options).unwrap();
        server
    }

    pub(crate) fn fault(&self, text: &str) {
        self.emulator.set_fault(text.parse().unwrap());
    }

    /// Sends one Pull request.
    pub(crate) async fn pull(&self, count: i32) -> Result<Vec<proto::ReceivedMessage>, Status> {
        let pull = proto::PullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            max_messages: count,
            ..Default::default()
        };
        let pulled = within(self.subscriber().await.pull(pull)).await?;
        Ok(pulled.into_inner().received_messages)
    }

    /// Sends one Pull request that does not wait for messages.
    #[expect(deprecated, reason = "there is no other way to ask without waiting")]
    pub(crate) async fn pull_now(&self) -> Vec<proto::ReceivedMessage> {
        let pull = proto::PullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            max_messages: 100,
            return_immediately: true,
        };
        let pulled = within(self.subscriber().await.pull(pull)).await;
        pulled.unwrap().into_inner().received_messages
    }

    /// Sends one Acknowledge request.
    pub(crate) async fn acknowledge(
        &self,
        received: &[proto::ReceivedMessage],
    ) -> Result<(), Status> {
        let request = proto::AcknowledgeRequest {
            subscription: SUBSCRIPTION.to_owned(),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
        };
        within(self.subscriber().await.acknowledge(request)).await.map(drop)
    }

    /// Sends one ModifyAckDeadline request.
    pub(crate) async fn modify(
        &self,
        received: &[proto::ReceivedMessage],
        seconds: i32,
    ) -> Result<(), Status> {
        let request = proto::ModifyAckDeadlineRequest {
            subscription: SUBSCRIPTION.to_owned(),
            ack_ids: received.iter().map(|message| message.ack_id.clone()).collect(),
            ack_deadline_seconds: seconds,
        };
        within(self.subscriber().await.modify_ack_deadline(request)).await.map(drop)
    }

    /// Publishes one message per request. Each item is a key and a payload.
    pub(crate) async fn publish(&self, messages: &[(&str, &str)]) {
        let mut publisher = self.publisher().await;
        for (key, data) in messages {
            publisher.publish(request(vec![message(data, key)])).await.unwrap();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(self.url()).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn publisher(&self) -> PublisherClient<Channel> {
        PublisherClient::new(self.channel().await)
    }

    pub(crate) async fn subscriber(&self) -> SubscriberClient<Channel> {
        SubscriberClient::new(self.channel().await)
    }

    /// Stops the gRPC server and waits until it has stopped.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        within(self.tasks.join_next()).await.unwrap().unwrap();
    }
}

/// Limits the wait for an event that should happen soon. The limit is generous, because a loaded
/// machine is slow.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it did not happen in time")
}

pub(crate) fn message(data: &str, key: &str) -> proto::PubsubMessage {
    proto::PubsubMessage {
        data: data.to_owned().into(),
        ordering_key: key.to_owned(),
        attributes: [("event_type".to_owned(), "OrderPaid".to_owned())].into(),
        ..Default::default()
    }
}

pub(crate) fn request(messages: Vec<proto::PubsubMessage>) -> proto::PublishRequest {
    proto::PublishRequest { topic: TOPIC.to_owned(), messages }
}

/// Returns the payloads of all messages stored in the topic.
pub(crate) fn stored(emulator: &Emulator) -> Vec<String> {
    let messages = emulator.published(TOPIC);
    messages.iter().map(|m| String::from_utf8(m.data().to_vec()).unwrap()).collect()
}

/// A raw streaming pull.
pub(crate) struct Stream {
    pub(crate) requests: mpsc::Sender<proto::StreamingPullRequest>,
    pub(crate) replies: Streaming<proto::StreamingPullResponse>,
    pub(crate) received: Vec<proto::ReceivedMessage>,
}

impl Stream {
    pub(crate) async fn open(server: &Server, outstanding: i64) -> Self {
        Self::try_open(server, outstanding).await.unwrap()
    }

    /// Opens a stream, or returns the code of the refusal.
    pub(crate) async fn try_open(server: &Server, outstanding: i64) -> Result<Self, Code> {
        let first = proto::StreamingPullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            stream_ack_deadline_seconds: 60,
            max_outstanding_messages: outstanding,
            ..Default::default()
        };
        Self::from(server, first).await
    }

    pub(crate) async fn from(
        server: &Server,
        first: proto::StreamingPullRequest,
    ) -> Result<Self, Code> {
        let (requests, mut receiver) = mpsc::channel(100);
        requests.send(first).await.unwrap();
        let outbound = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let replies = within(server.subscriber().await.streaming_pull(outbound)).await;
        let replies = replies.map_err(|status| status.code())?.into_inner();
        Ok(Self { requests, replies, received: Vec::new() })
    }

    /// Returns the next `count` payloads.
    pub(crate) async fn next(&mut self, count: usize) -> Vec<String> {
        payloads(&self.take(count).await)
    }

    /// Returns the next `count` messages.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<proto::ReceivedMessage> {
        while self.received.len() < count {
            let reply = within(self.replies.message()).await.unwrap().expect("the stream is open");
            assert!(reply.subscription_properties.unwrap().message_ordering_enabled);
            self.received.extend(reply.received_messages);
        }
        self.received.drain(..count).collect()
    }

    pub(crate) async fn modify(&mut self, seconds: i32, ids: &[&str]) {
        let request = proto::StreamingPullRequest {
            modify_deadline_seconds: vec![seconds; ids.len()],
            modify_deadline_ack_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    pub(crate) async fn acknowledge(&mut self, ids: &[&str]) {
        let ack_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let request = proto::StreamingPullRequest { ack_ids, ..Default::default() };
        self.requests.send(request).await.unwrap();
    }

    /// Closes our half and waits until the server has closed its own.
    pub(crate) async fn close(self) {
        let Self { requests, mut replies, .. } = self;
        drop(requests);
        while within(replies.message()).await.unwrap().is_some() {}
    }

    /// Returns the end of the stream, after all further deliveries.
    pub(crate) async fn end(&mut self) -> Result<(), Code> {
        loop {
            match within(self.replies.message()).await {
                Ok(Some(reply)) => self.received.extend(reply.received_messages),
                Ok(None) => return Ok(()),
                Err(status) => return Err(status.code()),
            }
        }
    }
}

pub(crate) fn payload(received: &proto::ReceivedMessage) -> String {
    let message = received.message.as_ref().unwrap();
    String::from_utf8(message.data.to_vec()).unwrap()
}

pub(crate) fn payloads(received: &[proto::ReceivedMessage]) -> Vec<String> {
    received.iter().map(payload).collect()
}

//! An emulator on a port of its own, and raw clients for it.
#![expect(clippy::unwrap_used, reason = "a test ends where its setup fails")]
#![expect(dead_code, reason = "each test file uses the part it needs")]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::publisher_client::PublisherClient;
use proto::subscriber_client::SubscriberClient;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use walrelay_emulator::{Emulator, Log, Options};

pub(crate) const TOPIC: &str = "projects/test/topics/orders.events";
pub(crate) const SUBSCRIPTION: &str = "projects/test/subscriptions/orders.all";

/// A served emulator; everything ends when it is dropped.
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

    /// With a topic and nothing else.
    pub(crate) async fn with_topic() -> Self {
        let server = Self::start().await;
        server.emulator.create_topic(TOPIC).unwrap();
        server
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

    /// Asks the gRPC server to stop and waits until it has.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        within(self.tasks.join_next()).await.unwrap().unwrap();
    }
}

/// A deadline for what should happen soon; a machine under load is slow.
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

/// The payloads of everything stored in the topic.
pub(crate) fn stored(emulator: &Emulator) -> Vec<String> {
    let messages = emulator.published(TOPIC);
    messages.iter().map(|m| String::from_utf8(m.data().to_vec()).unwrap()).collect()
}

//! Google's own client: it administers what the run needs, receives every message a second time, and
//! publishes a message that the relay would not send.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use google_cloud_auth::credentials::{Builder, Credentials, anonymous};
use google_cloud_pubsub::client::{Publisher, Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::error::PublishError;
use google_cloud_pubsub::model::Message;
use walrelay_testkit::checker::Stored;

use crate::report::Failure;

const SERVICE: &str = "https://pubsub.googleapis.com";

/// The clients, with the credentials of the machine or without any for an emulator.
pub(crate) struct Google {
    topics: TopicAdmin,
    subscriptions: SubscriptionAdmin,
    subscriber: Subscriber,
    endpoint: String,
    credentials: Credentials,
}

/// What Google's client has received.
#[derive(Default)]
pub(crate) struct Received {
    /// Every message, in this order.
    pub(crate) messages: Vec<Stored>,
    /// When each event came for the first time.
    pub(crate) first: BTreeMap<String, Instant>,
}

impl Google {
    pub(crate) async fn connect(emulator: Option<&str>) -> Result<Self, Failure> {
        // The client is built without a TLS provider, and uses the process's provider.
        walrelay_pubsub::install_crypto_provider();
        let (endpoint, credentials) = match emulator {
            Some(host) => (format!("http://{host}"), anonymous::Builder::new().build()),
            None => (SERVICE.to_owned(), Builder::default().build()?),
        };
        let topics = TopicAdmin::builder().with_endpoint(&endpoint);
        let subscriptions = SubscriptionAdmin::builder().with_endpoint(&endpoint);
        let subscriber = Subscriber::builder().with_endpoint(&endpoint);
        Ok(Self {
            topics: topics.with_credentials(credentials.clone()).build().await?,
            subscriptions: subscriptions.with_credentials(credentials.clone()).build().await?,
            subscriber: subscriber.with_credentials(credentials.clone()).build().await?,
            endpoint,
            credentials,
        })
    }

    /// Creates an ordered subscription.
    pub(crate) async fn subscribe(&self, subscription: &str, topic: &str) -> Result<(), Failure> {
        let create = self.subscriptions.create_subscription().set_name(subscription);
        create.set_topic(topic).set_enable_message_ordering(true).send().await?;
        Ok(())
    }

    /// Deletes a topic. Returns false if there was none.
    pub(crate) async fn delete_topic(&self, topic: &str) -> Result<bool, Failure> {
        was_there(self.topics.delete_topic().set_topic(topic).send().await)
    }

    /// Deletes a subscription. Returns false if there was none.
    pub(crate) async fn delete_subscription(&self, subscription: &str) -> Result<bool, Failure> {
        let delete = self.subscriptions.delete_subscription();
        was_there(delete.set_subscription(subscription).send().await)
    }

    /// Receives and acknowledges until the stream fails.
    pub(crate) async fn receive(&self, subscription: &str, received: &RefCell<Received>) {
        let mut stream = self.subscriber.subscribe(subscription).build();
        while let Some(next) = stream.next().await {
            let (message, handler) = match next {
                Ok(next) => next,
                Err(error) => return eprintln!("Google's client stopped: {error}"),
            };
            let attribute = |name| message.attributes.get(name).cloned().unwrap_or_default();
            let mut all = received.borrow_mut();
            all.first.entry(attribute("event_id")).or_insert_with(Instant::now);
            all.messages.push(Stored {
                event_id: attribute("event_id"),
                commit_lsn: attribute("commit_lsn"),
                tx_index: attribute("tx_index"),
                key: message.ordering_key,
                data: message.data.to_vec(),
            });
            handler.ack();
        }
    }

    /// Publishes a message of this many bytes. Returns the name of the status code.
    pub(crate) async fn publish(&self, topic: &str, bytes: usize) -> Result<String, Failure> {
        let publisher = Publisher::builder(topic).with_endpoint(&self.endpoint);
        let publisher = publisher.with_credentials(self.credentials.clone()).build().await?;
        let published = publisher.publish(Message::new().set_data(vec![b'x'; bytes])).await;
        match published {
            Ok(_) => Ok("OK".to_owned()),
            Err(PublishError::Rpc(error)) => Ok(code(&error)),
            Err(error) => Err(error.into()),
        }
    }
}

fn was_there(deleted: Result<(), google_cloud_pubsub::Error>) -> Result<bool, Failure> {
    match deleted {
        Ok(()) => Ok(true),
        Err(error) if code(&error) == "NOT_FOUND" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn code(error: &google_cloud_pubsub::Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.code.name().to_owned())
}

//! The embedded Pub/Sub on its own thread.

use std::future::pending;
use std::time::Duration;

use tokio::time::timeout;
use walrelay_emulator::{Emulator, Fault, FaultId, Log, Options};
use walrelay_testkit::background_server::Background;
use walrelay_testkit::checker::Stored;

/// The project of all topics.
pub const PROJECT: &str = "test";

/// Returns the full name of a topic in [`PROJECT`].
#[must_use]
pub fn topic(name: &str) -> String {
    format!("projects/{PROJECT}/topics/{name}")
}

/// An embedded Pub/Sub that keeps every stored message. It runs on its own thread, so that a test
/// that blocks on a server restart does not stop it.
#[derive(Debug)]
pub struct PubSub {
    emulator: Emulator,
    server: Background,
}

impl PubSub {
    /// Starts an emulator without topics on a random port.
    #[must_use]
    pub fn start() -> Self {
        let emulator = Emulator::new(Options { log: Log::Keep, ..Options::default() });
        let served = emulator.clone();
        let serve = async move |listener| served.serve(listener, pending()).await;
        let server = Background::start("the embedded Pub/Sub", serve);
        Self { emulator, server }
    }

    /// Starts the emulator's control port. The port is open until the returned value is dropped.
    #[must_use]
    pub fn control(&self) -> Background {
        let served = self.emulator.clone();
        let serve = async move |listener| {
            served.serve_control(listener, pending()).await.expect("the control port serves");
        };
        Background::start("the control port", serve)
    }

    /// Returns the address for `PUBSUB_EMULATOR_HOST`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Returns the emulator itself.
    #[must_use]
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Creates a topic by its short name.
    pub fn create_topic(&self, name: &str) {
        self.emulator.create_topic(&topic(name)).expect("a new topic");
    }

    /// Activates a fault such as `key=a,reject=UNAVAILABLE`.
    pub fn fault(&self, text: &str) -> FaultId {
        self.emulator.set_fault(text.parse::<Fault>().expect("a fault"))
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.emulator.clear_faults();
    }

    /// Returns the number of messages stored so far.
    #[must_use]
    pub fn stored_count(&self) -> u64 {
        self.emulator.stats().messages_stored
    }

    /// Waits until at least `count` messages have been stored.
    pub async fn wait_stored(&self, deadline: Duration, count: u64) {
        let enough = self.emulator.wait_until(|emulator| emulator.stats().messages_stored >= count);
        if timeout(deadline, enough).await.is_err() {
            panic!("waited {deadline:?} in vain for {count} messages: {:?}", self.emulator.stats());
        }
    }

    /// Waits until a fault delays at least one request.
    pub async fn wait_held(&self, deadline: Duration) {
        let held = self.emulator.wait_until(|emulator| emulator.stats().held > 0);
        timeout(deadline, held).await.expect("a request is held back");
    }

    /// Returns all stored messages, topic by topic, in the order of storing.
    #[must_use]
    pub fn stored(&self) -> Vec<Stored> {
        self.emulator.topics().iter().flat_map(|name| self.stored_in(name)).collect()
    }

    /// Returns the stored messages of a topic, by its full name.
    #[must_use]
    pub fn stored_in(&self, name: &str) -> Vec<Stored> {
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let messages = self.emulator.published(name);
        let stored = messages.iter().map(|message| Stored {
            event_id: text(message.attribute("event_id")),
            key: message.key().to_owned(),
            commit_lsn: text(message.attribute("commit_lsn")),
            tx_index: text(message.attribute("tx_index")),
            data: message.data().to_vec(),
        });
        stored.collect()
    }
}

//! The embedded Pub/Sub on a thread of its own.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;
use walrelay_emulator::{Emulator, Fault, FaultId, Log, Options};
use walrelay_testkit::checker::Stored;

/// The project all topics are in.
pub const PROJECT: &str = "test";

/// The full name of a topic of [`PROJECT`].
#[must_use]
pub fn topic(name: &str) -> String {
    format!("projects/{PROJECT}/topics/{name}")
}

/// An embedded Pub/Sub that keeps everything it stored. It has a thread of its own, so that a test
/// that waits for a server to restart does not stop it.
#[derive(Debug)]
pub struct PubSub {
    emulator: Emulator,
    address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PubSub {
    /// Starts one without topics on a random port.
    #[must_use]
    pub fn start() -> Self {
        let emulator = Emulator::new(Options { log: Log::Keep, ..Options::default() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let (stop, stopped) = oneshot::channel();
        let served = emulator.clone();
        let thread = thread::spawn(move || serve(&served, listener, stopped));
        Self { emulator, address, stop: Some(stop), thread: Some(thread) }
    }

    /// For `PUBSUB_EMULATOR_HOST`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The broker itself.
    #[must_use]
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Creates a topic by its short name.
    pub fn create_topic(&self, name: &str) {
        self.emulator.create_topic(&topic(name)).expect("a new topic");
    }

    /// Puts a fault in force, as in `key=a,reject=UNAVAILABLE`.
    pub fn fault(&self, text: &str) -> FaultId {
        self.emulator.set_fault(text.parse::<Fault>().expect("a fault"))
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.emulator.clear_faults();
    }

    /// How many messages were ever stored.
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

    /// Waits until requests wait for their release.
    pub async fn wait_held(&self, deadline: Duration) {
        let held = self.emulator.wait_until(|emulator| emulator.stats().held > 0);
        timeout(deadline, held).await.expect("a request is held back");
    }

    /// Everything stored, topic by topic, in the order of storing.
    #[must_use]
    pub fn stored(&self) -> Vec<Stored> {
        self.emulator.topics().iter().flat_map(|name| self.stored_in(name)).collect()
    }

    fn stored_in(&self, name: &str) -> Vec<Stored> {
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

/// Until the other end of `stopped` is gone.
fn serve(emulator: &Emulator, listener: std::net::TcpListener, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async move {
        listener.set_nonblocking(true).expect("a socket that does not block");
        let listener = TcpListener::from_std(listener).expect("a listener");
        emulator.serve(listener, async { drop(stopped.await) }).await;
    });
}

impl Drop for PubSub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the embedded Pub/Sub panicked");
        }
    }
}

//! The emulator's handle, which the servers, the tests and the command share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use serde::Serialize;
use tokio::sync::Notify;
use tonic::{Code, Status};

use crate::faults::active_faults::{FaultId, FaultReport};
use crate::faults::fault::Fault;
use crate::store::broker::{Broker, Log, TopicKey};
use crate::store::message::StoredMessage;
use crate::store::queue::Ordering;
use crate::wire::codes::CODES;

#[derive(Debug, Clone)]
pub struct Options {
    /// Whether every published message is kept for [`Emulator::published`].
    pub log: Log,
    /// The maximum bytes stored in total. Publish returns RESOURCE_EXHAUSTED beyond it.
    pub stored_bytes_max: usize,
    /// The maximum number of open streams on one connection.
    pub concurrent_streams_max: u32,
    /// The seed for the percentages of faults.
    pub seed: u64,
}

impl Options {
    /// Enough for ten million small messages, and within the memory of a test machine.
    pub const STORED_BYTES_MAX_DEFAULT: usize = 2 << 30;
    /// Too high to limit any client. Production allows fewer, and clients open more connections.
    pub const CONCURRENT_STREAMS_MAX_DEFAULT: u32 = 100_000;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: Log::Off,
            stored_bytes_max: Self::STORED_BYTES_MAX_DEFAULT,
            concurrent_streams_max: Self::CONCURRENT_STREAMS_MAX_DEFAULT,
            seed: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// The ack deadline. A streaming pull sets its own. Unlike production, the emulator accepts any
    /// duration here.
    pub ack_deadline: Duration,
    pub ordering: Ordering,
}

impl Default for SubscriptionOptions {
    fn default() -> Self {
        Self { ack_deadline: Duration::from_secs(10), ordering: Ordering::PerKey }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    pub publish_requests: u64,
    /// Publish requests answered, by the name of their code. Requests that wait, met a black hole,
    /// or whose client gave up are not included.
    pub publish_replies: BTreeMap<&'static str, u64>,
    /// Messages stored, including messages of topics without a subscription.
    pub messages_stored: u64,
    /// Messages without a subscription and without a log to store them.
    pub messages_dropped: u64,
    pub request_messages_max: usize,
    /// The maximum number of concurrent Publish requests for one topic and ordering key. The number
    /// is never too high. It misses requests that overlap only while a reply is on its way.
    pub in_flight_per_key_max: u32,
    /// Deliveries of messages. A redelivery counts again.
    pub messages_delivered: u64,
    pub messages_acknowledged: u64,
    pub messages_forwarded: u64,
    /// Calls that currently wait for a release.
    pub held: u64,
    /// The memory of all stored data, in bytes.
    pub stored_bytes: usize,
}

/// An embedded Pub/Sub. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Emulator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    broker: Mutex<Broker>,
    publish_requests: AtomicU64,
    /// The counts, indexed by the number of the code.
    publish_replies: [AtomicU64; 17],
    held: AtomicU64,
    changed: Notify,
}

impl Emulator {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let broker = Broker::new(options.log, options.stored_bytes_max, options.seed);
        let shared = Shared {
            options,
            broker: Mutex::new(broker),
            publish_requests: AtomicU64::new(0),
            publish_replies: Default::default(),
            held: AtomicU64::new(0),
            changed: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Creates a topic, `projects/P/topics/T`.
    ///
    /// # Errors
    ///
    /// Fails if the name is malformed or the topic exists.
    pub fn create_topic(&self, name: &str) -> Result<(), Status> {
        self.broker().insert_topic(proto::Topic { name: name.to_owned(), ..Default::default() })
    }

    /// Makes a topic retain its messages from now on, so that every subscription can seek back to
    /// them.
    ///
    /// # Errors
    ///
    /// Fails if the topic does not exist or the period is out of range.
    pub fn retain(&self, topic: &str, period: Duration) -> Result<(), Status> {
        let mut broker = self.broker();
        let topic = broker.topic_mut(topic)?;
        let period = prost_types::Duration::try_from(period).ok();
        let config = proto::Topic { message_retention_duration: period, ..topic.config.clone() };
        topic.configure(config)
    }

    /// Creates a subscription, `projects/P/subscriptions/S`, to a topic's full name.
    ///
    /// # Errors
    ///
    /// Fails if a name is malformed, the subscription exists, or the topic does not exist.
    pub fn create_subscription(
        &self,
        name: &str,
        topic: &str,
        options: SubscriptionOptions,
    ) -> Result<(), Status> {
        let config = proto::Subscription {
            name: name.to_owned(),
            topic: topic.to_owned(),
            ack_deadline_seconds: i32::try_from(options.ack_deadline.as_secs()).unwrap_or(i32::MAX),
            enable_message_ordering: options.ordering == Ordering::PerKey,
            ..Default::default()
        };
        self.broker().insert_subscription(config, options.ack_deadline).map(drop)
    }

    /// Returns every message published to a topic, in the order of storage. Empty for an unknown
    /// topic, and unless [`Options::log`] is [`Log::Keep`].
    #[must_use]
    pub fn published(&self, topic: &str) -> Vec<StoredMessage> {
        self.broker().topic(topic).map(|topic| topic.log.clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.broker().topics.keys().cloned().collect()
    }

    #[must_use]
    pub fn subscriptions(&self) -> Vec<String> {
        self.broker().subscriptions.keys().cloned().collect()
    }

    /// Activates a fault. If several faults match a request, the oldest one decides.
    pub fn set_fault(&self, fault: Fault) -> FaultId {
        self.broker().faults.set(fault)
    }

    /// Removes a fault and releases the calls it holds. Returns whether the fault existed.
    pub fn clear_fault(&self, id: FaultId) -> bool {
        self.broker().faults.clear(id)
    }

    /// Removes all faults and releases the calls they hold.
    pub fn clear_faults(&self) {
        self.broker().faults.clear_all();
    }

    #[must_use]
    pub fn faults(&self) -> Vec<FaultReport> {
        self.broker().faults.report()
    }

    /// Releases the calls that are held now. Later calls are held again until the fault is removed.
    pub fn release(&self) {
        self.broker().faults.release();
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let replies = CODES.iter().zip(&self.shared.publish_replies);
        let replies = replies.map(|((_, name), count)| (*name, count.load(Relaxed)));
        let broker = self.broker();
        Stats {
            publish_requests: self.shared.publish_requests.load(Relaxed),
            publish_replies: replies.filter(|(_, count)| *count > 0).collect(),
            messages_stored: broker.counts.messages_stored,
            messages_dropped: broker.counts.messages_dropped,
            request_messages_max: broker.counts.request_messages_max,
            in_flight_per_key_max: broker.counts.in_flight_per_key_max,
            messages_delivered: broker.counts.messages_delivered,
            messages_acknowledged: broker.counts.messages_acknowledged,
            messages_forwarded: broker.counts.messages_forwarded,
            held: self.shared.held.load(Relaxed),
            stored_bytes: broker.stored_bytes(),
        }
    }

    /// Waits until the condition is true. The emulator evaluates the condition again after each of
    /// these changes:
    ///
    /// - a Publish request arrived, stored messages or was answered,
    /// - messages were delivered or acknowledged,
    /// - a call began to wait for a release.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Self) -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, or a change in between would be missed.
            changed.as_mut().enable();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn broker(&self) -> MutexGuard<'_, Broker> {
        // The panic is reported by the thread that held the lock, and the state is still usable.
        self.shared.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn changed(&self) {
        self.shared.changed.notify_waiters();
    }

    pub(crate) fn count_request(&self) {
        self.shared.publish_requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_reply(&self, code: Code) {
        let number = usize::try_from(i32::from(code)).unwrap_or_default();
        if let Some(count) = self.shared.publish_replies.get(number) {
            count.fetch_add(1, Relaxed);
        }
        self.changed();
    }

    pub(crate) fn held(&self) -> Held {
        self.shared.held.fetch_add(1, Relaxed);
        self.changed();
        Held { emulator: self.clone() }
    }
}

/// Counts a call as held until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    emulator: Emulator,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.emulator.shared.held.fetch_sub(1, Relaxed);
        self.emulator.changed();
    }
}

/// Counts a request of a key as outstanding until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    emulator: Emulator,
    entered: TopicKey,
}

impl InFlight {
    pub(crate) fn new(emulator: &Emulator, entered: TopicKey) -> Self {
        Self { emulator: emulator.clone(), entered }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.emulator.broker().leave(&self.entered);
    }
}

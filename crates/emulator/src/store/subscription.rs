//! A subscription: the filter on its topic's messages, and its consumers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;
use walrelay_envelope::SubscriptionFilter;

use crate::faults::fault::AckFailure;
use crate::store::confirmation::Confirmation;
use crate::store::message::StoredMessage;
use crate::store::queue::{Allowance, ConsumerId, ConsumerLifetime, Ordering, Queue};
use crate::store::retained::Retained;
use crate::wire::{limits, settings};

/// Seven days, as in production.
const RETENTION_DEFAULT: prost_types::Duration =
    prost_types::Duration { seconds: 7 * 24 * 3600, nanos: 0 };

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) config: proto::Subscription,
    pub(crate) ack_deadline: Duration,
    pub(crate) queue: Queue,
    /// Notified whenever a waiting stream may have work.
    pub(crate) wake: Arc<Notify>,
    filter: Option<SubscriptionFilter>,
    /// The clients with an id, so that they can reconnect as the same consumer.
    clients: HashMap<String, ConsumerId>,
}

impl Subscription {
    /// Creates an empty subscription. `ack_deadline` replaces the deadline of `config`, which has
    /// only whole seconds.
    pub(crate) fn new(config: proto::Subscription, ack_deadline: Duration) -> Result<Self, Status> {
        let ordering =
            if config.enable_message_ordering { Ordering::PerKey } else { Ordering::Ignored };
        let mut subscription = Self {
            ack_deadline,
            queue: Queue::new(ordering, Retained::default()),
            wake: Arc::new(Notify::new()),
            filter: SubscriptionFilter::parse(&config.filter)
                .map_err(|error| Status::invalid_argument(error.to_string()))?,
            clients: HashMap::new(),
            config: proto::Subscription::default(),
        };
        subscription.configure(config)?;
        Ok(subscription)
    }

    /// Changes the mutable settings of a subscription: all but deadline, ordering and filter.
    pub(crate) fn configure(&mut self, mut config: proto::Subscription) -> Result<(), Status> {
        let retention = config.message_retention_duration.get_or_insert(RETENTION_DEFAULT);
        let retention = settings::retention(*retention)?;
        settings::check_subscription(&config)?;
        if let Some(policy) = &mut config.dead_letter_policy {
            policy.max_delivery_attempts = attempts_max(policy.max_delivery_attempts)?;
        }
        self.queue.retained.set_period(config.retain_acked_messages.then_some(retention));
        self.config = config;
        Ok(())
    }

    /// Opens a consumer. A client with a known id gets its former consumer.
    pub(crate) fn open(
        &mut self,
        client_id: &str,
        new: ConsumerId,
        stay: ConsumerLifetime,
        allowance: Allowance,
    ) -> ConsumerId {
        let queue = &mut self.queue;
        // Clients are remembered only while their consumer is open or has leased messages.
        self.clients.retain(|_, consumer| queue.knows(*consumer));
        if let Some(known) = self.clients.get(client_id) {
            queue.reopen(*known, allowance);
            return *known;
        }
        if !client_id.is_empty() {
            self.clients.insert(client_id.to_owned(), new);
        }
        queue.open(new, stay, allowance);
        // Keys may have moved from one stream to another.
        self.wake.notify_waiters();
        new
    }

    /// Adds messages that were published to the topic. Messages that the filter excludes count as
    /// acknowledged.
    pub(crate) fn offer(&mut self, messages: &[StoredMessage], now: SystemTime) {
        self.queue.retained.trim(now);
        for message in messages {
            if self.wants(message) {
                self.queue.push(message.clone());
            }
        }
        self.wake.notify_waiters();
    }

    /// Acknowledges every message published before this time, and makes every other message
    /// unacknowledged that is still stored here or in the topic.
    pub(crate) fn seek_to_time(&mut self, time: SystemTime, kept_by_topic: &[StoredMessage]) {
        let own = self.queue.unacknowledged().chain(self.queue.retained.since(time));
        let known = own.chain(kept_by_topic.iter().filter(|message| self.wants(message)));
        let target = known.filter(|message| message.publish_time() >= time);
        let target = target.map(|message| (message.id(), message.clone())).collect();
        self.seek(target);
    }

    /// Makes exactly these messages unacknowledged, except those that the filter excludes.
    pub(crate) fn seek_to_messages(&mut self, messages: &BTreeMap<u64, StoredMessage>) {
        let wanted = messages.iter().filter(|(_, message)| self.wants(message));
        let target = wanted.map(|(id, message)| (*id, message.clone())).collect();
        self.seek(target);
    }

    fn seek(&mut self, target: BTreeMap<u64, StoredMessage>) {
        self.queue.seek(target);
        self.wake.notify_waiters();
    }

    fn wants(&self, message: &StoredMessage) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| filter.matches(&limits::attributes(message.body())))
    }

    pub(crate) fn is_exactly_once(&self) -> bool {
        self.config.enable_exactly_once_delivery
    }

    /// Acknowledges messages. With exactly-once delivery, messages of a key must be acknowledged in
    /// order.
    pub(crate) fn acknowledge(&mut self, ack_ids: &[String]) -> Result<LeaseChangeResult, Status> {
        let is_exactly_once = self.is_exactly_once();
        self.change(ack_ids, |queue, id| {
            if is_exactly_once && queue.has_unacknowledged_predecessor(id) {
                return Err(AckFailure::Unordered);
            }
            queue.acknowledge(id).then_some(()).ok_or(AckFailure::Invalid)
        })
    }

    /// Sets the deadline to this duration from now. Zero is a nack.
    pub(crate) fn modify(
        &mut self,
        ack_ids: &[String],
        deadline: Duration,
    ) -> Result<LeaseChangeResult, Status> {
        let until = Instant::now() + deadline;
        self.change(ack_ids, |queue, id| {
            let is_known = match deadline.is_zero() {
                true => queue.give_back(id),
                false => queue.extend(id, until),
            };
            is_known.then_some(()).ok_or(AckFailure::Invalid)
        })
    }

    /// Applies a change to each ack id. As in production, unknown and expired ids are ignored, and
    /// a malformed id fails the whole request. With exactly-once delivery, both kinds are reported
    /// as invalid.
    fn change(
        &mut self,
        ack_ids: &[String],
        mut one: impl FnMut(&mut Queue, u64) -> Result<(), AckFailure>,
    ) -> Result<LeaseChangeResult, Status> {
        // Ack ids are decimals in this emulator.
        let mut ids: Vec<_> = ack_ids.iter().map(|id| (id.parse::<u64>().ok(), id)).collect();
        if self.is_exactly_once() {
            // Sorted by delivery order, because one request may acknowledge several messages of a
            // key.
            ids.sort_unstable();
        } else if let Some((_, malformed)) = ids.iter().find(|(parsed, _)| parsed.is_none()) {
            return Err(Status::invalid_argument(format!("malformed ack id {malformed:?}")));
        }
        let mut confirmation = self.is_exactly_once().then(Confirmation::default);
        let mut count = 0;
        for (parsed, id) in ids {
            let outcome = match parsed {
                Some(parsed) => one(&mut self.queue, parsed),
                None => Err(AckFailure::Invalid),
            };
            count += u64::from(outcome.is_ok());
            if let Some(confirmation) = &mut confirmation {
                confirmation.add(id, outcome);
            }
        }
        self.wake.notify_waiters();
        Ok(LeaseChangeResult { count, confirmation })
    }
}

/// Checks the maximum number of deliveries before a message is dead. 0 selects the default.
fn attempts_max(attempts: i32) -> Result<i32, Status> {
    match attempts {
        0 => Ok(5),
        5..=100 => Ok(attempts),
        _ => Err(Status::out_of_range(format!(
            "max_delivery_attempts is {attempts}; 5 to 100 are allowed"
        ))),
    }
}

#[derive(Debug)]
pub(crate) struct LeaseChangeResult {
    pub(crate) count: u64,
    /// The confirmation, only with exactly-once delivery.
    pub(crate) confirmation: Option<Confirmation>,
}

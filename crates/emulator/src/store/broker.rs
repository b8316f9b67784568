//! All state behind the one lock: topics, subscriptions and messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::faults::active_faults::Faults;
use crate::store::message::StoredMessage;
use crate::store::policy::Policy;
use crate::store::queue::ConsumerId;
use crate::store::snapshot::Snapshot;
use crate::store::subscription::Subscription;
use crate::store::topic::Topic;
use crate::wire::limits::PublishRequest;
use crate::wire::names;

/// Whether a topic keeps every published message, for tests to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Log {
    /// Messages are stored only in subscriptions, as in production.
    #[default]
    Off,
    /// Every message is kept until the emulator ends, and counts towards the memory limit.
    Keep,
}

/// Production's topic name in a subscription or snapshot whose topic was deleted.
const DELETED_TOPIC: &str = "_deleted-topic_";

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) messages_stored: u64,
    pub(crate) messages_dropped: u64,
    pub(crate) request_messages_max: usize,
    pub(crate) in_flight_per_key_max: u32,
    pub(crate) messages_delivered: u64,
    pub(crate) messages_acknowledged: u64,
    pub(crate) messages_forwarded: u64,
}

#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) topics: BTreeMap<String, Topic>,
    pub(crate) subscriptions: BTreeMap<String, Subscription>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    /// IAM policies by resource. Stored only.
    pub(crate) policies: BTreeMap<String, Policy>,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    log: Log,
    log_bytes: usize,
    stored_bytes_max: usize,
    next_message_id: u64,
    next_consumer: u64,
}

/// A topic and a key with an unanswered request.
#[derive(Debug, Clone)]
pub(crate) struct TopicKey {
    topic: Arc<str>,
    key: Arc<str>,
}

impl Broker {
    pub(crate) fn new(log: Log, stored_bytes_max: usize, seed: u64) -> Self {
        Self {
            topics: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            policies: BTreeMap::new(),
            faults: Faults::new(seed),
            counts: Counts::default(),
            log,
            log_bytes: 0,
            stored_bytes_max,
            next_message_id: 1,
            next_consumer: 1,
        }
    }

    /// Counts a well-formed request as outstanding. Unordered requests are not limited and not
    /// counted.
    pub(crate) fn enter(
        &mut self,
        request: &PublishRequest<'_>,
    ) -> Result<Option<TopicKey>, Status> {
        let count = request.messages.len();
        let topic = self.topic_mut(request.topic)?;
        let (mut outstanding, mut entered) = (0, None);
        if !request.ordering_key.is_empty() {
            let key = topic.enter(request.ordering_key);
            outstanding = topic.in_flight(&key);
            entered = Some(TopicKey { topic: Arc::clone(&topic.name), key });
        }
        let counts = &mut self.counts;
        counts.in_flight_per_key_max = counts.in_flight_per_key_max.max(outstanding);
        counts.request_messages_max = counts.request_messages_max.max(count);
        Ok(entered)
    }

    /// Reverts `enter`. A topic deleted in between has no counts any more.
    pub(crate) fn leave(&mut self, entered: &TopicKey) {
        if let Some(topic) = self.topics.get_mut(&*entered.topic) {
            topic.leave(&entered.key);
        }
    }

    /// Stores the messages of a checked request that is part of `frame`. Returns the first id. The
    /// others follow it.
    pub(crate) fn store(
        &mut self,
        request: &PublishRequest<'_>,
        frame: &Bytes,
        now: SystemTime,
    ) -> Result<u64, Status> {
        if !self.snapshots.is_empty() {
            self.forget_expired_snapshots(now);
        }
        let first_id = self.next_message_id;
        let count = request.messages.len() as u64;
        let stored_bytes = self.stored_bytes();
        let stored_bytes_max = self.stored_bytes_max;
        let topic = topic_in(&mut self.topics, request.topic)?;
        let copies = topic.subscriptions.len()
            + topic.snapshots.len()
            + usize::from(topic.retained.is_on())
            + usize::from(self.log == Log::Keep);
        if copies == 0 {
            self.next_message_id += count;
            self.counts.messages_dropped += count;
            self.counts.messages_stored += count;
            return Ok(first_id);
        }

        let costs = request.messages.iter().map(|body| StoredMessage::cost_of(body.len()));
        let cost: usize = costs.sum();
        if stored_bytes.saturating_add(cost.saturating_mul(copies)) > stored_bytes_max {
            return Err(Status::resource_exhausted(format!(
                "the emulator stores {stored_bytes} bytes and may store {stored_bytes_max}: \
                 acknowledge messages, or give it more"
            )));
        }
        let messages = copied(request, frame, first_id, now);
        self.append(request.topic, messages, now);
        self.next_message_id += count;
        self.counts.messages_stored += count;
        Ok(first_id)
    }

    /// Adds messages to all subscriptions and snapshots of the topic.
    pub(crate) fn append(&mut self, topic: &str, messages: Vec<StoredMessage>, now: SystemTime) {
        let Some(topic) = self.topics.get_mut(topic) else { return };
        for name in &topic.subscriptions {
            if let Some(subscription) = self.subscriptions.get_mut(name) {
                subscription.offer(&messages, now);
            }
        }
        for name in &topic.snapshots {
            if let Some(snapshot) = self.snapshots.get_mut(name) {
                snapshot.offer(&messages);
            }
        }
        if topic.retained.is_on() {
            topic.retained.trim(now);
            messages.iter().for_each(|message| topic.retained.keep(message.clone()));
        }
        if self.log == Log::Keep {
            self.log_bytes += messages.iter().map(StoredMessage::cost).sum::<usize>();
            topic.log.extend(messages);
        }
    }

    pub(crate) fn stored_bytes(&self) -> usize {
        let queues = self.subscriptions.values().map(|its| its.queue.stored_bytes());
        let topics = self.topics.values().map(|its| its.retained.bytes());
        let snapshots = self.snapshots.values().map(Snapshot::bytes);
        queues.chain(topics).chain(snapshots).sum::<usize>() + self.log_bytes
    }

    /// Returns whether one more message may be stored. That message may exceed the limit.
    pub(crate) fn has_room(&self) -> bool {
        self.stored_bytes() < self.stored_bytes_max
    }

    /// Returns an id for a message that no client has published.
    pub(crate) fn new_message_id(&mut self) -> u64 {
        let id = self.next_message_id;
        self.next_message_id += 1;
        id
    }

    pub(crate) fn new_consumer(&mut self) -> ConsumerId {
        self.next_consumer += 1;
        ConsumerId(self.next_consumer)
    }

    pub(crate) fn topic_mut(&mut self, name: &str) -> Result<&mut Topic, Status> {
        topic_in(&mut self.topics, name)
    }

    pub(crate) fn topic(&self, name: &str) -> Result<&Topic, Status> {
        let missing = || missing(names::check_topic(name), "topic", name);
        self.topics.get(name).ok_or_else(missing)
    }

    pub(crate) fn subscription_mut(&mut self, name: &str) -> Result<&mut Subscription, Status> {
        subscription_in(&mut self.subscriptions, name)
    }

    pub(crate) fn insert_topic(&mut self, config: proto::Topic) -> Result<(), Status> {
        names::check_topic(&config.name)?;
        if self.topics.contains_key(&config.name) {
            return Err(Status::already_exists(format!("topic {:?} exists", config.name)));
        }
        self.topics.insert(config.name.clone(), Topic::new(config)?);
        Ok(())
    }

    pub(crate) fn remove_topic(&mut self, name: &str) -> Result<(), Status> {
        self.topic(name)?;
        let Some(topic) = self.topics.remove(name) else { return Ok(()) };
        self.policies.remove(name);
        let freed: usize = topic.log.iter().map(StoredMessage::cost).sum();
        self.log_bytes -= freed;
        for subscribed in &topic.subscriptions {
            if let Some(subscription) = self.subscriptions.get_mut(subscribed) {
                DELETED_TOPIC.clone_into(&mut subscription.config.topic);
            }
        }
        for of_topic in &topic.snapshots {
            if let Some(snapshot) = self.snapshots.get_mut(of_topic) {
                DELETED_TOPIC.clone_into(&mut snapshot.config.topic);
            }
        }
        Ok(())
    }

    pub(crate) fn insert_subscription(
        &mut self,
        config: proto::Subscription,
        ack_deadline: Duration,
    ) -> Result<proto::Subscription, Status> {
        names::check_subscription(&config.name)?;
        if self.subscriptions.contains_key(&config.name) {
            return Err(Status::already_exists(format!("subscription {:?} exists", config.name)));
        }
        self.check_dead_letter_topic(&config)?;
        let subscription = Subscription::new(config, ack_deadline)?;
        let name = subscription.config.name.clone();
        self.topic_mut(&subscription.config.topic)?.subscriptions.push(name.clone());
        let made = self.described(&subscription.config);
        self.subscriptions.insert(name, subscription);
        Ok(made)
    }

    /// Returns a subscription's configuration, with the values that the service derives from its
    /// topic.
    pub(crate) fn described_subscription(&self, name: &str) -> Result<proto::Subscription, Status> {
        let found = self.subscriptions.get(name);
        let missing = || missing(names::check_subscription(name), "subscription", name);
        let found = found.ok_or_else(missing)?;
        Ok(self.described(&found.config))
    }

    pub(crate) fn described(&self, config: &proto::Subscription) -> proto::Subscription {
        let topic = self.topics.get(&config.topic);
        proto::Subscription {
            topic_message_retention_duration: topic
                .and_then(|topic| topic.config.message_retention_duration),
            ..config.clone()
        }
    }

    pub(crate) fn remove_subscription(&mut self, name: &str) -> Result<(), Status> {
        let subscription = self.subscription_mut(name)?;
        // Streams wake up, find the subscription gone, and end.
        subscription.wake.notify_waiters();
        let topic = std::mem::take(&mut subscription.config.topic);
        if let Some(topic) = self.topics.get_mut(&topic) {
            topic.subscriptions.retain(|its| its != name);
        }
        self.subscriptions.remove(name);
        self.policies.remove(name);
        Ok(())
    }
}

fn topic_in<'a>(
    topics: &'a mut BTreeMap<String, Topic>,
    name: &str,
) -> Result<&'a mut Topic, Status> {
    // The look-up comes first, because an existing name is well-formed and this is the hot path.
    topics.get_mut(name).ok_or_else(|| missing(names::check_topic(name), "topic", name))
}

/// For callers that need another part of the broker at the same time.
pub(crate) fn subscription_in<'a>(
    subscriptions: &'a mut BTreeMap<String, Subscription>,
    name: &str,
) -> Result<&'a mut Subscription, Status> {
    let missing = || missing(names::check_subscription(name), "subscription", name);
    subscriptions.get_mut(name).ok_or_else(missing)
}

/// Copies the messages of a request. The frame is a slice of the connection's read buffer, so
/// keeping the frame could keep the whole buffer alive for a few bytes.
fn copied(
    request: &PublishRequest<'_>,
    frame: &Bytes,
    first_id: u64,
    now: SystemTime,
) -> Vec<StoredMessage> {
    let own = Bytes::copy_from_slice(frame);
    let same = |part: &[u8]| {
        let start = part.as_ptr().addr().saturating_sub(frame.as_ptr().addr());
        own.slice(start..start + part.len())
    };
    let key = match request.ordering_key {
        "" => Bytes::new(),
        key => same(key.as_bytes()),
    };
    let numbered = (first_id..).zip(&request.messages);
    numbered.map(|(id, body)| StoredMessage::new(id, now, key.clone(), same(body))).collect()
}

pub(crate) fn missing(well_formed: Result<(), Status>, what: &str, name: &str) -> Status {
    match well_formed {
        Ok(()) => Status::not_found(format!("{what} {name:?} does not exist")),
        Err(malformed) => malformed,
    }
}

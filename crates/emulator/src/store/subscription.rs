//! A subscription: which messages of its topic it takes, and what consumers do with them.

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::store::filter::Filter;
use crate::store::message::StoredMessage;
use crate::store::queue::{Ordering, Queue};

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) config: proto::Subscription,
    pub(crate) ack_deadline: Duration,
    pub(crate) queue: Queue,
    /// Told whenever a waiting stream may have something to do.
    pub(crate) wake: Arc<Notify>,
    filter: Option<Filter>,
}

impl Subscription {
    /// A subscription with nothing to deliver. The deadline counts, not the one of `config`, which is
    /// in whole seconds.
    pub(crate) fn new(config: proto::Subscription, ack_deadline: Duration) -> Result<Self, Status> {
        let ordering =
            if config.enable_message_ordering { Ordering::PerKey } else { Ordering::Ignored };
        Ok(Self {
            ack_deadline,
            queue: Queue::new(ordering),
            wake: Arc::new(Notify::new()),
            filter: Filter::parse(&config.filter)?,
            config,
        })
    }

    /// Messages were published to the topic. Those that the filter excludes count as acknowledged.
    pub(crate) fn offer(&mut self, messages: &[StoredMessage]) {
        for message in messages {
            if self.filter.as_ref().is_none_or(|filter| filter.matches(message.body())) {
                self.queue.push(message.clone());
            }
        }
        self.wake.notify_waiters();
    }

    pub(crate) fn acknowledge(&mut self, ack_ids: &[u64]) {
        ack_ids.iter().for_each(|id| self.queue.acknowledge(*id));
        self.wake.notify_waiters();
    }

    /// The consumer has this long from now; a deadline of zero gives the messages back.
    pub(crate) fn modify(&mut self, ack_ids: &[u64], deadline: Duration) {
        let until = Instant::now() + deadline;
        for id in ack_ids {
            match deadline.is_zero() {
                true => self.queue.give_back(*id),
                false => self.queue.extend(*id, until),
            }
        }
        self.wake.notify_waiters();
    }
}

//! A subscription: which messages of its topic it takes, and what consumers do with them.

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::faults::fault::Unconfirmed;
use crate::store::confirmation::Confirmation;
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

    pub(crate) fn is_exactly_once(&self) -> bool {
        self.config.enable_exactly_once_delivery
    }

    /// Acknowledges messages. With exactly-once delivery, those of a key only in their order.
    pub(crate) fn acknowledge(&mut self, ack_ids: &[String]) -> Result<Changed, Status> {
        let is_exactly_once = self.is_exactly_once();
        self.change(ack_ids, |queue, id| {
            if is_exactly_once && queue.is_behind_another(id) {
                return Err(Unconfirmed::Unordered);
            }
            queue.acknowledge(id).then_some(()).ok_or(Unconfirmed::Invalid)
        })
    }

    /// The consumer has this long from now; a deadline of zero gives the messages back.
    pub(crate) fn modify(
        &mut self,
        ack_ids: &[String],
        deadline: Duration,
    ) -> Result<Changed, Status> {
        let until = Instant::now() + deadline;
        self.change(ack_ids, |queue, id| {
            let is_known = match deadline.is_zero() {
                true => queue.give_back(id),
                false => queue.extend(id, until),
            };
            is_known.then_some(()).ok_or(Unconfirmed::Invalid)
        })
    }

    /// Ids that are unknown or have expired are ignored, as in production, and a malformed one
    /// refuses all of them; with exactly-once delivery, either is confirmed to be invalid.
    fn change(
        &mut self,
        ack_ids: &[String],
        mut one: impl FnMut(&mut Queue, u64) -> Result<(), Unconfirmed>,
    ) -> Result<Changed, Status> {
        // Ack ids are decimals here.
        let mut ids: Vec<_> = ack_ids.iter().map(|id| (id.parse::<u64>().ok(), id)).collect();
        if self.is_exactly_once() {
            // In the order of delivery: a request may acknowledge several messages of a key.
            ids.sort_unstable();
        } else if let Some((_, malformed)) = ids.iter().find(|(parsed, _)| parsed.is_none()) {
            return Err(Status::invalid_argument(format!("malformed ack id {malformed:?}")));
        }
        let mut confirmation = self.is_exactly_once().then(Confirmation::default);
        let mut count = 0;
        for (parsed, id) in ids {
            let outcome = match parsed {
                Some(parsed) => one(&mut self.queue, parsed),
                None => Err(Unconfirmed::Invalid),
            };
            count += u64::from(outcome.is_ok());
            if let Some(confirmation) = &mut confirmation {
                confirmation.add(id, outcome);
            }
        }
        self.wake.notify_waiters();
        Ok(Changed { count, confirmation })
    }
}

/// What a change has come to.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Messages that were changed.
    pub(crate) count: u64,
    /// Only with exactly-once delivery.
    pub(crate) confirmation: Option<Confirmation>,
}

//! What consumers do: take messages, acknowledge them, change their deadlines.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::faults::fault::{Call, Unconfirmed};
use crate::faults::in_force::{Outcome, Plan, Subject};
use crate::store::broker::{Broker, subscription_in};
use crate::store::confirmation::Confirmation;
use crate::store::queue::{ConsumerId, Delivery};

/// What a consumer got, and how faults treat its delivery.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) deliveries: Vec<Delivery>,
    /// When the next lease ends.
    pub(crate) next_deadline: Option<Instant>,
    pub(crate) plan: Plan,
}

impl Taken {
    /// Whether there is anything to send or to wait for.
    pub(crate) fn is_something(&self) -> bool {
        !self.deliveries.is_empty() || !self.plan.is_undisturbed()
    }
}

/// What a consumer wants with ack ids.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Acknowledge,
    /// This long from now; zero gives back.
    Deadline(Duration),
}

impl Change {
    fn call(self) -> Call {
        match self {
            Self::Acknowledge => Call::Acknowledge,
            Self::Deadline(_) => Call::ModifyAckDeadline,
        }
    }
}

impl Broker {
    /// How a Pull or StreamingPull is to be treated as such.
    pub(crate) fn plan_arrival(&mut self, call: Call, name: &str) -> Result<Plan, Status> {
        let topic = &subscription_in(&mut self.subscriptions, name)?.config.topic;
        Ok(self.faults.plan(&Subject { call, topic, subscription: name, messages: Vec::new() }))
    }

    /// Leases to the consumer what it may have now. Where a fault refuses the delivery or keeps it
    /// back, nothing is leased; where it ends the leases, they have ended.
    pub(crate) fn take(
        &mut self,
        name: &str,
        consumer: ConsumerId,
        deadline: Option<Duration>,
        now: Instant,
    ) -> Result<Taken, Status> {
        let mut deliveries = self.lease(name, consumer, deadline, now)?;
        let plan = self.plan_delivery(name, &deliveries)?;
        let subscription = self.subscription_mut(name)?;
        match plan.outcome {
            Outcome::Reject(_) | Outcome::HoldBefore(_) => {
                subscription.queue.undo(&deliveries);
                deliveries.clear();
                // Other consumers may have them now.
                subscription.wake.notify_waiters();
            }
            Outcome::Expire => {
                for delivery in &deliveries {
                    // The first of a key takes its later ones along; for them this finds nothing.
                    subscription.queue.give_back(delivery.ack_id);
                }
                subscription.wake.notify_waiters();
            }
            Outcome::Undisturbed
            | Outcome::FailAfter(_)
            | Outcome::Hold(_)
            | Outcome::BlackHole
            | Outcome::Lose
            | Outcome::FailIds(_) => {}
        }
        let next_deadline = subscription.queue.next_deadline();
        self.forward_dead_letters(name)?;
        self.counts.messages_delivered += deliveries.len() as u64;
        Ok(Taken { deliveries, next_deadline, plan })
    }

    /// The same when a fault has released what it kept back: it does not strike twice.
    pub(crate) fn take_undisturbed(
        &mut self,
        name: &str,
        consumer: ConsumerId,
        deadline: Option<Duration>,
        now: Instant,
    ) -> Result<Vec<Delivery>, Status> {
        let deliveries = self.lease(name, consumer, deadline, now)?;
        self.counts.messages_delivered += deliveries.len() as u64;
        Ok(deliveries)
    }

    fn lease(
        &mut self,
        name: &str,
        consumer: ConsumerId,
        deadline: Option<Duration>,
        now: Instant,
    ) -> Result<Vec<Delivery>, Status> {
        self.expect_dead_letters(name)?;
        let subscription = self.subscription_mut(name)?;
        if subscription.queue.expire(now) {
            // What expired may have freed keys and allowances of other streams.
            subscription.wake.notify_waiters();
        }
        let until = now + deadline.unwrap_or(subscription.ack_deadline);
        let deliveries = subscription.queue.take(consumer, until);
        if !deliveries.is_empty() && !subscription.queue.is_taking(consumer) {
            // It is full: others may have what is left.
            subscription.wake.notify_waiters();
        }
        self.forward_dead_letters(name)?;
        Ok(deliveries)
    }

    fn plan_delivery(&mut self, name: &str, deliveries: &[Delivery]) -> Result<Plan, Status> {
        let call = Call::Delivery;
        if deliveries.is_empty() || !self.faults.strike(call) {
            return Ok(Plan::UNDISTURBED);
        }
        let topic = &subscription_in(&mut self.subscriptions, name)?.config.topic;
        let messages = deliveries.iter().map(|its| (its.message.key(), &its.message.body()[..]));
        let messages = messages.collect();
        Ok(self.faults.plan(&Subject { call, topic, subscription: name, messages }))
    }

    /// How acknowledgements or new deadlines are to be treated.
    pub(crate) fn plan_change(
        &mut self,
        name: &str,
        ack_ids: &[String],
        change: Change,
    ) -> Result<Plan, Status> {
        let call = change.call();
        let subscription = subscription_in(&mut self.subscriptions, name)?;
        if !self.faults.strike(call) {
            return Ok(Plan::UNDISTURBED);
        }
        let ids = ack_ids.iter().filter_map(|id| id.parse().ok());
        let messages = ids.filter_map(|id| subscription.queue.message(id));
        let messages = messages.map(|message| (message.key(), &message.body()[..])).collect();
        let topic = &subscription.config.topic;
        Ok(self.faults.plan(&Subject { call, topic, subscription: name, messages }))
    }

    /// Acknowledges, or moves deadlines. What is confirmed is told with exactly-once delivery only.
    pub(crate) fn change(
        &mut self,
        name: &str,
        ack_ids: &[String],
        change: Change,
    ) -> Result<Option<Confirmation>, Status> {
        self.expect_dead_letters(name)?;
        let subscription = self.subscription_mut(name)?;
        let changed = match change {
            Change::Acknowledge => {
                let changed = subscription.acknowledge(ack_ids)?;
                self.counts.messages_acknowledged += changed.count;
                changed
            }
            Change::Deadline(deadline) => {
                let changed = subscription.modify(ack_ids, deadline)?;
                self.forward_dead_letters(name)?;
                changed
            }
        };
        Ok(changed.confirmation)
    }

    /// What to tell the client about ack ids with which nothing was done.
    pub(crate) fn pretend(
        &mut self,
        name: &str,
        ack_ids: &[String],
        outcome: Result<(), Unconfirmed>,
    ) -> Result<Option<Confirmation>, Status> {
        let is_told = self.subscription_mut(name)?.is_exactly_once();
        Ok(is_told.then(|| Confirmation::of_all(ack_ids, outcome)))
    }
}

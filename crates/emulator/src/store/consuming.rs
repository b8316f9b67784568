//! The operations of consumers: take messages, acknowledge them, change their deadlines.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::faults::active_faults::{CallFacts, Outcome, Plan};
use crate::faults::fault::{AckFailure, Call};
use crate::store::broker::{Broker, subscription_in};
use crate::store::confirmation::Confirmation;
use crate::store::queue::{ConsumerId, Delivery};

/// The messages taken by a consumer, and the faults' treatment of their delivery.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) deliveries: Vec<Delivery>,
    /// The time at which the next lease ends.
    pub(crate) next_deadline: Option<Instant>,
    pub(crate) plan: Plan,
}

impl Taken {
    /// Returns whether there are messages to send or a fault to apply.
    pub(crate) fn is_something(&self) -> bool {
        !self.deliveries.is_empty() || !self.plan.is_undisturbed()
    }
}

/// The change that a consumer requests for ack ids.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Acknowledge,
    /// A new deadline from now. Zero is a nack.
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
    /// Returns the faults' treatment of a Pull or StreamingPull on its arrival.
    pub(crate) fn plan_arrival(&mut self, call: Call, name: &str) -> Result<Plan, Status> {
        let topic = &subscription_in(&mut self.subscriptions, name)?.config.topic;
        Ok(self.faults.plan(&CallFacts { call, topic, subscription: name, messages: Vec::new() }))
    }

    /// Leases to the consumer the messages that it may have now. If a fault rejects or holds the
    /// delivery, no message is leased. If a fault expires the leases, they have ended.
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
                // Other consumers may take these messages now.
                subscription.wake.notify_waiters();
            }
            Outcome::Expire => {
                for delivery in &deliveries {
                    // The first message of a key also requeues its later ones, for which this call
                    // does nothing.
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

    /// Takes messages after a fault has released them, without applying the fault again.
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
            // Expired leases may have freed keys and allowances of other streams.
            subscription.wake.notify_waiters();
        }
        let until = now + deadline.unwrap_or(subscription.ack_deadline);
        let deliveries = subscription.queue.take(consumer, until);
        if !deliveries.is_empty() && !subscription.queue.is_taking(consumer) {
            // The consumer is full, so others may take the remaining messages.
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
        Ok(self.faults.plan(&CallFacts { call, topic, subscription: name, messages }))
    }

    /// Returns the faults' treatment of acknowledgements or new deadlines.
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
        Ok(self.faults.plan(&CallFacts { call, topic, subscription: name, messages }))
    }

    /// Acknowledges messages, or moves deadlines. Returns a confirmation only with exactly-once
    /// delivery.
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

    /// Returns the confirmation for ack ids that a fault left unchanged.
    pub(crate) fn pretend(
        &mut self,
        name: &str,
        ack_ids: &[String],
        outcome: Result<(), AckFailure>,
    ) -> Result<Option<Confirmation>, Status> {
        let is_told = self.subscription_mut(name)?.is_exactly_once();
        Ok(is_told.then(|| Confirmation::of_all(ack_ids, outcome)))
    }
}

//! A consumer of a subscription: one Pull call, or one stream from its opening to its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::streaming_pull_response::SubscriptionProperties;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::emulator::Emulator;
use crate::faults::active_faults::Outcome;
use crate::faults::fault::Call;
use crate::store::consuming::Taken;
use crate::store::queue::{Allowance, ConsumerId, ConsumerLifetime, Delivery};

pub(crate) struct Consumer {
    emulator: Emulator,
    subscription: String,
    id: ConsumerId,
    /// The stream's own deadline, which replaces the subscription's.
    deadline: Mutex<Option<Duration>>,
    /// Notified whenever new messages may be available.
    pub(crate) wake: Arc<Notify>,
    /// The subscription's properties that a stream reports.
    pub(crate) properties: SubscriptionProperties,
}

pub(crate) struct ConsumerRequest<'a> {
    pub(crate) call: Call,
    pub(crate) subscription: &'a str,
    /// The client's id, with which a stream can be reopened as the same consumer. Empty if the
    /// client has none.
    pub(crate) client_id: &'a str,
    pub(crate) allowance: Allowance,
    pub(crate) deadline: Option<Duration>,
}

/// The part of the taken messages to send.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Messages(Vec<Delivery>),
    /// The messages, followed by the error.
    MessagesAndEnd(Vec<Delivery>, Status),
    /// No messages, because a fault loses the reply.
    Nothing,
}

impl Consumer {
    /// Opens a consumer once the faults allow it.
    pub(crate) async fn open(
        emulator: &Emulator,
        wanted: ConsumerRequest<'_>,
    ) -> Result<Self, Status> {
        arrive(emulator, wanted.call, wanted.subscription).await?;
        let mut broker = emulator.broker();
        let new = broker.new_consumer();
        let its = broker.subscription_mut(wanted.subscription)?;
        let stay = if wanted.call == Call::Pull {
            ConsumerLifetime::Call
        } else {
            ConsumerLifetime::Stream
        };
        let id = its.open(wanted.client_id, new, stay, wanted.allowance);
        Ok(Self {
            emulator: emulator.clone(),
            subscription: wanted.subscription.to_owned(),
            id,
            deadline: Mutex::new(wanted.deadline),
            wake: Arc::clone(&its.wake),
            properties: SubscriptionProperties {
                message_ordering_enabled: its.config.enable_message_ordering,
                exactly_once_delivery_enabled: its.is_exactly_once(),
            },
        })
    }

    pub(crate) fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    pub(crate) fn subscription(&self) -> &str {
        &self.subscription
    }

    /// Takes the messages that may be delivered now.
    pub(crate) fn take(&self) -> Result<Taken, Status> {
        let now = Instant::now();
        let deadline = self.deadline();
        let taken = self.emulator.broker().take(&self.subscription, self.id, deadline, now)?;
        if taken.is_something() {
            self.emulator.changed();
        }
        Ok(taken)
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
    }

    fn deadline(&self) -> Option<Duration> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as a fault demands, and returns the messages to send.
    pub(crate) async fn send_as_planned(&self, taken: Taken) -> Result<Outgoing, Status> {
        let Taken { deliveries, plan, .. } = taken;
        let delayed = async || {
            if !plan.delay.is_zero() {
                tokio::time::sleep(plan.delay).await;
            }
        };
        delayed().await;
        match plan.outcome {
            Outcome::Undisturbed | Outcome::Expire => Ok(Outgoing::Messages(deliveries)),
            Outcome::Reject(code) => Err(Status::new(code, "a fault refuses this delivery")),
            Outcome::FailAfter(code) => {
                let end = Status::new(code, "a fault ends this call; the messages are leased");
                Ok(Outgoing::MessagesAndEnd(deliveries, end))
            }
            Outcome::Hold(release) => {
                let _held = self.emulator.held();
                release.wait().await;
                Ok(Outgoing::Messages(deliveries))
            }
            Outcome::HoldBefore(release) => {
                let held = self.emulator.held();
                release.wait().await;
                drop(held);
                let (now, deadline) = (Instant::now(), self.deadline());
                let mut broker = self.emulator.broker();
                let released = broker.take_undisturbed(&self.subscription, self.id, deadline, now);
                Ok(Outgoing::Messages(released?))
            }
            // The last two affect other calls only.
            Outcome::BlackHole | Outcome::Lose | Outcome::FailIds(_) => Ok(Outgoing::Nothing),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let mut broker = self.emulator.broker();
        if let Ok(subscription) = broker.subscription_mut(&self.subscription) {
            subscription.queue.close(self.id);
            // Other consumers may take the messages that this one would have taken.
            subscription.wake.notify_waiters();
        }
    }
}

/// Waits until a Pull or a StreamingPull may begin, for ever if a fault demands it.
async fn arrive(emulator: &Emulator, call: Call, subscription: &str) -> Result<(), Status> {
    let plan = emulator.broker().plan_arrival(call, subscription)?;
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    match plan.outcome {
        Outcome::Reject(code) => Err(Status::new(code, "a fault rejects this call")),
        Outcome::HoldBefore(release) => {
            let _held = emulator.held();
            release.wait().await;
            Ok(())
        }
        Outcome::BlackHole => {
            emulator.changed();
            std::future::pending().await
        }
        // All but the first affect other calls only.
        Outcome::Undisturbed
        | Outcome::FailAfter(_)
        | Outcome::Hold(_)
        | Outcome::Lose
        | Outcome::Expire
        | Outcome::FailIds(_) => Ok(()),
    }
}

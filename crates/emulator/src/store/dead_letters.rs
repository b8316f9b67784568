//! Dead-lettering of messages that were delivered too often.

use std::time::SystemTime;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use prost_types::Timestamp;
use tonic::Status;

use crate::store::broker::Broker;
use crate::store::message::StoredMessage;
use crate::store::queue::{DeadLetter, DeadLetters};

impl Broker {
    /// Checks that a subscription's dead-letter topic exists.
    pub(crate) fn check_dead_letter_topic(
        &self,
        config: &proto::Subscription,
    ) -> Result<(), Status> {
        match &config.dead_letter_policy {
            Some(policy) => self.topic(&policy.dead_letter_topic).map(drop),
            None => Ok(()),
        }
    }

    /// Updates whether dead messages can be forwarded. Must run before every operation that may
    /// requeue messages.
    pub(crate) fn expect_dead_letters(&mut self, name: &str) -> Result<(), Status> {
        let policy = self.subscription_mut(name)?.config.dead_letter_policy.clone();
        let dead_letters = policy.map(|policy| DeadLetters {
            attempts_max: policy.max_delivery_attempts.unsigned_abs(),
            may_forward: self.topics.contains_key(&policy.dead_letter_topic) && self.has_room(),
        });
        self.subscription_mut(name)?.queue.dead_letters = dead_letters;
        Ok(())
    }

    /// Publishes a subscription's dead messages to its dead-letter topic.
    pub(crate) fn forward_dead_letters(&mut self, name: &str) -> Result<(), Status> {
        let subscription = self.subscription_mut(name)?;
        let dead = subscription.queue.take_dead();
        let Some(policy) = subscription.config.dead_letter_policy.clone() else { return Ok(()) };
        if dead.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now();
        let forwarded =
            dead.iter().map(|letter| forwarded(letter, name, self.new_message_id(), now));
        let forwarded: Vec<StoredMessage> = forwarded.collect();
        self.counts.messages_forwarded += forwarded.len() as u64;
        self.append(&policy.dead_letter_topic, forwarded, now);
        Ok(())
    }
}

/// Returns the message with the attributes that production adds.
fn forwarded(letter: &DeadLetter, subscription: &str, id: u64, now: SystemTime) -> StoredMessage {
    let mut parts = subscription.split('/');
    let (project, short_name) =
        (parts.nth(1).unwrap_or_default(), parts.nth(1).unwrap_or_default());
    let published = Timestamp::from(letter.message.publish_time()).to_string();
    letter.message.forwarded(
        id,
        now,
        &[
            ("CloudPubSubDeadLetterSourceDeliveryCount", &letter.attempts.to_string()),
            ("CloudPubSubDeadLetterSourceSubscription", short_name),
            ("CloudPubSubDeadLetterSourceSubscriptionProject", project),
            ("CloudPubSubDeadLetterSourceTopicPublishTime", &published.replace('Z', "+00:00")),
        ],
    )
}

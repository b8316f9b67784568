//! Checks a subscription for settings that harm its consumer.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;

/// A setting of a subscription that harms its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionWarning {
    /// The subscription has no message ordering.
    Unordered,
    /// Pub/Sub dead-letters messages after some deliveries without an acknowledgement.
    DeadLetters,
}

impl SubscriptionWarning {
    /// Returns the warnings for this subscription.
    pub fn of(subscription: &Subscription) -> impl Iterator<Item = Self> {
        let unordered = (!subscription.enable_message_ordering).then_some(Self::Unordered);
        let dead_letters = subscription.dead_letter_policy.is_some().then_some(Self::DeadLetters);
        unordered.into_iter().chain(dead_letters)
    }

    /// Returns the warning, to follow the name of the subscription.
    #[must_use]
    pub const fn told(self) -> &'static str {
        match self {
            Self::Unordered => "does not deliver in order: events of a key may be late",
            Self::DeadLetters => {
                "has a dead-letter topic: an outage of the database sends healthy messages there"
            }
        }
    }

    /// Returns the fix.
    #[must_use]
    pub const fn fix(self) -> &'static str {
        match self {
            Self::Unordered => {
                "create an ordered subscription, and move the consumer to it: ordering is chosen when a subscription is \
                 created"
            }
            Self::DeadLetters => {
                "remove the dead-letter policy, or let the same consumer drain the dead-letter subscription"
            }
        }
    }
}

//! Checks a subscription for settings that harm its consumer.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{DeadLetterPolicy, Subscription};
use walrelay_pubsub::Subscriber;

/// The greatest number of deliveries after which Pub/Sub forwards a message to the dead-letter
/// topic. With fewer deliveries, a short outage forwards healthy messages.
pub const DELIVERY_ATTEMPTS_MAX: i32 = 100;

/// A setting of a subscription that harms its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionWarning {
    /// The subscription has no message ordering.
    Unordered,
    /// Pub/Sub dead-letters messages after some deliveries without an acknowledgement, and nothing
    /// is known to retain them in order.
    DeadLetters,
}

impl SubscriptionWarning {
    /// Reads the subscription of the dead letters, and returns the warnings for this subscription.
    pub async fn read(subscriber: &Subscriber, subscription: &Subscription) -> Vec<Self> {
        let letters = match dead_letter_subscription(subscription) {
            // Without the permission to read it, the warning stays.
            Some(name) => subscriber.subscription(&name).await.ok().flatten(),
            None => None,
        };
        Self::of(subscription, letters.as_ref())
    }

    /// Returns the warnings for this subscription, whose dead letters the other one retains.
    #[must_use]
    pub fn of(subscription: &Subscription, letters: Option<&Subscription>) -> Vec<Self> {
        let mut warnings = Vec::new();
        if !subscription.enable_message_ordering {
            warnings.push(Self::Unordered);
        }
        if let Some(policy) = &subscription.dead_letter_policy
            && !letters.is_some_and(|letters| is_drainable(policy, letters))
        {
            warnings.push(Self::DeadLetters);
        }
        warnings
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

/// Returns whether the consumer can drain the dead letters later, in order: the settings that
/// `consumer init` creates.
fn is_drainable(policy: &DeadLetterPolicy, letters: &Subscription) -> bool {
    policy.max_delivery_attempts >= DELIVERY_ATTEMPTS_MAX
        && letters.topic == policy.dead_letter_topic
        && letters.enable_message_ordering
}

/// Returns the full name of the subscription of the dead letters. `consumer init` gives it the name
/// of the dead-letter topic.
pub(crate) fn dead_letter_subscription(subscription: &Subscription) -> Option<String> {
    let policy = subscription.dead_letter_policy.as_ref()?;
    Some(policy.dead_letter_topic.replacen("/topics/", "/subscriptions/", 1))
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "projects/p/topics/order.events.billing.dead";

    /// Returns a subscription as `consumer init` creates it, with this number of deliveries.
    fn with_dead_letters(max_delivery_attempts: i32) -> Subscription {
        let policy =
            DeadLetterPolicy { dead_letter_topic: TOPIC.to_owned(), max_delivery_attempts };
        Subscription {
            enable_message_ordering: true,
            dead_letter_policy: Some(policy),
            ..Subscription::default()
        }
    }

    fn letters() -> Subscription {
        Subscription {
            topic: TOPIC.to_owned(),
            enable_message_ordering: true,
            ..Subscription::default()
        }
    }

    #[test]
    fn the_subscription_of_dead_letters_has_the_name_of_their_topic() {
        let name = "projects/p/subscriptions/order.events.billing.dead";
        assert_eq!(dead_letter_subscription(&with_dead_letters(100)).as_deref(), Some(name));
        assert_eq!(dead_letter_subscription(&Subscription::default()), None);
    }

    #[test]
    fn dead_letters_that_the_consumer_can_drain_in_order_are_no_warning() {
        let of = |attempts, letters: Option<&Subscription>| {
            SubscriptionWarning::of(&with_dead_letters(attempts), letters)
        };
        assert_eq!(of(100, Some(&letters())), []);
        let warning = [SubscriptionWarning::DeadLetters];
        assert_eq!(of(5, Some(&letters())), warning);
        assert_eq!(of(100, None), warning);
        let unordered = Subscription { enable_message_ordering: false, ..letters() };
        assert_eq!(of(100, Some(&unordered)), warning);
        let elsewhere = Subscription { topic: "_deleted-topic_".to_owned(), ..letters() };
        assert_eq!(of(100, Some(&elsewhere)), warning);
    }
}

//! The fix of an error, with the names of the case.

use crate::output::text::visible;

pub(crate) mod names;
pub(crate) mod protocol;
pub(crate) mod rebuild;
pub(crate) mod relay;

/// Returns the command that creates the missing subscription of a consumer.
#[must_use]
pub(crate) fn create_subscription(consumer: &str, subscription: &str) -> String {
    let (consumer, subscription) = (visible(consumer), visible(subscription));
    format!(
        "walrelay consumer init {consumer} --subscription {subscription} --create --topic TOPIC"
    )
}

/// Returns the steps that replace a subscription whose topic was deleted. A topic that is created
/// again does not reach it, and Pub/Sub cannot attach it again.
#[must_use]
pub(crate) fn replace_orphan(consumer: &str, subscription: &str) -> String {
    format!(
        "once no message waits: gcloud pubsub subscriptions delete {}; then {}; then walrelay audit names the events that are missing",
        visible(subscription),
        create_subscription(consumer, subscription)
    )
}

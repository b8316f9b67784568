//! The fix of an error, with the names of the case.

use crate::text::visible;

pub(crate) mod names;
pub mod protocol;
pub(crate) mod rebuild;
pub mod relay;

/// Returns the command that creates the missing subscription of a consumer.
#[must_use]
pub fn create_subscription(consumer: &str, subscription: &str) -> String {
    let (consumer, subscription) = (visible(consumer), visible(subscription));
    format!(
        "walrelay consumer init {consumer} --subscription {subscription} --create --topic TOPIC"
    )
}

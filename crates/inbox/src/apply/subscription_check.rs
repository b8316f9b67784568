//! Checks while the loop runs whether the subscription still has a topic. The stream of a subscription
//! whose topic was deleted stays open and silent.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};
use walrelay_pubsub::{DELETED_TOPIC, PubsubError, Subscriber};

const CHECK_EVERY: Duration = Duration::from_secs(30);

/// Whether the topic of a subscription exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopicState {
    Exists,
    Deleted,
}

pub(crate) struct SubscriptionCheck {
    subscriber: Subscriber,
    subscription: String,
    next_at: Instant,
    asking: Option<BoxFuture<'static, Result<Option<TopicState>, PubsubError>>>,
}

impl SubscriptionCheck {
    /// The first check is due at once.
    pub(crate) fn new(subscriber: Subscriber, subscription: &str) -> Self {
        let subscription = subscription.to_owned();
        Self { subscriber, subscription, next_at: Instant::now(), asking: None }
    }

    /// Waits for the next answer. If the service does not answer, or has no such subscription, the
    /// stream reports it.
    ///
    /// # Cancel safety
    ///
    /// No answer is lost if the future is dropped.
    pub(crate) async fn answer(&mut self) -> TopicState {
        loop {
            let asking = match &mut self.asking {
                Some(asking) => asking,
                None => {
                    sleep_until(self.next_at).await;
                    self.asking.insert(ask(self.subscriber.clone(), self.subscription.clone()))
                }
            };
            let answer = asking.await;
            self.asking = None;
            self.next_at = Instant::now() + CHECK_EVERY;
            match answer {
                Ok(Some(state)) => return state,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the subscription cannot be checked"),
            }
        }
    }
}

fn ask(
    subscriber: Subscriber,
    name: String,
) -> BoxFuture<'static, Result<Option<TopicState>, PubsubError>> {
    async move {
        let found = subscriber.subscription(&name).await?;
        Ok(found.map(|it| match it.topic == DELETED_TOPIC {
            true => TopicState::Deleted,
            false => TopicState::Exists,
        }))
    }
    .boxed()
}

impl std::fmt::Debug for SubscriptionCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscriptionCheck").field("next_at", &self.next_at).finish_non_exhaustive()
    }
}

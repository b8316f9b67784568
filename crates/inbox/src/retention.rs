//! How long rows of the inbox must stay: longer than Pub/Sub may deliver their events again (C10).

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use walrelay_pubsub::Subscriber;

use crate::error::InboxError;
use crate::prune::PruneStep;
use crate::subscription_warning::dead_letter_subscription;

/// The time that rows stay beyond the retention of Pub/Sub.
pub const RETENTION_MARGIN: Duration = Duration::from_hours(24);

/// Pub/Sub's default message retention.
pub const PUBSUB_RETENTION_DEFAULT: Duration = Duration::from_hours(7 * 24);

/// The longest life of a message in a snapshot of a subscription, with any retention.
const SNAPSHOT_LIFETIME: Duration = Duration::from_hours(7 * 24);

/// The longest message retention of a subscription or topic.
const PUBSUB_RETENTION_MAX: Duration = Duration::from_hours(31 * 24);

/// The longest pause between two steps of a run.
const STEP_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The periodic deletion of finished rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxRetention {
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// The time between two runs.
    pub every: Duration,
    /// The positions of ordering keys without events of that age.
    pub idle_keys: IdleKeys,
}

/// What happens to the positions of ordering keys that had no event for a long time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleKeys {
    /// They stay.
    Keep,
    /// They are deleted.
    Delete,
}

impl InboxRetention {
    /// Refuses an age within which Pub/Sub may deliver an event of the subscription again. The
    /// event's row would be gone, and the event would be applied twice.
    pub(crate) fn refuse_short(
        self,
        subscription: &str,
        window: Duration,
    ) -> Result<(), InboxError> {
        let least = window + RETENTION_MARGIN;
        match self.older_than < least {
            true => Err(InboxError::RetentionTooShort {
                subscription: subscription.to_owned(),
                older_than: self.older_than,
                least,
            }),
            false => Ok(()),
        }
    }

    /// Returns the time until the next step: the end of a pause, or the next run.
    pub(crate) fn next_step_in(self, step: PruneStep, took: Duration) -> Duration {
        match step.has_more {
            // Other transactions get at least half of the time.
            true => took.min(STEP_PAUSE_MAX),
            false => self.every,
        }
    }
}

/// Returns how long a subscription, its topic and its snapshots retain messages, acknowledged
/// messages included.
fn redelivery_window(subscription: &Subscription) -> Duration {
    let duration = |it: Option<prost_types::Duration>| it.and_then(|it| it.try_into().ok());
    let its = duration(subscription.message_retention_duration).unwrap_or(PUBSUB_RETENTION_DEFAULT);
    let topics = duration(subscription.topic_message_retention_duration).unwrap_or(Duration::ZERO);
    its.max(topics).max(SNAPSHOT_LIFETIME)
}

/// Returns how long Pub/Sub may deliver a message of the subscription again. A message that is
/// forwarded to the dead-letter topic at the end of its retention is retained once more there.
pub async fn redelivery_window_with_dead_letters(
    subscriber: &Subscriber,
    subscription: &Subscription,
) -> Duration {
    let Some(name) = dead_letter_subscription(subscription) else {
        return redelivery_window(subscription);
    };
    let dead_letters = match subscriber.subscription(&name).await {
        Ok(Some(found)) => redelivery_window(&found),
        // The topic may have a subscription of another name, or get one.
        Ok(None) => PUBSUB_RETENTION_DEFAULT,
        // The role may not read it.
        Err(_) => PUBSUB_RETENTION_MAX,
    };
    redelivery_window(subscription) + dead_letters
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn an_age_is_refused_within_which_a_topic_a_subscription_or_a_snapshot_may_deliver_again() {
        let days = |days: i64| Some(prost_types::Duration { seconds: days * 24 * 3600, nanos: 0 });
        let plain = Subscription::default();
        let long_topic =
            Subscription { topic_message_retention_duration: days(31), ..plain.clone() };
        let short = Subscription { message_retention_duration: days(1), ..plain.clone() };
        for (subscription, least) in [(&plain, 8), (&long_topic, 32), (&short, 8)] {
            let of =
                |older_than| InboxRetention { older_than, every: DAY, idle_keys: IdleKeys::Keep };
            let window = redelivery_window(subscription);
            assert!(of(DAY * least).refuse_short("s", window).is_ok());
            let refused = of(DAY * least - Duration::from_secs(1)).refuse_short("s", window);
            assert!(matches!(refused, Err(InboxError::RetentionTooShort { .. })));
        }
    }

    #[test]
    fn a_run_with_rows_left_pauses_briefly_and_a_complete_one_for_the_interval() {
        let retention = InboxRetention { older_than: DAY, every: DAY, idle_keys: IdleKeys::Keep };
        let took = Duration::from_millis(300);
        let step = |has_more| PruneStep { rows: 1, keys: 0, has_more };
        assert_eq!(retention.next_step_in(step(true), took), took);
        assert_eq!(retention.next_step_in(step(true), DAY), STEP_PAUSE_MAX);
        assert_eq!(retention.next_step_in(step(false), took), DAY);
    }
}

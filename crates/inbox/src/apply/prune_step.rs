//! One step of `consumer run --prune-older-than`, in a short transaction.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use walrelay_errors::{Chain, Coded};
use walrelay_pubsub::Subscriber;

use crate::apply::apply_batch::Connection;
use crate::apply::apply_error::ApplyError;
use crate::error::InboxError;
use crate::idle_keys::{IdleKeysStep, delete_idle_keys};
use crate::metrics::Metrics;
use crate::prune::{PruneStep, prune_step};
use crate::retention::{IdleKeys, InboxRetention, redelivery_window_with_dead_letters};

/// The time limit of a step.
const STEP_TIMEOUT: Duration = Duration::from_mins(2);

/// The consumer, and the subscription whose retention limits the age.
#[derive(Debug, Clone)]
pub(crate) struct PruneOrder {
    pub(crate) consumer: Arc<str>,
    pub(crate) subscriber: Subscriber,
    pub(crate) subscription: Arc<str>,
    pub(crate) retention: InboxRetention,
}

#[derive(Debug)]
pub(crate) struct PruneStepEnd {
    /// `None` if nothing may be deleted while a rebuild is unfinished.
    pub(crate) ended: Result<Option<PruneStep>, InboxError>,
    pub(crate) took: Duration,
}

impl PruneOrder {
    /// Deletes some old rows. Reads the retention of the subscription before each step, because an
    /// operator may have raised it.
    pub(crate) async fn step(self, connection: &mut Connection) -> PruneStepEnd {
        let began = Instant::now();
        let ended = match timeout(STEP_TIMEOUT, self.delete(connection)).await {
            Ok(ended) => ended,
            Err(_) => {
                connection.forget();
                Err(InboxError::Inbox { problem: ApplyError::Silent.to_string() })
            }
        };
        PruneStepEnd { ended, took: began.elapsed() }
    }

    async fn delete(&self, connection: &mut Connection) -> Result<Option<PruneStep>, InboxError> {
        let unusable = |error: ApplyError| InboxError::Inbox { problem: error.to_string() };
        let found = self.subscriber.subscription(&self.subscription).await?;
        let Some(found) = found else {
            let subscription = self.subscription.to_string();
            return Err(InboxError::SubscriptionMissing { subscription });
        };
        let window = redelivery_window_with_dead_letters(&self.subscriber, &found).await;
        self.retention.refuse_short(&found.name, window)?;
        let row = connection.registration(&self.consumer).await.map_err(unusable)?;
        if row.is_none_or(|row| row.rebuild.is_some()) {
            return Ok(None);
        }
        let client = connection.client().await.map_err(unusable)?;
        let older_than = self.retention.older_than;
        let step = prune_step(client, &self.consumer, older_than).await?;
        if step.has_more || self.retention.idle_keys == IdleKeys::Keep {
            return Ok(Some(step));
        }
        let IdleKeysStep { keys, has_more } =
            delete_idle_keys(client, &self.consumer, older_than).await?;
        Ok(Some(PruneStep { keys, has_more, ..step }))
    }
}

impl PruneStepEnd {
    /// Reports the step, and returns the time until the next one.
    pub(crate) fn report(&self, retention: InboxRetention, metrics: &Metrics) -> Duration {
        match &self.ended {
            Ok(None) => {
                tracing::info!("old rows stay in the inbox: a rebuild is not finished");
                retention.every
            }
            Ok(Some(step)) => {
                metrics.retention.step(step);
                if !step.has_more {
                    tracing::info!("old rows are deleted from the inbox");
                }
                retention.next_step_in(*step, self.took)
            }
            Err(error) => {
                metrics.retention.failures.inc();
                let (error_code, next_in) = (error.code().name(), retention.every);
                let error = Chain(error);
                tracing::warn!(error_code, %error, ?next_in, "old rows stay in the inbox");
                retention.every
            }
        }
    }
}

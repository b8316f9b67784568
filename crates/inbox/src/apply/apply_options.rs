//! The options that apply to all batches of a consumer.

use std::time::Duration;

use crate::apply::handler_kind::Effect;
use crate::settings::{Dedupe, OnDead, OnGap};

/// The error code of an event whose key lacks an earlier version.
pub(crate) const VERSION_GAP: &str = "VERSION_GAP";

/// The options with which every batch of a consumer is applied.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) consumer: String,
    pub(crate) generation: i32,
    pub(crate) effect: Effect,
    pub(crate) on_dead: OnDead,
    pub(crate) max_attempts: i32,
    pub(crate) on_gap: OnGap,
    pub(crate) dedupe: Dedupe,
    pub(crate) handler_timeout: Duration,
    pub(crate) lock_timeout: Duration,
}

/// The wait for a lock, long enough for another batch to release it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait for a lock for an event in doubt. Such an event is retried often, and each wait
/// occupies a worker.
const LOCK_TIMEOUT_DOUBTFUL: Duration = Duration::from_millis(200);

impl Plan {
    /// Returns the time to wait for a lock, given the time that the handler may take.
    pub(crate) fn lock_timeout(handler_timeout: Duration) -> Duration {
        LOCK_TIMEOUT.min(handler_timeout / 2)
    }

    /// Returns the options for an event in doubt.
    pub(crate) fn doubtful(&self) -> Self {
        Self { lock_timeout: LOCK_TIMEOUT_DOUBTFUL.min(self.lock_timeout), ..self.clone() }
    }
}

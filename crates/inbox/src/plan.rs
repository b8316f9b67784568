//! What stands for all batches of a consumer.

use std::time::Duration;

use crate::effect::Effect;
use crate::settings::{Dedupe, OnDead, OnGap};

/// The error code of an event before which a version of its key is missing.
pub(crate) const VERSION_GAP: &str = "VERSION_GAP";

/// What every batch of this consumer is applied with.
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
    /// How long each lock is waited for.
    pub(crate) lock_timeout: Duration,
}

/// Long enough for a lock that another batch is about to give back.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Of what has been in the way already: it is tried again and again, and keeps a worker meanwhile.
const LOCK_TIMEOUT_DOUBTFUL: Duration = Duration::from_millis(200);

impl Plan {
    /// How long a lock is waited for by a handler that may take so long.
    pub(crate) fn lock_timeout(handler_timeout: Duration) -> Duration {
        LOCK_TIMEOUT.min(handler_timeout / 2)
    }

    /// The same for an event that is in doubt.
    pub(crate) fn doubtful(&self) -> Self {
        Self { lock_timeout: LOCK_TIMEOUT_DOUBTFUL.min(self.lock_timeout), ..self.clone() }
    }
}

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
}

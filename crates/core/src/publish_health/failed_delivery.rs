//! A failed delivery of a parked key, and the success intervals in which it failed.

use std::time::Instant;

use crate::publish_health::success_intervals::Interval;

/// The key of a refused publish, before the refusal and as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyBefore {
    /// None of its waiting rows was refused.
    Healthy,
    /// One of its waiting rows was refused.
    Failing,
}

impl KeyBefore {
    /// The key after this many consecutive failures.
    pub(crate) const fn after(failures: u32) -> Self {
        if failures == 0 { Self::Healthy } else { Self::Failing }
    }
}

/// A failed delivery from dispatch state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedDelivery {
    pub(super) at: Instant,
    /// The interval between two successes of any topic.
    pub(super) everywhere: FailureInterval,
    /// The interval between two successes of the same topic.
    pub(super) of_topic: FailureInterval,
}

/// A success interval in which a delivery failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailureInterval {
    pub(super) interval: Interval,
    /// The number of previously healthy keys refused in the interval that are this key.
    pub(super) own: u32,
}

impl FailureInterval {
    /// Adds a failure of the key in `interval` to the failure `before`.
    pub(super) fn following(before: Option<Self>, interval: Interval, key: KeyBefore) -> Self {
        let same = before.filter(|failed| failed.interval == interval);
        let was_healthy = u32::from(key == KeyBefore::Healthy);
        Self { interval, own: same.map_or(0, |failed| failed.own) + was_healthy }
    }
}

//! The loop's own state: timers, log limits, the reason to end.

use std::time::Duration;

use tokio::time::Instant;

/// A refusal that lasts longer than this is no running migration. A consumer that should catch up
/// then gives up.
pub(crate) const REFUSED_LASTS: Duration = Duration::from_secs(30);

/// The shortest sleep of the loop, while consuming and while paused.
pub(crate) const TURN: Duration = Duration::from_millis(1);
pub(crate) const PAUSED_TURN: Duration = Duration::from_millis(100);

/// A task that the loop runs periodically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeriodicTask {
    Due(Instant),
    Running,
}

impl PeriodicTask {
    pub(crate) fn is_due(self, now: Instant) -> bool {
        matches!(self, Self::Due(at) if at <= now)
    }

    pub(crate) fn wake_at(self) -> Option<Instant> {
        match self {
            Self::Due(at) => Some(at),
            Self::Running => None,
        }
    }
}

/// A failing condition, reported only once it lasts.
#[derive(Debug, Default)]
pub(crate) struct Debounce(Option<Instant>);

impl Debounce {
    /// Notes a failure. Returns whether the condition has failed for `patience`.
    pub(crate) fn lasts(&mut self, now: Instant, patience: Duration) -> bool {
        now - *self.0.get_or_insert(now) >= patience
    }

    /// Returns whether the condition is failing.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Notes a success.
    pub(crate) fn over(&mut self) {
        self.0 = None;
    }
}

#[derive(Debug, Default)]
pub(crate) struct LogRateLimit {
    second: Option<Instant>,
    told: u32,
    untold: u64,
}

/// The maximum number of messages of one kind per second.
const LINES_MAX: u32 = 5;

impl LogRateLimit {
    /// Returns whether one message may be logged now, with the number of messages suppressed since
    /// the last one.
    pub(crate) fn may_go(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|began| now - began >= Duration::from_secs(1)) {
            (self.second, self.told) = (Some(now), 0);
        }
        if self.told == LINES_MAX {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

/// Whether the loop continues or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopState {
    /// The loop continues.
    On,
    /// No new batch starts, and batches in flight may finish until `until`.
    Draining { until: Instant },
}

/// Whether the inbox may have rows to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A row may wait for its due time.
    Perhaps,
    /// The last redelivery found no row, and no event has failed since.
    Nothing,
}

/// The reason why the loop has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The loop was asked to stop, or has caught up.
    Over,
    /// The consumer has another subscription.
    Moved,
    /// The consumer should catch up, and is paused.
    Paused,
    /// The consumer should catch up, and the server refuses every event with an error that only an
    /// operator can fix.
    Refused,
}

/// Returns a random seed that differs between processes, for jitter and the stream's client id.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_right_in_between_does_not_last() {
        let (mut spell, start, patience) =
            (Debounce::default(), Instant::now(), Duration::from_secs(2));
        assert!(!spell.lasts(start, patience));
        assert!(spell.lasts(start + patience, patience));
        spell.over();
        assert!(!spell.lasts(start + patience, patience), "it begins anew");
    }
}

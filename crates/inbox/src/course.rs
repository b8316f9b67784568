//! What the loop has to remember about itself.

use tokio::time::Instant;

/// A job that is done from time to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    Due(Instant),
    Running,
}

impl Chore {
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

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// Going on.
    On,
    /// Nothing new begins; what is out may finish until then.
    Draining { until: Instant },
}

/// What the inbox holds that is to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Something may wait for its time.
    Perhaps,
    /// The last look found nothing, and nothing has failed since.
    Nothing,
}

/// Why the loop has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to, or is caught up.
    Over,
    /// The consumer has another subscription.
    Moved,
}

//! Whether a session goes on, or what it ends with.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_core::Watermark;

use crate::stream::goal::Goal;

/// Why a session ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// What was there at the start is confirmed, and out of dispatch state or at rest there.
    CaughtUp,
}

/// ```text
/// Streaming ── asked to stop ──▶ Draining { Stopped }  ──┐ nothing in flight,
///     ├◀───── goal reached ────▶ Draining { CaughtUp } ──┤ (back, if what was still out shows that it is not)
///     └── a row cannot be read ▶ Finishing ──────────────┴ or out of time ──▶ (ended)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Streaming,
    /// Nothing new is taken in, but the open transaction is read to its commit: rows of it that
    /// are stored already would be published twice.
    Draining {
        ended: Ended,
        until: Instant,
    },
    /// Nothing is read any more. What came before is finished and confirmed: it must not come again
    /// at each start, and whoever skips what cannot be read must not skip that too.
    Finishing {
        until: Instant,
    },
}

impl Mode {
    pub(super) fn draining(ended: Ended, timeout: Duration) -> Self {
        Self::Draining { ended, until: Instant::now() + timeout }
    }

    /// What cannot be read has come. A drain that has begun gets no more time for it.
    pub(super) fn finishing(self, timeout: Duration) -> Self {
        match self {
            Self::Streaming => Self::Finishing { until: Instant::now() + timeout },
            Self::Draining { until, .. } | Self::Finishing { until } => Self::Finishing { until },
        }
    }

    /// The goal is reached, or it turned out that it is not.
    pub(super) fn of_goal(
        self,
        goal: Option<&Goal>,
        watermark: Watermark,
        timeout: Duration,
    ) -> Self {
        let Some(goal) = goal else { return self };
        match (self, goal.is_reached(watermark)) {
            (Self::Streaming, true) => Self::draining(Ended::CaughtUp, timeout),
            (Self::Draining { ended: Ended::CaughtUp, .. }, false) => Self::Streaming,
            (Self::Streaming | Self::Draining { .. } | Self::Finishing { .. }, _) => self,
        }
    }

    /// How the session ends, and when at the latest; none while it goes on.
    pub(super) fn end(self) -> Option<(Ended, Instant)> {
        match self {
            Self::Streaming => None,
            Self::Draining { ended, until } => Some((ended, until)),
            Self::Finishing { until } => Some((Ended::Stopped, until)),
        }
    }
}

//! Whether a session continues, and how it ends.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_core::Watermark;

use crate::stream::catch_up_target::CatchUpTarget;

/// The reason for a regular end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A stop was requested.
    Stopped,
    /// All rows of the start are confirmed. Those in dispatch state are delivered, dead, or not
    /// due.
    CaughtUp,
}

/// The state of a session's loop.
///
/// ```text
/// Streaming ── asked to stop ──▶ Draining { Stopped }  ──┐ nothing in flight,
///     ├◀───── goal reached ────▶ Draining { CaughtUp } ──┤ (back, if a late reply shows that it is not)
///     └── a row cannot be read ▶ Finishing ──────────────┴ or out of time ──▶ (ended)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionMode {
    Streaming,
    /// Reads no new transaction, but reads the open transaction to its commit. Otherwise its rows
    /// that are already stored would be published twice.
    Draining {
        ended: StopReason,
        until: Instant,
    },
    /// Reads nothing. Earlier rows are finished and confirmed: they must not be republished at each
    /// start. A command that skips the unreadable row must not skip them either.
    Finishing {
        until: Instant,
    },
}

impl SessionMode {
    pub(super) fn draining(ended: StopReason, timeout: Duration) -> Self {
        Self::Draining { ended, until: Instant::now() + timeout }
    }

    /// Enters `Finishing` after an unreadable row. A drain in progress gets no additional time.
    pub(super) fn finishing(self, timeout: Duration) -> Self {
        match self {
            Self::Streaming => Self::Finishing { until: Instant::now() + timeout },
            Self::Draining { until, .. } | Self::Finishing { until } => Self::Finishing { until },
        }
    }

    /// Starts or cancels the drain for a goal, depending on whether the goal is reached.
    pub(super) fn of_goal(
        self,
        goal: Option<&CatchUpTarget>,
        watermark: Watermark,
        timeout: Duration,
    ) -> Self {
        let Some(goal) = goal else { return self };
        match (self, goal.is_reached(watermark)) {
            (Self::Streaming, true) => Self::draining(StopReason::CaughtUp, timeout),
            (Self::Draining { ended: StopReason::CaughtUp, .. }, false) => Self::Streaming,
            (Self::Streaming | Self::Draining { .. } | Self::Finishing { .. }, _) => self,
        }
    }

    /// Returns how the session ends and its deadline, or `None` while it continues.
    pub(super) fn end(self) -> Option<(StopReason, Instant)> {
        match self {
            Self::Streaming => None,
            Self::Draining { ended, until } => Some((ended, until)),
            Self::Finishing { until } => Some((StopReason::Stopped, until)),
        }
    }
}

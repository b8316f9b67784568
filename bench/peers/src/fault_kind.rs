//! The faults that every peer meets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::extent::Extent;

/// The time from one kill to the next. A peer on a JVM needs most of it to start.
pub(super) const KILL_INTERVAL: Duration = Duration::from_secs(5);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    Kills,
    KeyUnavailable,
    PoisonRow,
    PubsubAway,
    PostgresRestart,
}

impl FaultKind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Kills,
        Self::KeyUnavailable,
        Self::PoisonRow,
        Self::PubsubAway,
        Self::PostgresRestart,
    ];

    /// How long the load runs. A tenth of it passes before the fault.
    pub(super) fn load_seconds(self, extent: Extent) -> u32 {
        if self != Self::Kills {
            return extent.fault_seconds;
        }
        let kills = KILL_INTERVAL * extent.kills;
        u32::try_from(kills.as_secs()).unwrap_or(u32::MAX) * 10 / 8
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kills => "kills under load, one each 5 s",
            Self::KeyUnavailable => "one key refused with UNAVAILABLE",
            Self::PoisonRow => "a row of 10.5 MB",
            Self::PubsubAway => "Pub/Sub refuses everything with UNAVAILABLE",
            Self::PostgresRestart => "Postgres restarts",
        }
    }
}

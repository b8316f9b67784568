//! The sizes of a benchmark run.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Size {
    /// What is published.
    Full,
    /// Under two minutes.
    Quick,
    /// Seconds, in the normal tests: so that the suite does not rot.
    Tiny,
}

impl Size {
    /// Returns the row count for a workload that has `full` rows at full size.
    pub fn rows(self, full: u32) -> u32 {
        match self {
            Self::Full => full,
            Self::Quick => (full / 10).max(500),
            Self::Tiny => (full / 1_000).clamp(50, 1_000),
        }
    }

    pub fn rounds(self) -> u32 {
        match self {
            Self::Full => 3,
            Self::Quick | Self::Tiny => 1,
        }
    }

    pub fn steady_seconds(self) -> u32 {
        match self {
            Self::Full => 30,
            Self::Quick => 8,
            Self::Tiny => 1,
        }
    }

    pub fn idle(self) -> Duration {
        match self {
            Self::Full => Duration::from_secs(10),
            Self::Quick => Duration::from_secs(3),
            Self::Tiny => Duration::from_millis(100),
        }
    }
}

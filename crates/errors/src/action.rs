//! The reactions to an error.

use std::process::ExitCode;

/// How the process ended. Supervisors that restart the process rely on the exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Finished, or asked to stop.
    Done,
    /// An unexpected error.
    Unexpected,
    /// The command line or the configuration is wrong.
    Usage,
    /// Postgres is not set up for walrelay.
    PostgresSetup,
    /// Pub/Sub is not set up for walrelay.
    PubSubSetup,
    /// The slot is lost: the server removed WAL that it needed, or the slot itself.
    SlotLost,
    /// Another session holds the slot, and taking over was not allowed.
    SlotHeld,
    /// A broken invariant. Continuing could confirm a position too early.
    BrokenInvariant,
}

impl Exit {
    /// Returns the exit code of the process.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::PostgresSetup => 3,
            Self::PubSubSetup => 4,
            Self::SlotLost => 5,
            Self::SlotHeld => 6,
            Self::BrokenInvariant => 101,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End the session and resume from the slot after a delay.
    Reconnect,
    /// Wait until the holder releases the slot.
    StandBy,
    /// Wait for a condition that another command or a person ends. This process can keep running.
    Wait,
    /// Stop, because only a person can fix the error.
    Stop(Exit),
}

impl Action {
    /// Returns the reaction of a relay that survives a lost slot: another command recovers it.
    #[must_use]
    pub const fn awaiting_a_lost_slot(self) -> Self {
        match self {
            Self::Stop(Exit::SlotLost) => Self::Wait,
            Self::Reconnect | Self::StandBy | Self::Wait | Self::Stop(_) => self,
        }
    }
}

/// The place where an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorContext {
    /// In `run`, before the first success. A wrong address is more likely than an outage.
    FirstStart,
    /// In `run`, after the first success.
    Running,
    /// In a command that runs once and reports, such as `check`.
    Command,
}

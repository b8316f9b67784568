//! What an error leads to: an end with its exit code, or another try. Nothing else looks inside one.

use std::fmt;
use std::process::ExitCode;

/// How the process ended; the numbers are a contract with whoever restarts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or asked to stop.
    Done,
    /// Something nobody foresaw.
    Unexpected,
    /// The command line or the configuration is wrong.
    Usage,
    /// Postgres is not set up for this.
    PostgresSetup,
    /// Pub/Sub is not set up for this.
    PubSubSetup,
    /// The slot is lost: the server dropped log that it needed, or the slot itself.
    SlotLost,
    /// The slot is held by somebody else and taking over was not allowed.
    SlotHeld,
    /// A broken invariant: going on could confirm too far.
    BrokenInvariant,
}

impl Exit {
    /// The number the operating system sees.
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

/// What the supervisor does with an error. Nothing else looks inside one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// End the session and resume from the slot after a delay.
    Reconnect,
    /// Nothing will change until a person changes it.
    Stop {
        /// What the process exits with.
        exit: Exit,
        /// What to do about it.
        hint: String,
    },
}

impl Disposition {
    /// Stops with this code and this advice.
    pub fn stop(exit: Exit, hint: impl Into<String>) -> Self {
        Self::Stop { exit, hint: hint.into() }
    }
}

/// Prints an error and all its causes, `a: b: c`.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

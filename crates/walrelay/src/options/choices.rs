//! The values of options that are one of a few words.

use walrelay_pg_client::TableAccess;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line: `severity`, `message`, `time`, `target`, and every field.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// The reaction of `run` to a lost slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSlotLost {
    /// Waits until another command has restored the slot. With `--until-caught-up` it stops with
    /// exit 5.
    Wait,
    /// Stops with exit 5.
    Stop,
    /// Creates a new slot, and publishes the possibly unsettled rows from the table.
    Recover,
}

/// Whether a command may delete, republish or move something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeMode {
    /// The user gave `--yes`.
    Agreed,
    /// The command asks at the terminal.
    Ask,
    /// The command only prints what would happen.
    DryRun,
}

impl ChangeMode {
    /// Returns the access that a command needs to the tables whose rows it deletes.
    pub(crate) const fn access_of_deletion(self) -> TableAccess {
        match self {
            Self::DryRun => TableAccess::Read,
            Self::Agreed | Self::Ask => TableAccess::Delete,
        }
    }
}

/// How a command that changes something asks and prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeOptions {
    pub mode: ChangeMode,
    pub format: OutputFormat,
}

/// How much a person wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// What happens.
    Normal,
    /// Also what is as it should be.
    Verbose,
}

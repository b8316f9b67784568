//! The arguments of one invocation that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args};
use pgoutput_parser::Position;

use super::OutputOptions;
use super::choices::{ChangeMode, ChangeOptions};
use super::values::{NamedDatabase, behind, count, duration, named_database};

/// Marks the arguments of one invocation: neither environment nor file may set them. The help shows
/// them without this heading.
pub(crate) const ARGUMENTS: &str = "Arguments";

/// Returns whether environment and file may set an argument.
pub(crate) fn is_option(argument: &Arg) -> bool {
    argument.get_long().is_some() && argument.get_help_heading() != Some(ARGUMENTS)
}

/// How a command that deletes, republishes or moves something asks.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ConfirmArgs {
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// Print what would happen, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

impl ConfirmArgs {
    pub(crate) const fn mode(&self) -> ChangeMode {
        match (self.dry_run, self.yes) {
            (true, _) => ChangeMode::DryRun,
            (false, true) => ChangeMode::Agreed,
            (false, false) => ChangeMode::Ask,
        }
    }
}

/// Consent and output of a command that changes something.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    #[command(flatten)]
    pub output: OutputOptions,
}

impl ChangeArgs {
    pub(crate) const fn options(&self) -> ChangeOptions {
        ChangeOptions { mode: self.confirm.mode(), format: self.output.output }
    }
}

/// Where inboxes are.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct InboxPlaces {
    /// Consumer in another database, as NAME=URL; may be given several times. Without it: every consumer
    /// of the outbox's own database. The password belongs in PGPASSWORD or a passfile.
    #[arg(long, value_name = "NAME=URL", value_parser = named_database)]
    pub inbox: Vec<NamedDatabase>,
}

/// Filters of events.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct EventFilterArgs {
    /// Only events of this ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only events of this type, as in OrderPlaced.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Only events whose last failure has this code, as in NOT_FOUND.
    #[arg(long, value_name = "CODE")]
    pub error: Option<String>,
    /// Only events recorded longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration("0s", "3650d"))]
    pub older_than: Option<Duration>,
}

impl EventFilterArgs {
    /// Returns whether at least one filter is given.
    pub(crate) fn is_given(&self) -> bool {
        self.key.is_some()
            || self.event_type.is_some()
            || self.error.is_some()
            || self.older_than.is_some()
    }
}

/// Which page of events.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct PageArgs {
    /// How many events at most; 1 to 100000 [default: 100].
    #[arg(long, value_name = "COUNT", value_parser = count(1_u32, 100_000))]
    pub limit: Option<u32>,
    /// Every event that matches, in place of a page.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Only events behind this position, which the page before it names, or of later transactions than this LSN.
    #[arg(long, value_name = "POSITION", value_parser = behind)]
    pub after: Option<Position>,
}

/// The files of an edit.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct EditFiles {
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
    /// File with a JSON object of strings, which replaces the attributes that are not the relay's own.
    #[arg(long, value_name = "FILE")]
    pub attributes_file: Option<PathBuf>,
}

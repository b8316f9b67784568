//! Builds a [`Config`] from a command line.

use std::ffi::OsString;
use std::mem;

use clap::FromArgMatches as _;
use walrelay_outbox_store::Shard;
use walrelay_pg_client::Schema;

use super::checks::{Checks, Program};
use super::definition_place::{DefinitionPlace, NamedOutbox};
use super::environment::Environment;
use super::layers::{CommandLine, Refusal};
use crate::cli::{self, Cli};
use crate::error::printed_commands::Side;
use crate::options::choices::{LogFormat, Verbosity};
use crate::plan::{CommandEnd, Plan, Service};

const PROGRAM: Program = Program {
    command: cli::command,
    check: |arguments, environment| Config::parse(arguments, environment).map(drop),
};

/// A command and its complete configuration.
#[derive(Debug)]
pub struct Config {
    pub(crate) log: LogConfig,
    /// The schema of walrelay's own tables. The process sets it before the command runs.
    pub(crate) schema: Schema,
    pub(crate) shard: Shard,
    /// The options of the command line that name an outbox, with their words.
    pub(crate) given: Vec<(String, String)>,
    pub(crate) side: Side,
    pub(crate) plan: Plan,
    /// Where the definition of its outbox is on record. None for a command without an outbox.
    pub(crate) record: Option<DefinitionPlace>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// The format of a line. `None` means text on a terminal, and JSON otherwise.
    pub(crate) format: Option<LogFormat>,
    /// A filter in the syntax of `RUST_LOG`.
    pub(crate) filter: String,
    pub(crate) lines: LogLines,
}

/// What lines of text have beside level and message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLines {
    /// A person reads them at once.
    Plain,
    /// The time. On a terminal to the second, elsewhere with the module.
    Timed,
    /// Time and module.
    WithOrigins,
}

/// Reads arguments (the first is the program's name), environment and configuration file.
pub(crate) fn read(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<CommandLine, Refusal> {
    CommandLine::parse(&cli::command(), &cli::with_help_headings, arguments, environment)
}

impl Config {
    /// Reads and checks a command line as the program does, without the outbox on record.
    ///
    /// # Errors
    ///
    /// The arguments are wrong, help was requested, the file cannot be used, or values contradict each
    /// other.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Self, Refusal> {
        Self::new(read(arguments, environment)?, environment, None)
    }

    /// Checks the values of a command line that depend on each other. The outbox is the one on record.
    /// Before the record is read, and for `init`, it is the standard one.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub(crate) fn new(
        mut line: CommandLine,
        environment: &Environment,
        outbox: Option<NamedOutbox>,
    ) -> Result<Self, Refusal> {
        let has_json_output = line.has_json_output;
        let (given, side) = (mem::take(&mut line.given), line.side);
        let ((general, plan), checks) =
            checked(line, environment, |Cli { general, command }, checks| {
                if let Some(NamedOutbox { slot, definition }) = outbox {
                    match definition {
                        Ok(recorded) => checks.definition = recorded,
                        Err(_) => checks.definition.slot = slot,
                    }
                }
                Some((general, command.plan(checks)?))
            })?;
        let level = match general.verbosity() {
            Verbosity::Verbose => "debug",
            Verbosity::Quiet => "warn",
            Verbosity::Normal => "info",
        };
        let filter = general.log_level.unwrap_or_else(|| level.to_owned());
        let default_format = match (plan.end, has_json_output) {
            (CommandEnd::Stopped(_), _) => None,
            (CommandEnd::Finishes | CommandEnd::Interrupted, true) => Some(LogFormat::Json),
            (CommandEnd::Finishes | CommandEnd::Interrupted, false) => Some(LogFormat::Text),
        };
        let format = general.log_format.or(default_format);
        let lines = match plan.end {
            _ if general.verbose => LogLines::WithOrigins,
            CommandEnd::Stopped(_) => LogLines::Timed,
            CommandEnd::Finishes | CommandEnd::Interrupted => LogLines::Plain,
        };
        let log = LogConfig { format, filter, lines };
        let Checks { schema, shard, record, .. } = checks;
        Ok(Self { log, schema, shard, given, side, plan, record })
    }

    /// Returns the limits of a relay or a consumer. None for another command.
    #[must_use]
    pub const fn service(&self) -> Option<Service> {
        match self.plan.end {
            CommandEnd::Stopped(service) => service,
            CommandEnd::Finishes | CommandEnd::Interrupted => None,
        }
    }
}

/// Returns what `take` makes of a command line, unless a problem was found.
pub(super) fn checked<'a, T>(
    mut line: CommandLine,
    environment: &'a Environment,
    take: impl FnOnce(Cli, &mut Checks<'a>) -> Option<T>,
) -> Result<(T, Checks<'a>), Refusal> {
    let cli = Cli::from_arg_matches_mut(&mut line.matches).map_err(Refusal::Clap)?;
    let mut checks =
        Checks { verbosity: cli.general.verbosity(), ..Checks::new(environment, PROGRAM) };
    checks.take_line(line);
    let taken = take(cli, &mut checks);
    match (taken, checks.problems.is_empty()) {
        (Some(taken), true) => Ok((taken, checks)),
        (Some(_) | None, false) => Err(Refusal::Config(checks.problems)),
        (None, true) => unreachable!("a command that could not be built has reported no problem"),
    }
}

//! Flag over environment over file over default.
//!
//! The environment and the file become the *defaults* of the clap arguments, so clap itself
//! decides that a flag wins, and `--help` shows what would be used.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::problem::{Origin, Problem};
use crate::cli::{ARGUMENTS, Cli};

/// The environment of the process; only `main` reads the real one.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Takes what is text; a variable that is not cannot be one of ours.
    pub fn new<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let text = |(name, value): (N, V)| {
            Some((name.into().into_string().ok()?, value.into().into_string().ok()?))
        };
        Self(variables.into_iter().filter_map(text).collect())
    }

    /// The value of a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The variable that sets an option: its own, which may be empty, or an established one.
    fn of_option(&self, option: &str) -> Option<(String, &str)> {
        let own = variable_of(option);
        if let Some(value) = self.0.get(&own) {
            return Some((own, value));
        }
        let established: &[&str] = match option {
            "database-url" => &["DATABASE_URL"],
            "project" => &["PUBSUB_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"],
            "log-level" => &["RUST_LOG"],
            _ => &[],
        };
        established.iter().find_map(|name| Some(((*name).to_owned(), self.get(name)?)))
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Names only: values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// `park-after` → `WALRELAY_PARK_AFTER`.
#[must_use]
pub fn variable_of(option: &str) -> String {
    format!("WALRELAY_{}", option.to_uppercase().replace('-', "_"))
}

/// A command line together with what environment and file added to it.
#[derive(Debug)]
pub struct CommandLine {
    /// The values, still text.
    pub cli: Cli,
    /// Where each option's value came from, by long name.
    pub origins: BTreeMap<String, Origin>,
}

/// Why there is no [`CommandLine`].
#[derive(Debug)]
pub enum Refusal {
    /// Clap's own message: a usage error, or the help that was asked for.
    Clap(clap::Error),
    /// The configuration file cannot be used.
    Config(Vec<Problem>),
}

impl CommandLine {
    /// Reads arguments (the first is the program's name), environment and configuration file.
    ///
    /// # Errors
    ///
    /// The arguments do not fit, help was asked for, or the file cannot be used.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Self, Refusal> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let without_file = Layers { environment, file: &ConfigFile::default() };
        let found = without_file.read(&arguments).map_err(Refusal::Clap)?;
        let Some(path) = found.cli.global.config.clone() else {
            return Ok(found);
        };
        let file = ConfigFile::read(&path).map_err(Refusal::Config)?;
        Layers { environment, file: &file }.read(&arguments).map_err(Refusal::Clap)
    }
}

/// The long names of all options, that is of every argument environment and file may set.
#[must_use]
pub fn option_names() -> BTreeSet<String> {
    fn collect(command: &Command, names: &mut BTreeSet<String>) {
        names.extend(command.get_arguments().filter_map(option_of));
        command.get_subcommands().for_each(|command| collect(command, names));
    }
    let mut names = BTreeSet::new();
    collect(&Cli::command(), &mut names);
    names
}

/// The long name of an argument, when it is an option; see [`ARGUMENTS`].
fn option_of(argument: &Arg) -> Option<String> {
    let long = argument.get_long()?;
    (argument.get_help_heading() != Some(ARGUMENTS)).then(|| long.to_owned())
}

struct Layers<'a> {
    environment: &'a Environment,
    file: &'a ConfigFile,
}

impl Layers<'_> {
    fn read(&self, arguments: &[OsString]) -> Result<CommandLine, clap::Error> {
        let mut matches = self.lay(Cli::command()).try_get_matches_from(arguments)?;
        let mut origins = BTreeMap::new();
        self.trace(&matches, &mut origins);
        let cli = Cli::from_arg_matches_mut(&mut matches)?;
        Ok(CommandLine { cli, origins })
    }

    /// Makes environment and file the defaults of a command and of all below it.
    fn lay(&self, mut command: Command) -> Command {
        let options: Vec<_> = command
            .get_arguments()
            .filter_map(|argument| Some((argument.get_id().clone(), option_of(argument)?)))
            .collect();
        for (id, option) in options {
            command = command.mut_arg(id, |argument| self.lay_option(argument, &option));
        }
        let names: Vec<String> =
            command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for name in names {
            command = command.mut_subcommand(name, |command| self.lay(command));
        }
        command
    }

    fn lay_option(&self, argument: Arg, option: &str) -> Arg {
        let argument = match self.value(option) {
            Some((_, values)) => {
                let values: Vec<String> = values.iter().flat_map(|v| split(&argument, v)).collect();
                argument.default_values(values)
            }
            None => argument,
        };
        let with_variable = |text: String| format!("{text} [env: {}]", variable_of(option));
        let short = argument.get_help().map(|text| with_variable(text.to_string()));
        let long = argument.get_long_help().map(|text| with_variable(text.to_string()));
        let argument = match short {
            Some(short) => argument.help(short),
            None => argument,
        };
        match long {
            Some(long) => argument.long_help(long),
            None => argument,
        }
    }

    /// What environment or file say about an option, and which of them said it.
    fn value(&self, option: &str) -> Option<(Origin, Vec<String>)> {
        if let Some((name, value)) = self.environment.of_option(option) {
            return Some((Origin::Environment(name), vec![value.to_owned()]));
        }
        let values = self.file.values.get(option)?.clone();
        Some((Origin::File(self.file.path.clone()), values))
    }

    fn trace(&self, matches: &ArgMatches, origins: &mut BTreeMap<String, Origin>) {
        for id in matches.ids() {
            let option = id.as_str().replace('_', "-");
            let origin = match matches.value_source(id.as_str()) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                _ => self.value(&option).map_or(Origin::Default, |(origin, _)| origin),
            };
            origins.insert(option, origin);
        }
        if let Some((_, below)) = matches.subcommand() {
            self.trace(below, origins);
        }
    }
}

/// One value as several, when the option may be repeated: at commas, or at semicolons where the
/// values themselves contain commas.
fn split(argument: &Arg, value: &str) -> Vec<String> {
    if !matches!(argument.get_action(), ArgAction::Append) {
        return vec![value.to_owned()];
    }
    let separator = argument.get_value_delimiter().unwrap_or(';');
    let trimmed = value.split(separator).map(str::trim);
    trimmed.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The file named by `--config`.
#[derive(Debug, Default)]
struct ConfigFile {
    path: String,
    values: BTreeMap<String, Vec<String>>,
}

impl ConfigFile {
    fn read(path: &str) -> Result<Self, Vec<Problem>> {
        let unusable = |value: &str, allowed: String| {
            vec![Problem {
                option: "--config".into(),
                value: Some(value.to_owned()),
                origin: None,
                allowed,
            }]
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| unusable(path, format!("a file that can be read ({error})")))?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's long form quotes the line, which may hold a password.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            unusable(path, format!("a TOML file; line {line}: {}", error.message()))
        })?;
        Self::from_table(path, table)
    }

    fn from_table(path: &str, table: toml::Table) -> Result<Self, Vec<Problem>> {
        let known = option_names();
        let mut file = Self { path: path.to_owned(), values: BTreeMap::new() };
        let mut problems = Vec::new();
        for (key, value) in table {
            let allowed = if key == "config" || !known.contains(&key) {
                Err(unknown_key(&key, &known))
            } else {
                texts(&value).ok_or_else(|| "a string, a number, a boolean or a list".to_owned())
            };
            match allowed {
                Ok(values) => drop(file.values.insert(key, values)),
                Err(allowed) => problems.push(Problem {
                    option: key,
                    value: None,
                    origin: Some(path.to_owned()),
                    allowed,
                }),
            }
        }
        if problems.is_empty() { Ok(file) } else { Err(problems) }
    }
}

fn unknown_key(key: &str, known: &BTreeSet<String>) -> String {
    let kebab = key.replace('_', "-");
    if known.contains(&kebab) && kebab != key {
        return format!("not an option; did you mean {kebab}?");
    }
    "not an option; the keys are the long names of the flags, such as park-after".to_owned()
}

/// A value of the file as the texts a flag would have been given.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(switch) => Some(vec![switch.to_string()]),
        toml::Value::Array(items) => {
            let text = |item: &toml::Value| item.as_str().map(str::to_owned);
            items.iter().map(text).collect()
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

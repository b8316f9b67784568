//! Precedence of sources: a flag wins over the environment, the environment over the file, the file
//! over the default.
//!
//! Environment and file become the *defaults* of the clap arguments. Clap itself then lets a flag
//! win, and `--help` shows the values in effect.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use walrelay_errors::Code;

use super::option_values::{Given, Origin};
use super::problem::Problem;
use crate::cli::{ARGUMENTS, Cli};
use crate::options;
use crate::options::declaration::{Declaration, Kind, ListSeparator};

/// The environment of the process. Only `main` reads the real one.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Keeps the variables that are valid text. Other variables cannot belong to walrelay.
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

    /// Returns the value of a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the variable that sets an option: its own, which may be empty, or an established
    /// one.
    fn of_option(&self, option: &Declaration) -> Option<(String, &str)> {
        let own = option.variable();
        if let Some(value) = self.0.get(&own) {
            return Some((own, value));
        }
        option.variables.iter().find_map(|name| Some(((*name).to_owned(), self.get(name)?)))
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Prints only names, because values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A command line together with the values from environment and file.
#[derive(Debug)]
pub struct CommandLine {
    /// The command and its arguments.
    pub cli: Cli,
    /// The values of the options, still text.
    pub(super) given: Given,
    /// Problems in a file that could be read.
    pub(super) problems: Vec<Problem>,
    /// Whether the file could not be read. Then its settings are unknown.
    pub(super) is_file_unread: bool,
}

/// The reason why there is no [`CommandLine`].
#[derive(Debug)]
pub enum Refusal {
    /// Clap's own message: a usage error, or the requested help.
    Clap(clap::Error),
    /// The configuration file cannot be used.
    Config(Vec<Problem>),
}

impl CommandLine {
    /// Reads arguments (the first is the program's name), environment and configuration file.
    ///
    /// # Errors
    ///
    /// The arguments are wrong, help was requested, or the file cannot be used.
    pub fn parse(
        arguments: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Self, Refusal> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let without_file = Layers { environment, file: &ConfigFile::default() };
        let found = without_file.read(&arguments).map_err(Refusal::Clap)?;
        let Some(path) = found.given.values(options::CONFIG.declaration.name).first() else {
            return Ok(found);
        };
        let (file, problems) = match ConfigFile::read(path) {
            Ok(read) => read,
            // The caller reports this problem together with all others.
            Err(problem) => {
                return Ok(Self { problems: vec![problem], is_file_unread: true, ..found });
            }
        };
        let read = Layers { environment, file: &file }.read(&arguments).map_err(Refusal::Clap)?;
        Ok(Self { problems, ..read })
    }
}

/// Returns the option behind an argument, if the argument is an option. See [`ARGUMENTS`].
fn option_of(argument: &Arg) -> Option<&'static Declaration> {
    let is_option = argument.get_help_heading() != Some(ARGUMENTS);
    is_option.then(|| options::find(argument.get_long()?)).flatten()
}

struct Layers<'a> {
    environment: &'a Environment,
    file: &'a ConfigFile,
}

impl Layers<'_> {
    fn read(&self, arguments: &[OsString]) -> Result<CommandLine, clap::Error> {
        let command = self.lay(Cli::command(), None);
        let mut matches = command.clone().try_get_matches_from(arguments)?;
        let mut given = Given::default();
        self.trace((&command, None), &matches, &mut given);
        let cli = Cli::from_arg_matches_mut(&mut matches)?;
        Ok(CommandLine { cli, given, problems: Vec::new(), is_file_unread: false })
    }

    /// Makes environment and file the defaults of a command and its subcommands. `section` has the
    /// file's settings for this command alone.
    fn lay(&self, mut command: Command, section: Option<&Values>) -> Command {
        let options: Vec<_> = command
            .get_arguments()
            .filter_map(|argument| Some((argument.get_id().clone(), option_of(argument)?)))
            .collect();
        for (id, option) in options {
            command = command.mut_arg(id, |argument| self.lay_option(argument, option, section));
        }
        let names: Vec<String> =
            command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for name in names {
            let section = section.or_else(|| self.file.sections.get(&name));
            command = command.mut_subcommand(name, |command| self.lay(command, section));
        }
        command
    }

    fn lay_option(&self, argument: Arg, option: &Declaration, section: Option<&Values>) -> Arg {
        let argument = match self.value(option, section) {
            Some((_, values)) => {
                let values: Vec<String> = values.iter().flat_map(|v| split(option, v)).collect();
                argument.default_values(values)
            }
            None => argument,
        };
        let with_variable = |text: String| format!("{text} [env: {}]", option.variable());
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

    /// Returns the value of an option in environment or file, with its origin.
    fn value(
        &self,
        option: &Declaration,
        section: Option<&Values>,
    ) -> Option<(Origin, Vec<String>)> {
        if let Some((name, value)) = self.environment.of_option(option) {
            return Some((Origin::Environment(name), vec![value.to_owned()]));
        }
        let own = section.and_then(|section| section.get(option.name));
        let values = own.or_else(|| self.file.values.get(option.name))?.clone();
        Some((Origin::File(self.file.path.clone()), values))
    }

    /// Records the values of each option, from the outermost to the innermost command.
    fn trace(
        &self,
        (command, section): (&Command, Option<&Values>),
        matches: &ArgMatches,
        given: &mut Given,
    ) {
        for option in command.get_arguments().filter_map(option_of) {
            let values = matches.get_many::<String>(option.name);
            let values = values.map(|values| values.cloned().collect()).unwrap_or_default();
            let origin = match matches.value_source(option.name) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                _ => self.value(option, section).map_or(Origin::Default, |(origin, _)| origin),
            };
            given.note(option.name, values, origin);
        }
        if let Some((name, below)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            let section = section.or_else(|| self.file.sections.get(name));
            self.trace((command, section), below, given);
        }
    }
}

/// Splits the value of a repeatable option at commas, or at semicolons if the values contain
/// commas.
fn split(option: &Declaration, value: &str) -> Vec<String> {
    let separator = match option.kind {
        Kind::List(_, ListSeparator::ByCommas | ListSeparator::ByCommasOrBare) => ',',
        Kind::List(_, ListSeparator::BySemicolons) => ';',
        Kind::Text(_)
        | Kind::Words(_)
        | Kind::Switch
        | Kind::Duration(..)
        | Kind::Size(..)
        | Kind::Count(..) => return vec![value.to_owned()],
    };
    let trimmed = value.split(separator).map(str::trim);
    trimmed.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The file named by `--config`.
#[derive(Debug, Default)]
struct ConfigFile {
    path: String,
    values: Values,
    /// Settings for one command alone, by its name. They win over the general settings.
    sections: BTreeMap<String, Values>,
}

/// Values as text, by the long name of the option.
type Values = BTreeMap<String, Vec<String>>;

impl ConfigFile {
    /// Reads the file. Returns problems of single keys separately.
    fn read(path: &str) -> Result<(Self, Vec<Problem>), Problem> {
        let unusable = |value: &str, allowed: String| Problem {
            option: "--config".into(),
            value: Some(value.to_owned()),
            origin: None,
            allowed,
            code: Code::ConfigurationInvalid,
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| unusable(path, format!("a file that can be read ({error})")))?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's long message quotes the line, which may contain a password.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            unusable(path, format!("a TOML file; line {line}: {}", error.message()))
        })?;
        Ok(Self::from_table(path, table))
    }

    fn from_table(path: &str, table: toml::Table) -> (Self, Vec<Problem>) {
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        let mut problems = Vec::new();
        let (sections, table): (Vec<_>, Vec<_>) =
            table.into_iter().partition(|(key, value)| value.is_table() && is_section(key));
        file.values = values(path, table, &mut problems);
        for (name, section) in sections {
            let toml::Value::Table(section) = section else { continue };
            let section = values(path, section, &mut problems);
            file.sections.insert(name, section);
        }
        // `check` uses the settings of `run`, because it reports problems that would stop `run`.
        if let Some(run) = file.sections.get("run").cloned() {
            let check = file.sections.entry("check".to_owned()).or_default();
            for (key, value) in run {
                check.entry(key).or_insert(value);
            }
        }
        (file, problems)
    }
}

/// Returns whether `name` is a command and not also an option, as `slot` is.
pub(crate) fn is_section(name: &str) -> bool {
    Cli::command().find_subcommand(name).is_some() && options::find(name).is_none()
}

/// Returns the keys of a table that are options.
fn values(
    path: &str,
    table: impl IntoIterator<Item = (String, toml::Value)>,
    problems: &mut Vec<Problem>,
) -> Values {
    let mut values = Values::new();
    for (key, value) in table {
        let is_key = key != options::CONFIG.declaration.name && options::find(&key).is_some();
        let allowed = match is_key {
            false => Err(unknown_key(&key)),
            true => {
                texts(&value).ok_or_else(|| "a string, a number, a boolean or a list".to_owned())
            }
        };
        match allowed {
            Ok(texts) => drop(values.insert(key, texts)),
            Err(allowed) => problems.push(Problem {
                option: key,
                value: None,
                origin: Some(path.to_owned()),
                allowed,
                code: Code::ConfigurationInvalid,
            }),
        }
    }
    values
}

fn unknown_key(key: &str) -> String {
    let kebab = key.replace('_', "-");
    if options::find(&kebab).is_some() && kebab != key {
        return format!("not an option; did you mean {kebab}?");
    }
    "not an option; the keys are the long names of the flags, such as park-after, also below [consume] and \
     other commands"
        .to_owned()
}

/// Returns a value of the file as the texts of an equivalent flag.
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

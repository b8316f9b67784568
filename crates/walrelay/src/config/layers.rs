//! Precedence of sources: a flag wins over the environment, the environment over the file, the file
//! over the default.
//!
//! Environment and file become the *defaults* of the clap arguments. Clap itself then parses every
//! value, lets a flag win, and `--help` shows the values in effect.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use walrelay_errors::Code;
use walrelay_pg_client::Schema;

use super::environment::{Environment, variable};
use super::file::{CONFIG, ConfigFile, Values};
use super::guesses::{with_list, with_right_command, with_right_option};
use super::problem::{Origin, Origins, Problem};
use crate::error::printed_commands::Side;
use crate::options::values::{looks_secret, may_hold_secret};
use crate::options::{DatabaseAuth, is_option};
use crate::output::text::quoted;

/// The option that names the schema of walrelay's own tables.
const SCHEMA: &str = "schema";
/// The option that says what proves to a database who connects.
const DATABASE_AUTH: &str = "database_auth";

/// The options that name an outbox or an inbox. Printed commands repeat them.
const PLACE: [&str; 8] = [
    CONFIG,
    "database-url",
    "database-auth",
    SCHEMA,
    "slot",
    "shards",
    "create-topics",
    "failover",
];

/// A command line together with the values from environment and file.
#[derive(Debug)]
pub(crate) struct CommandLine {
    /// The command and its arguments, as clap has read them.
    pub(crate) matches: ArgMatches,
    /// Path of the configuration file, if one is named.
    pub(super) file: Option<String>,
    /// The options of the command line that `replay start` has also, as words of a command. Options
    /// that may hold a secret are missing.
    pub(super) replay_options: Vec<String>,
    /// The options of the command line that name an outbox, with their words. An address with a password
    /// is missing.
    pub(super) given: Vec<(String, String)>,
    pub(super) side: Side,
    pub(super) origins: Origins,
    /// Problems of single keys of the file.
    pub(super) problems: Vec<Problem>,
    /// Whether the command's result, and therefore its error, is JSON.
    pub(super) has_json_output: bool,
    /// The schema of walrelay's own tables. The default for a command without `--schema`.
    pub(super) schema: Schema,
    /// What proves to each database who connects.
    pub(super) database_auth: DatabaseAuth,
}

/// The reason why there is no `CommandLine`.
#[derive(Debug)]
pub enum Refusal {
    /// Clap's own message: a usage error, or the requested help.
    Clap(clap::Error),
    /// A value of an option, or the configuration file, cannot be used.
    Config(Vec<Problem>),
}

impl CommandLine {
    /// Reads arguments (the first is the program's name), environment and configuration file. `shown`
    /// returns the declaration in the form that its help shows.
    ///
    /// # Errors
    ///
    /// The arguments are wrong, help was requested, or the file cannot be used.
    pub(crate) fn parse(
        root: &Command,
        shown: &dyn Fn(Command) -> Command,
        arguments: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Self, Refusal> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let without_file = Layers { root, environment, file: &ConfigFile::default() };
        let found = without_file.read(shown, &arguments)?;
        let Some(path) = &found.file else { return Ok(found) };
        let (file, problems) = read_file(root, path)?;
        match (Layers { root, environment, file: &file }).read(shown, &arguments) {
            Ok(read) => Ok(Self { problems, ..read }),
            Err(Refusal::Config(wrong)) => Err(Refusal::Config([wrong, problems].concat())),
            Err(Refusal::Clap(error)) => Err(Refusal::Clap(error)),
        }
    }
}

/// Returns the value of an option of the innermost command that has it.
fn innermost_value<T: Clone + Send + Sync + 'static>(
    matches: &ArgMatches,
    option: &str,
) -> Option<T> {
    let below = matches.subcommand().and_then(|(_, below)| innermost_value(below, option));
    below.or_else(|| matches.try_get_one(option).ok().flatten().cloned())
}

fn read_file(root: &Command, path: &str) -> Result<(ConfigFile, Vec<Problem>), Refusal> {
    ConfigFile::read(root, path).map_err(|problem| Refusal::Config(vec![problem]))
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct EffectiveValue {
    /// The long name of the option.
    pub option: String,
    /// The value as text. `None` if the option is not set. A secret is masked.
    pub value: Option<String>,
    /// The source of the value: `command line`, a variable, the path of the file, or `default`.
    pub source: String,
}

/// Returns the effective values of the options of a command, as `config show` prints them.
/// `words` is a command line without the name of the program. Arguments may be missing.
///
/// # Errors
///
/// The words are no command line, or a value or the file cannot be used.
pub(crate) fn effective_values(
    root: Command,
    words: &[String],
    path: Option<&str>,
    environment: &Environment,
) -> Result<Vec<EffectiveValue>, Refusal> {
    fn without_required(command: Command) -> Command {
        command.mut_args(|argument| argument.required(false)).mut_subcommands(without_required)
    }
    let (file, problems) = match path {
        Some(path) => read_file(&root, path)?,
        None => (ConfigFile::default(), Vec::new()),
    };
    if !problems.is_empty() {
        return Err(Refusal::Config(problems));
    }
    let layers = Layers { root: &root, environment, file: &file };
    let command = without_required(layers.lay(root.clone(), None));
    let arguments: Vec<OsString> =
        ["walrelay"].into_iter().chain(words.iter().map(String::as_str)).map(Into::into).collect();
    let matches = command
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(|error| layers.refusal(&command, &arguments, error))?;
    let mut values = Vec::new();
    layers.visit(&command, None, &matches, &mut |argument, own, origin| {
        let option = argument.get_long().unwrap_or_default();
        let emulator = environment.get(EMULATOR_HOST).filter(|_| origin == Origin::Default);
        match (option, emulator) {
            (CONFIG, _) => {}
            ("endpoint", Some(host)) => values.push(EffectiveValue {
                option: option.to_owned(),
                value: Some(host.to_owned()),
                source: EMULATOR_HOST.to_owned(),
            }),
            (_, _) => values.push(effective_value(argument, own, origin)),
        }
    });
    Ok(values)
}

/// The variable of Google's clients that names an emulator.
const EMULATOR_HOST: &str = "PUBSUB_EMULATOR_HOST";

fn effective_value(argument: &Arg, matches: &ArgMatches, origin: Origin) -> EffectiveValue {
    let raw = matches.get_raw(argument.get_id().as_str());
    let texts = raw.map(|raw| raw.map(|text| text.to_string_lossy()).collect::<Vec<_>>());
    let text = texts.map(|texts| texts.join(","));
    EffectiveValue {
        option: argument.get_long().unwrap_or_default().to_owned(),
        value: match text {
            Some(text) if may_hold_secret(argument) => Some(masked(&text)),
            Some(text) => Some(text),
            None => documented_default(argument),
        },
        source: match origin {
            Origin::CommandLine => "command line".to_owned(),
            Origin::Environment(name) | Origin::File(name) => name,
            Origin::Default => "default".to_owned(),
        },
    }
}

/// Returns what the help says about the value of an option that is not set.
fn documented_default(argument: &Arg) -> Option<String> {
    let help = argument.get_help()?.to_string();
    let (_, default) = help.split_once("[default: ")?;
    default.split_once(']').map(|(default, _)| default.replace('`', ""))
}

/// Hides what may be a password in a value, and leaves user and host of a URL.
fn masked(text: &str) -> String {
    const HIDDEN: &str = "***";
    let Some((scheme, rest)) = text.split_once("://") else {
        return if looks_secret(text) { HIDDEN } else { text }.to_owned();
    };
    let (address, parameters) = match rest.split_once('?') {
        // The query of a service's URL is often its secret.
        Some((address, parameters)) if looks_secret(parameters) || scheme == "https" => {
            (address, "?***".to_owned())
        }
        Some((address, parameters)) => (address, format!("?{parameters}")),
        None => (rest, String::new()),
    };
    let address = match address.rsplit_once('@') {
        // The mark may belong to the password.
        None if rest.contains('@') => return format!("{scheme}://{HIDDEN}"),
        None => address.to_owned(),
        Some((login, place)) => match login.split_once(':') {
            None => address.to_owned(),
            Some((user, _)) => format!("{user}:{HIDDEN}@{place}"),
        },
    };
    format!("{scheme}://{address}{parameters}")
}

/// Returns whether the innermost command has `--output json`.
fn has_json_output(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, below)) => has_json_output(below),
        None => matches
            .try_get_raw("output")
            .ok()
            .flatten()
            .is_some_and(|mut values| values.any(|value| value == "json")),
    }
}

/// Returns whether arguments ask for JSON, or without such an option the environment. Unlike a
/// [`CommandLine`], arguments can be asked before they are known to be right.
#[must_use]
pub(crate) fn ask_for_json(arguments: &[OsString], environment: &Environment) -> bool {
    let words = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.take_while(|word| word != "--").collect();
    let mut formats = words.iter().enumerate().filter_map(|(index, word)| {
        if ["-o", "--output"].contains(&word.as_str()) {
            return words.get(index + 1).map(String::as_str);
        }
        ["--output=", "-o=", "-o"].iter().find_map(|option| word.strip_prefix(option))
    });
    let output = variable("output");
    formats.next_back().or_else(|| environment.get(&output)) == Some("json")
}

/// Environment and file, which are below the command line.
struct Layers<'a> {
    root: &'a Command,
    environment: &'a Environment,
    file: &'a ConfigFile,
}

impl Layers<'_> {
    fn read(
        &self,
        shown: &dyn Fn(Command) -> Command,
        arguments: &[OsString],
    ) -> Result<CommandLine, Refusal> {
        let command = self.lay(self.root.clone(), None);
        let matches = shown(command.clone())
            .try_get_matches_from(arguments)
            .map_err(|error| self.refusal(&command, arguments, error))?;
        let (mut origins, mut replay_options) = (Origins::default(), Vec::new());
        let mut given = Vec::new();
        let shared = options_of_a_replay(&command);
        self.visit(&command, None, &matches, &mut |argument, own, origin| {
            let option = argument.get_long().unwrap_or_default();
            if origin == Origin::CommandLine && shared.contains(option) {
                replay_options.extend(words_of(argument, own));
            }
            if origin == Origin::CommandLine && PLACE.contains(&option) {
                let words = words_of(argument, own);
                let words: Vec<_> = words.iter().map(|word| self.repeated(word)).collect();
                given.push((option.to_owned(), words.join(" ")));
            }
            origins.note(option, origin);
        });
        let file: Option<String> = innermost_value(&matches, CONFIG);
        let side = Side::of(matches.subcommand_name().unwrap_or_default());
        Ok(CommandLine {
            has_json_output: has_json_output(&matches),
            schema: innermost_value(&matches, SCHEMA).unwrap_or(Schema::PUBLIC),
            database_auth: innermost_value(&matches, DATABASE_AUTH).unwrap_or_default(),
            file: file.filter(|path| !path.is_empty()),
            matches,
            replay_options,
            given,
            side,
            origins,
            problems: Vec::new(),
        })
    }

    /// Returns a word of the command line for a printed command. Where a password is masked, the command
    /// fails rather than reach another database.
    fn repeated(&self, word: &str) -> String {
        let shown = masked(word);
        match self.environment.variable_with(word).filter(|_| shown != word) {
            Some(variable) => format!("\"${variable}\""),
            None => quoted(&shown),
        }
    }

    /// Makes environment and file the defaults of a command and its subcommands. `section` has the
    /// file's settings for this command alone.
    fn lay(&self, command: Command, section: Option<&Values>) -> Command {
        let command = command.mut_args(|argument| match is_option(&argument) {
            true => self.lay_option(argument, section),
            false => argument,
        });
        command.mut_subcommands(|below| {
            let section = self.section(below.get_name(), section);
            self.lay(below, section)
        })
    }

    fn lay_option(&self, argument: Arg, section: Option<&Values>) -> Arg {
        let option = argument.get_long().unwrap_or_default().to_owned();
        let with_variable = |text: String| format!("{text} [env: {}]", variable(&option));
        let text = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
        let argument = match text {
            Some(text) => argument.long_help(with_variable(text)),
            None => argument,
        };
        match self.value(&option, section) {
            Some((_, values)) => argument_with_defaults(argument, values),
            None => argument,
        }
    }

    /// Returns the value of an option in environment or file, with its origin.
    fn value(&self, option: &str, section: Option<&Values>) -> Option<(Origin, Vec<String>)> {
        if let Some((name, value)) = self.environment.of_option(option) {
            return Some((Origin::Environment(name), vec![value.to_owned()]));
        }
        let own = section.and_then(|section| section.get(option));
        let values = own.or_else(|| self.file.values.get(option))?.clone();
        Some((Origin::File(self.file.path.clone()), values))
    }

    fn section<'s>(&'s self, name: &str, outer: Option<&'s Values>) -> Option<&'s Values> {
        outer.or_else(|| self.file.sections.get(name))
    }

    /// Calls `visit` with each option, its matches and the origin of its value, from the outermost
    /// to the innermost command.
    fn visit(
        &self,
        command: &Command,
        section: Option<&Values>,
        matches: &ArgMatches,
        visit: &mut dyn FnMut(&Arg, &ArgMatches, Origin),
    ) {
        for argument in command.get_arguments().filter(|argument| is_option(argument)) {
            let option = argument.get_long().unwrap_or_default();
            let origin = match matches.value_source(argument.get_id().as_str()) {
                Some(ValueSource::CommandLine) => Origin::CommandLine,
                _ => self.value(option, section).map_or(Origin::Default, |(origin, _)| origin),
            };
            visit(argument, matches, origin);
        }
        if let Some((name, below)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            self.visit(command, self.section(name, section), below, visit);
        }
    }

    /// Turns clap's error about the value of an argument into a problem. The problem names the
    /// origin of the value, and hides a value that may be a secret.
    fn refusal(&self, root: &Command, arguments: &[OsString], error: clap::Error) -> Refusal {
        let Some((shown, value, allowed)) = wrong_value(&error) else {
            let words = arguments.iter().skip(1).filter_map(|word| word.to_str());
            let words: Vec<&str> = words.take_while(|word| !word.starts_with('-')).collect();
            let error = with_list(with_right_command(without_urls(error), &words), &words);
            return Refusal::Clap(with_right_option(error, self.innermost(root, arguments).0));
        };
        let name = match shown.strip_prefix("--") {
            Some(_) => shown.split([' ', '[', '=']).next().unwrap_or_default(),
            None => shown.trim_end_matches("...").trim_matches(['<', '>', '[', ']']),
        };
        let (command, section) = self.innermost(root, arguments);
        let argument = command.get_arguments().chain(root.get_arguments()).find(|argument| {
            argument.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long))
        });
        let option = argument.filter(|argument| is_option(argument));
        let is_flag = argument.is_some_and(|argument| is_given(argument, arguments));
        let origin = match option.and_then(Arg::get_long) {
            Some(long) if !is_flag => self.value(long, section).map(|(origin, _)| origin),
            Some(_) | None => None,
        };
        Refusal::Config(vec![Problem {
            option: name.to_owned(),
            value: (!argument.is_some_and(may_hold_secret) && !looks_secret(&value))
                .then_some(value),
            origin: origin.and_then(Origin::name),
            allowed,
            code: Code::ConfigurationInvalid,
        }])
    }

    /// Returns the command that the arguments name, as far as words name commands.
    fn innermost<'c>(
        &'c self,
        root: &'c Command,
        arguments: &[OsString],
    ) -> (&'c Command, Option<&'c Values>) {
        arguments.iter().skip(1).fold((root, None), |(command, section), word| {
            match command.find_subcommand(word) {
                Some(below) => (below, self.section(below.get_name(), section)),
                None => (command, section),
            }
        })
    }
}

/// Returns the options that `replay start` has, without those about log messages.
fn options_of_a_replay(root: &Command) -> BTreeSet<String> {
    let start = root.find_subcommand("replay").and_then(|replay| replay.find_subcommand("start"));
    let own = start.into_iter().flat_map(Command::get_arguments);
    let options = own.chain(root.get_arguments()).filter(|argument| is_option(argument));
    let names = options.filter(|argument| !may_hold_secret(argument)).filter_map(Arg::get_long);
    names.filter(|name| !name.starts_with("log-") && *name != "output").map(str::to_owned).collect()
}

/// Returns the words that give an option its values again.
fn words_of(argument: &Arg, matches: &ArgMatches) -> Vec<String> {
    let option = format!("--{}", argument.get_long().unwrap_or_default());
    let values = matches.get_raw(argument.get_id().as_str()).into_iter().flatten();
    let values = values.map(|value| value.to_string_lossy());
    match argument.is_require_equals_set() {
        true => values
            .map(|value| format!("{option}={value}").trim_end_matches('=').to_owned())
            .collect(),
        false => values.flat_map(|value| [option.clone(), value.into_owned()]).collect(),
    }
}

/// Sets the defaults of an argument. An empty text means none, unless the argument has a default:
/// then its parser decides what an empty text means.
fn argument_with_defaults(argument: Arg, values: Vec<String>) -> Arg {
    let is_list = matches!(argument.get_action(), ArgAction::Append);
    let has_meaning = !argument.get_default_values().is_empty()
        || argument.get_value_parser().type_id()
            == std::any::TypeId::of::<crate::options::values::OptionalColumn>();
    match values.as_slice() {
        [empty] if empty.trim().is_empty() && (is_list || !has_meaning) => {
            argument.default_values(Vec::<String>::new())
        }
        _ => argument.default_values(values),
    }
}

/// Returns the argument, the value and the allowed values of an error about a value.
fn wrong_value(error: &clap::Error) -> Option<(String, String, String)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(_) | None => None,
    };
    let words = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(words)) => words.as_slice(),
        Some(_) | None => &[],
    };
    let kind = error.kind();
    let allowed = if kind == ErrorKind::ValueValidation {
        error.source()?.to_string()
    } else if kind == ErrorKind::InvalidValue && !words.is_empty() {
        format!("one of {}", words.join(", "))
    } else {
        return None;
    };
    Some((text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?, allowed))
}

/// Returns whether the command line gives an argument.
fn is_given(argument: &Arg, arguments: &[OsString]) -> bool {
    let long = argument.get_long().map(|long| format!("--{long}"));
    let short = argument.get_short().map(|short| format!("-{short}"));
    arguments.iter().filter_map(|given| given.to_str()).any(|given| {
        let name = given.split('=').next();
        name == long.as_deref() || short.as_deref().is_some_and(|short| given.starts_with(short))
    })
}

/// Removes URLs from an error, because they may contain a password.
fn without_urls(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand]
    {
        let is_url =
            matches!(error.get(kind), Some(ContextValue::String(text)) if looks_secret(text));
        if is_url {
            error.insert(kind, ContextValue::String("a URL".to_owned()));
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_value_hides_passwords_and_nothing_else() {
        for (value, shown) in [
            (
                "postgresql://app:s3cret@db.example:5432/app?sslmode=require",
                "postgresql://app:***@db.example:5432/app?sslmode=require",
            ),
            ("postgresql://app:p@ss@db/app", "postgresql://app:***@db/app"),
            ("billing=postgresql://app@db/app", "billing=postgresql://app@db/app"),
            ("postgresql://db/app?user=app&password=s3cret", "postgresql://db/app?***"),
            ("host=db password=s3cret", "***"),
            ("host=db user=app", "host=db user=app"),
            ("localhost:8085", "localhost:8085"),
        ] {
            assert_eq!(masked(value), shown);
        }
    }
}

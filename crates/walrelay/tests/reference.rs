//! The generated files are up to date with the option declarations, and complete.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use clap::CommandFactory;
use walrelay::cli::{ARGUMENTS, Cli};
use walrelay::config::{CommandLine, Config, Environment, Problem, Refusal};
use walrelay::options::declaration::{Declaration, Fallback, Kind, ListSeparator, OptionScope};
use walrelay::options::{GROUPS, find};
use walrelay::reference;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Environment variable that writes the files instead of comparing them.
const REGENERATE: &str = "WALRELAY_REGENERATE";

fn holds(path: &str, generate: impl FnOnce(&str) -> String) {
    let file = format!("{ROOT}/{path}");
    let old = std::fs::read_to_string(&file).unwrap_or_default();
    let new = generate(&old);
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(&file, &new).unwrap();
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (in_file, wanted) = (lines(&old), lines(&new));
    let gone = in_file.difference(&wanted).map(|line| format!("- {line}\n"));
    let come = wanted.difference(&in_file).map(|line| format!("+ {line}\n"));
    let diff: String = gone.chain(come).collect();
    assert!(
        old == new,
        "{path} is not what the options say:\n{diff}\
         to write it anew: {REGENERATE}=1 cargo test -p walrelay --test reference"
    );
}

#[test]
fn the_page_shows_every_option_as_it_is_declared() {
    holds("docs/configuration.md", reference::page);
    let page = std::fs::read_to_string(format!("{ROOT}/docs/configuration.md")).unwrap();
    for heading in reference::headings() {
        let table = reference::table(heading);
        assert!(page.contains(&table), "docs/configuration.md has no <!-- options: {heading} -->");
    }
}

#[test]
fn the_annotated_file_is_what_the_options_say() {
    holds("deploy/walrelay.toml", |_| reference::example());
}

#[test]
fn the_schema_is_what_the_options_say() {
    holds("deploy/walrelay.schema.json", |_| reference::schema());
}

fn options() -> impl Iterator<Item = &'static Declaration> {
    GROUPS.iter().flat_map(|group| group.options)
}

#[test]
fn every_option_is_named_once_taken_by_a_command_and_explained() {
    let mut names = BTreeSet::new();
    for option in options() {
        assert!(names.insert(option.name), "{} is declared twice", option.name);
        assert!(!option.meaning.is_empty(), "{} means nothing", option.name);
        let is_taken = option.nature == OptionScope::Everywhere
            || !reference::commands_of(option.name).is_empty();
        assert!(is_taken, "no command takes --{}", option.name);
    }
}

#[test]
fn every_flag_is_an_option_or_an_argument_of_its_command_and_is_on_the_page() {
    fn look(command: &clap::Command, page: &str) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            let is_argument = argument.get_help_heading() == Some(ARGUMENTS);
            assert!(is_argument || find(long).is_some(), "--{long} is declared nowhere");
            assert!(argument.get_help().is_some(), "--{long} has no help");
            assert!(page.contains(&format!("`--{long}`")), "--{long} is not on the page");
        }
        command.get_subcommands().for_each(|command| look(command, page));
    }
    let page = std::fs::read_to_string(format!("{ROOT}/docs/configuration.md")).unwrap();
    look(&Cli::command(), &page);
}

/// Returns the problems of a command with an option's value.
fn problems_of(option: &Declaration, value: &str) -> Vec<Problem> {
    let command = reference::commands_of(option.name);
    let command = command.first().map_or("status", String::as_str);
    let flag = format!("--{}={value}", option.name);
    // The longest status interval needs the longest timeout.
    let timeout = (option.name == "status-interval").then_some("--wal-sender-timeout=10m");
    let arguments = ["walrelay"].into_iter().chain(command.split(' ')).chain([flag.as_str()]);
    // The name of a consumer is no option.
    let name = command.starts_with("consume").then_some("billing");
    let arguments = arguments.chain(timeout).chain(name).map(OsString::from);
    let variables = [
        ("DATABASE_URL", "postgresql://a@b/c"),
        ("WALRELAY_STATUS_INTERVAL", "100ms"),
        ("PUBSUB_PROJECT_ID", "p"),
        ("WALRELAY_HANDLER", "shop.apply"),
    ];
    let environment = Environment::new(variables);
    match CommandLine::parse(arguments, &environment) {
        Ok(line) => Config::new(&line, &environment).err().unwrap_or_default(),
        Err(Refusal::Config(problems)) => problems,
        Err(Refusal::Clap(error)) => panic!("{flag}: {error}"),
    }
}

/// Returns values at the limits of an option's range, and values beyond the limits.
fn ends(option: &Declaration) -> (Vec<String>, Vec<String>) {
    let millis = |duration: Duration| format!("{}ms", duration.as_millis());
    let tick = Duration::from_millis(1);
    let number = |unit: &str, low: u64, high: u64| {
        let below = low.checked_sub(1).map(|low| format!("{low}{unit}"));
        let beyond = below.into_iter().chain([format!("{}{unit}", high + 1)]).collect();
        (vec![format!("{low}{unit}"), format!("{high}{unit}")], beyond)
    };
    match option.kind {
        Kind::Duration(low, high) => {
            let below = low.checked_sub(tick).map(millis);
            let beyond = below.into_iter().chain([millis(high + tick)]).collect();
            (vec![millis(low), millis(high)], beyond)
        }
        Kind::Size(low, high) => number("B", low, high),
        Kind::Count(low, high) => number("", low, high),
        Kind::Words(words) => (words.iter().map(ToString::to_string).collect(), vec!["x".into()]),
        Kind::Switch => (vec!["true".into(), "false".into()], vec!["x".into()]),
        Kind::Text(_) | Kind::List(..) => (Vec::new(), Vec::new()),
    }
}

#[test]
fn the_ends_of_every_range_are_accepted_and_what_lies_beyond_is_refused() {
    let mut looked_at = 0;
    for option in options() {
        let (within, beyond) = ends(option);
        for value in within {
            assert_eq!(problems_of(option, &value), [], "--{} {value}", option.name);
            looked_at += 1;
        }
        for value in beyond {
            let problems = problems_of(option, &value);
            let own = problems.iter().any(|it| it.option == format!("--{}", option.name));
            assert!(own, "--{} {value} was accepted: {problems:?}", option.name);
        }
    }
    assert!(looked_at > 40, "only {looked_at} values: the declarations were not found");
}

#[test]
fn every_default_is_accepted() {
    for option in options() {
        let Fallback::Value(value) = option.default else { continue };
        assert_eq!(problems_of(option, value), [], "--{} {value}", option.name);
    }
}

#[test]
fn the_lines_of_the_annotated_file_may_all_be_taken() {
    let set =
        |line: &str| line.strip_prefix("# ").filter(|line| line.contains(" = ")).map(str::to_owned);
    let example = reference::example();
    let lines: Vec<_> = example.lines().filter_map(set).filter(|it| !it.ends_with('…')).collect();
    let file = std::env::temp_dir().join(format!("walrelay-{}-example.toml", std::process::id()));
    std::fs::write(&file, lines.join("\n")).unwrap();
    let environment =
        Environment::new([("DATABASE_URL", "postgresql://a@b/c"), ("PUBSUB_PROJECT_ID", "p")]);
    let arguments = ["walrelay", "run", "--config", file.to_str().unwrap()].map(OsString::from);
    let line = CommandLine::parse(arguments, &environment).unwrap();
    let config = Config::new(&line, &environment);
    std::fs::remove_file(&file).unwrap();
    assert!(config.is_ok(), "{config:?}");
    let with_default = options().filter(|option| option.default != Fallback::Nothing(""));
    assert!(lines.len() > 30 && lines.len() <= with_default.count(), "{lines:#?}");
}

#[test]
fn the_schema_has_every_key_of_the_file_and_no_other() {
    let schema: serde_json::Value = serde_json::from_str(&reference::schema()).unwrap();
    let properties = schema["properties"].as_object().unwrap();
    let is_section = |name: &str| properties[name]["$ref"].is_string();
    assert!(is_section("consume") && is_section("run") && !is_section("slot"), "{properties:#?}");
    let keys: BTreeSet<_> =
        properties.keys().map(String::as_str).filter(|name| !is_section(name)).collect();
    let expected: BTreeSet<_> =
        options().map(|option| option.name).filter(|name| *name != "config").collect();
    assert_eq!(keys, expected);
    let lists = options()
        .filter(|option| matches!(option.kind, Kind::List(_, ListSeparator::BySemicolons)));
    assert_eq!(lists.count(), 1, "a list in the file is an array of strings");
}

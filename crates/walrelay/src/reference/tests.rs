//! The generated files are up to date with the option declarations, and complete.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Arg;

use super::{example_of, property, row};
use crate::cli::command;
use crate::config::{Config, Environment, Problem, Refusal};
use crate::options::units::{parse_duration, parse_size};
use crate::options::values::duration;
use crate::reference::{self, OptionEntry, ValueKind, options};

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
         to write it anew: {REGENERATE}=1 cargo test -p walrelay --lib reference"
    );
}

#[test]
fn the_page_shows_every_option_as_it_is_declared() {
    holds("docs/reference/configuration.md", |old| reference::page(&command(), old));
    let page = std::fs::read_to_string(format!("{ROOT}/docs/reference/configuration.md")).unwrap();
    for heading in reference::headings() {
        let table = reference::table(&command(), heading);
        assert!(
            page.contains(&table),
            "docs/reference/configuration.md has no <!-- options: {heading} -->"
        );
    }
}

#[test]
fn the_page_of_commands_is_what_the_command_line_says() {
    holds("docs/reference/cli.md", |_| reference::commands::page(&command()));
}

#[test]
fn the_annotated_file_is_what_the_options_say() {
    holds("deploy/walrelay.toml", |_| reference::example(&command()));
}

#[test]
fn the_schema_is_what_the_options_say() {
    holds("deploy/walrelay.schema.json", |_| reference::schema(&command()));
}

#[test]
fn every_option_is_explained_and_has_its_heading_on_the_page() {
    for option in options(&command()) {
        assert!(!option.meaning.is_empty(), "{} means nothing", option.name);
        let is_single = ["Options", "Emulator", "Demo"].contains(&option.heading.as_str());
        let is_known = reference::headings().contains(&option.heading.as_str());
        assert!(is_single || is_known, "--{} is under {:?}", option.name, option.heading);
    }
}

#[test]
fn every_flag_is_explained_and_is_on_a_page() {
    fn look(command: &clap::Command, pages: &str) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            assert!(argument.get_help().is_some(), "--{long} has no help");
            let is_there = ["`", " "].iter().any(|end| pages.contains(&format!("--{long}{end}")));
            assert!(is_there, "--{long} is on no page");
        }
        command.get_subcommands().for_each(|command| look(command, pages));
    }
    let pages = ["docs/reference/configuration.md", "docs/reference/cli.md"]
        .map(|page| std::fs::read_to_string(format!("{ROOT}/{page}")).unwrap());
    look(&command(), &pages.concat());
}

/// Returns the problems of a command with an option's value.
fn problems_of(option: &OptionEntry, value: &str) -> Vec<Problem> {
    let command = option.commands.first().map_or("status", String::as_str);
    let flag = format!("--{}={value}", option.name);
    // Options that another option needs. The longest status interval needs the longest timeout.
    let needed = match option.name.as_str() {
        "status-interval" => Some("--wal-sender-timeout=10m"),
        "prune-keys" => Some("--prune-older-than=30d"),
        _ => None,
    };
    let arguments = ["walrelay"].into_iter().chain(command.split(' ')).chain([flag.as_str()]);
    // Arguments that the command requires, and that are no options.
    let required = match command {
        _ if command.starts_with("consumer") => Some("billing"),
        "dispatch show" | "trace" => Some("id"),
        _ => None,
    };
    let arguments = arguments.chain(needed).chain(required).map(OsString::from);
    let variables = [
        ("DATABASE_URL", "postgresql://a@b/c?sslmode=require"),
        ("WALRELAY_STATUS_INTERVAL", "100ms"),
        ("PUBSUB_PROJECT_ID", "p"),
        ("WALRELAY_HANDLER", "shop.apply"),
        ("WALRELAY_SUBSCRIPTION", "billing"),
    ];
    let environment = Environment::new(variables);
    match Config::parse(arguments, &environment) {
        Ok(_) => Vec::new(),
        Err(Refusal::Config(problems)) => problems,
        Err(Refusal::Clap(error)) => panic!("{flag}: {error}"),
    }
}

/// Returns values at the limits of an option's values, and values beyond the limits.
fn ends(option: &OptionEntry) -> (Vec<String>, Vec<String>) {
    let words = option.words();
    if !words.is_empty() {
        return (words, vec!["x".to_owned()]);
    }
    let Some((low, high)) = &option.range else { return (Vec::new(), Vec::new()) };
    let millis = |text: &str| parse_duration(text).unwrap().as_millis().to_string();
    let (unit, low, high) = match option.kind() {
        ValueKind::Duration => ("ms", millis(low), millis(high)),
        ValueKind::Size => {
            let bytes = |text: &str| parse_size(text).unwrap().to_string();
            ("B", bytes(low), bytes(high))
        }
        ValueKind::Count => ("", low.clone(), high.clone()),
        kind @ (ValueKind::Text | ValueKind::List | ValueKind::Switch) => {
            panic!("--{} has a range and is {kind:?}", option.name)
        }
    };
    let number = |text: &str| text.parse::<u64>().unwrap();
    let below = number(&low).checked_sub(1).map(|below| format!("{below}{unit}"));
    let beyond = below.into_iter().chain([format!("{}{unit}", number(&high) + 1)]).collect();
    (vec![format!("{low}{unit}"), format!("{high}{unit}")], beyond)
}

#[test]
fn the_ends_of_every_range_in_the_help_are_accepted_and_what_lies_beyond_is_refused() {
    let mut looked_at = 0;
    for option in options(&command()) {
        let is_number =
            matches!(option.kind(), ValueKind::Duration | ValueKind::Size | ValueKind::Count);
        assert!(
            !is_number || option.range.is_some(),
            "the help of --{} lacks its range",
            option.name
        );
        let (within, beyond) = ends(&option);
        for value in within {
            assert_eq!(problems_of(&option, &value), [], "--{} {value}", option.name);
            looked_at += 1;
        }
        for value in beyond {
            let problems = problems_of(&option, &value);
            let own = problems.iter().any(|it| it.option == format!("--{}", option.name));
            assert!(own, "--{} {value} was accepted: {problems:?}", option.name);
        }
    }
    assert!(looked_at > 40, "only {looked_at} values: the declarations were not found");
}

#[test]
fn every_default_is_accepted() {
    for option in options(&command()) {
        let Some(value) = &option.default else { continue };
        assert_eq!(problems_of(&option, value), [], "--{} {value}", option.name);
    }
}

#[test]
fn the_lines_of_the_annotated_file_may_all_be_taken() {
    let set =
        |line: &str| line.strip_prefix("# ").filter(|line| line.contains(" = ")).map(str::to_owned);
    let example = reference::example(&command());
    let lines: Vec<_> = example.lines().filter_map(set).filter(|it| !it.ends_with('…')).collect();
    let file = std::env::temp_dir().join(format!("walrelay-{}-example.toml", std::process::id()));
    std::fs::write(&file, lines.join("\n")).unwrap();
    let environment =
        Environment::new([("DATABASE_URL", "postgresql://a@b/c"), ("PUBSUB_PROJECT_ID", "p")]);
    let arguments = ["walrelay", "run", "--config", file.to_str().unwrap()].map(OsString::from);
    let config = Config::parse(arguments, &environment);
    std::fs::remove_file(&file).unwrap();
    assert!(config.is_ok(), "{config:?}");
    assert!(lines.len() > 30, "{lines:#?}");
}

#[test]
fn the_schema_has_every_key_of_the_file_and_no_other() {
    let schema: serde_json::Value = serde_json::from_str(&reference::schema(&command())).unwrap();
    let properties = schema["properties"].as_object().unwrap();
    let is_section = |name: &str| properties[name]["$ref"].is_string();
    assert!(is_section("consumer") && is_section("run") && !is_section("slot"), "{properties:#?}");
    let keys: BTreeSet<_> =
        properties.keys().map(String::as_str).filter(|name| !is_section(name)).collect();
    let options = options(&command());
    let names = options.iter().map(|option| option.name.as_str());
    let expected: BTreeSet<_> = names.filter(|name| *name != "config").collect();
    assert_eq!(keys, expected);
    let section = &schema["definitions"]["section"]["properties"];
    assert!(section["max-attempts"]["default"].is_null(), "the default depends on the command");
    assert_eq!(section["workers"]["default"], 4);
}

/// Options of other programs that our texts name: gcloud, psql, and the Supabase CLI.
const OF_OTHER_PROGRAMS: [&str; 10] = [
    "clear-schema-settings",
    "enable-message-ordering",
    "experimental",
    "format",
    "max-delivery-attempts",
    "member",
    "message-retention-duration",
    "project-ref",
    "role",
    "single-transaction",
];

/// Adds the long options of a command and its subcommands.
fn add_options(command: &clap::Command, names: &mut BTreeSet<String>) {
    names.extend(command.get_arguments().filter_map(|it| it.get_long().map(str::to_owned)));
    command.get_subcommands().for_each(|command| add_options(command, names));
}

/// Returns the options that a text names.
fn options_in(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c == '-';
    // The text before the first two dashes is no option.
    let mut before = '-';
    text.split("--").filter_map(move |rest| {
        let preceding = before;
        before = rest.chars().next_back().unwrap_or('-');
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        let is_option = !preceding.is_alphanumeric()
            && preceding != '-'
            && name.len() > 1
            && !name.starts_with('-')
            && !name.ends_with('-');
        is_option.then_some(name)
    })
}

/// Calls `visit` with each source of our texts below a folder, without its unit tests.
fn visit_texts(folder: &std::path::Path, visit: &mut impl FnMut(&std::path::Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.extension().and_then(|it| it.to_str());
        match kind {
            _ if path.is_dir() => visit_texts(&path, visit),
            _ if path.ends_with("tests.rs") => {}
            Some("rs" | "sql" | "md") => {
                let text = std::fs::read_to_string(&path).unwrap();
                visit(&path, text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text));
            }
            _ => {}
        }
    }
}

#[test]
fn every_option_that_a_text_names_exists() {
    let mut known: BTreeSet<String> = OF_OTHER_PROGRAMS.into_iter().map(str::to_owned).collect();
    known.extend(["help", "version"].map(str::to_owned));
    add_options(&command(), &mut known);
    let mut unknown = Vec::new();
    let mut visit = |path: &std::path::Path, text: &str| {
        let names = options_in(text).filter(|name| !known.contains(*name));
        unknown.extend(names.map(|name| format!("{}: --{name}", path.display())));
    };
    for of in [
        "core",
        "errors",
        "inbox",
        "inbox-admin",
        "inbox-core",
        "otlp",
        "outbox-admin",
        "outbox-replay",
        "outbox-store",
        "pg-client",
        "pg-replication",
        "pubsub",
        "relay",
        "walrelay",
    ] {
        visit_texts(format!("{ROOT}/crates/{of}/src").as_ref(), &mut visit);
    }
    for folder in ["migrations", "docs/runbooks"] {
        visit_texts(format!("{ROOT}/{folder}").as_ref(), &mut visit);
    }
    let errors = std::fs::read_to_string(format!("{ROOT}/docs/reference/errors.md")).unwrap();
    visit("docs/reference/errors.md".as_ref(), &errors);
    assert!(unknown.is_empty(), "no command has these options:\n{}", unknown.join("\n"));
}

#[test]
fn an_option_in_a_text_is_found_and_a_dash_is_none() {
    let text = "add --yes, or `--no-such`; -- name: x, a--b, ---, --column-, --";
    assert_eq!(options_in(text).collect::<Vec<_>>(), ["yes", "no-such"]);
}

/// The verbs that begin the summaries of commands, in their base form.
const VERBS: &str = "Apply Cancel Change Check Create Delete Discard Drop Explain Forget List Make Move Pause Prepare Print \
    Prove Publish Rebuild Replace Reset Resume Run Set Show Take Trace Write";

#[test]
fn the_summary_of_a_command_begins_with_a_verb_and_is_short() {
    fn look(command: &clap::Command) {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let name = command.get_name();
        let first = about.split(' ').next().unwrap_or_default().trim_end_matches(',');
        assert!(VERBS.split_whitespace().any(|verb| verb == first), "{name}: {about}");
        assert!(about.chars().count() <= 80, "{name}: {about}");
        command.get_subcommands().for_each(look);
    }
    command().get_subcommands().for_each(look);
}

#[test]
fn one_declaration_is_a_row_a_line_of_the_file_and_a_property() {
    let argument = Arg::new("nap")
        .long("nap")
        .default_value("5m")
        .value_parser(duration("0s", "2h"))
        .help("How long the relay naps after lunch; 0s to 2h")
        .long_help("How long the relay naps after lunch; 0s to 2h\n\nNot before noon.");
    let nap = OptionEntry::new(&argument);
    assert_eq!(
        row(&nap),
        "| `--nap` | `WALRELAY_NAP` | `5m` | 0s to 2h \
         | How long the relay naps after lunch. Not before noon |\n"
    );
    let example = example_of(&nap);
    assert!(example.ends_with("# Not before noon.\n# nap = \"5m\"\n"), "{example}");
    assert_eq!(property(&nap)["default"], "5m");
    assert_eq!(property(&nap)["type"], "string");
}

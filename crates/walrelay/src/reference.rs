//! Generates files from the option declarations: the tables of docs/configuration.md, an annotated
//! configuration file, and a JSON schema for editors. A test compares the files with the output.

use clap::{Command, CommandFactory};
use serde_json::{Map, Value, json};

use crate::cli::{ARGUMENTS, Cli};
use crate::config::is_section;
use crate::options::declaration::{Declaration, Fallback, Group, Kind};
use crate::options::{CONFIG, GROUPS};

/// Returns the page with its tables regenerated: the text between `<!-- options: HEADING -->` and
/// `<!-- end -->` is replaced.
#[must_use]
pub fn page(old: &str) -> String {
    let mut new = String::new();
    let mut rest = old;
    while let Some((before, after)) = rest.split_once(START) {
        let Some((heading, after)) = after.split_once(" -->\n") else { break };
        let Some((_, after)) = after.split_once(END) else { break };
        new.extend([before, START, heading, " -->\n\n", &table(heading), "\n", END]);
        rest = after;
    }
    new + rest
}

const START: &str = "<!-- options: ";
const END: &str = "<!-- end -->";

/// The page's heading for the options of single commands.
const SINGLE: &str = "Single commands";

fn is_single(group: &Group) -> bool {
    ["This command", "Emulator", "Demo"].contains(&group.heading)
}

/// Returns the table of a heading, or an empty text for an unknown heading.
#[must_use]
pub fn table(heading: &str) -> String {
    let groups = GROUPS.iter().filter(|group| match heading {
        SINGLE => is_single(group),
        _ => group.heading == heading,
    });
    let rows: String = groups
        .flat_map(|group| {
            group.options.iter().map(|option| row(option, &single_commands(option, group)))
        })
        .collect();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "| Flag | Environment | Default | Range | Meaning |\n| --- | --- | --- | --- | --- |\n{rows}"
    )
}

/// Returns the headings that a test expects on the page.
#[must_use]
pub fn headings() -> Vec<&'static str> {
    let mut headings: Vec<_> =
        GROUPS.iter().map(|group| if is_single(group) { SINGLE } else { group.heading }).collect();
    headings.dedup();
    headings
}

fn row(option: &Declaration, commands: &[String]) -> String {
    let own = option.variable();
    let variables: Vec<String> = std::iter::once(own.as_str())
        .chain(option.variables.iter().copied())
        .map(|name| format!("`{name}`"))
        .collect();
    let commands = match commands {
        [] => String::new(),
        some => format!("{}: ", quoted(some)),
    };
    let meaning = match option.detail {
        "" => option.meaning.to_owned(),
        detail => format!("{}. {}", option.meaning, detail.trim_end_matches('.')),
    };
    format!(
        "| `--{}` | {} | {} | {} | {commands}{} |\n",
        option.name,
        variables.join(", "),
        default_in_words(option),
        range_in_words(option),
        meaning.replace('|', "\\|"),
    )
}

fn quoted<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let quoted: Vec<_> = words.into_iter().map(|word| format!("`{}`", word.as_ref())).collect();
    quoted.join(", ")
}

fn default_in_words(option: &Declaration) -> String {
    match option.default {
        Fallback::Value(value) => format!("`{value}`"),
        Fallback::Nothing("") => "none".to_owned(),
        Fallback::Nothing(unset) => unset.to_owned(),
    }
}

fn range_in_words(option: &Declaration) -> String {
    let range = match option.kind {
        Kind::Text(allowed) => allowed.to_owned(),
        Kind::List(allowed, _) => format!("{allowed}; a list"),
        Kind::Words(words) => quoted(words),
        Kind::Switch => quoted(["true", "false"]),
        Kind::Duration(..) | Kind::Size(..) => {
            option.range().map(|(low, high)| format!("`{low}` to `{high}`")).unwrap_or_default()
        }
        Kind::Count(low, high) => format!("{low} to {high}"),
    };
    let never = if option.default == Fallback::Nothing("`never`") { ", `never`" } else { "" };
    let besides = if option.besides.is_empty() { "" } else { ", " };
    format!("{range}{never}{besides}{}", option.besides)
}

/// Returns the commands to list beside an option, if its heading does not name them.
fn single_commands(option: &Declaration, group: &Group) -> Vec<String> {
    if is_single(group) { commands_of(option.name) } else { Vec::new() }
}

/// Returns the commands that take an option, as a user types them.
#[must_use]
pub fn commands_of(option: &str) -> Vec<String> {
    fn collect(command: &Command, path: &str, option: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands() {
            let path = format!("{path} {}", below.get_name());
            let takes = below.get_arguments().any(|argument| {
                argument.get_long() == Some(option)
                    && argument.get_help_heading() != Some(ARGUMENTS)
            });
            if takes {
                found.push(path.trim_start().to_owned());
            }
            collect(below, &path, option, found);
        }
    }
    let mut found = Vec::new();
    collect(&Cli::command(), "", option, &mut found);
    found
}

/// Returns the options that are keys of the file: all except `--config`.
fn keys(group: &Group) -> impl Iterator<Item = &'static Declaration> {
    group.options.iter().filter(|option| option.name != CONFIG.declaration.name)
}

/// Returns a configuration file with every option, its meaning and its default. All options are
/// commented out.
#[must_use]
pub fn example() -> String {
    let mut text = String::from(
        "#:schema ./walrelay.schema.json\n\
         # Every option with its default; take the lines you need. `walrelay run --config walrelay.toml`\n\
         # A flag beats the environment, the environment beats this file. What stands below [consume], or the name\n\
         # of another command, at the end of the file is for that command alone. docs/configuration.md says more.\n",
    );
    let mut heading = "";
    for group in GROUPS {
        if group.heading != heading {
            heading = group.heading;
            text.extend(["\n# ", if heading == "This command" { SINGLE } else { heading }, "\n"]);
        }
        keys(group)
            .for_each(|option| text.push_str(&example_of(option, &single_commands(option, group))));
    }
    text
}

fn example_of(option: &Declaration, commands: &[String]) -> String {
    let commands = match commands {
        [] => String::new(),
        some => format!("{}: ", some.join(", ")),
    };
    let mut text = format!("\n# {commands}{}", option.meaning);
    let range = range_in_words(option).replace('`', "");
    text.extend([" (", &range, ").\n"]);
    if !option.detail.is_empty() {
        text.extend(["# ", option.detail, "\n"]);
    }
    let value = match option.default {
        Fallback::Value(value) => Some(value),
        Fallback::Nothing(_) => None,
    };
    let written = match (option.kind, value) {
        (_, None) => "…".to_owned(),
        (Kind::Switch | Kind::Count(..), Some(value)) => value.to_owned(),
        (Kind::List(..), Some(value)) => format!("[\"{value}\"]"),
        (Kind::Text(_) | Kind::Words(_) | Kind::Duration(..) | Kind::Size(..), Some(value)) => {
            format!("\"{value}\"")
        }
    };
    text.extend(["# ", option.name, " = ", &written, "\n"]);
    text
}

/// Returns the JSON schema of the configuration file.
#[must_use]
pub fn schema() -> String {
    let mut properties: Map<String, Value> = GROUPS
        .iter()
        .flat_map(keys)
        .map(|option| (option.name.to_owned(), property(option)))
        .collect();
    let section = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    // Sections with settings for one command alone.
    let cli = Cli::command();
    let names = cli.get_subcommands().map(|command| command.get_name().to_owned());
    let section_of = |name| (name, json!({ "$ref": "#/definitions/section" }));
    properties.extend(names.filter(|name| is_section(name)).map(section_of));
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "walrelay.toml",
        "description": "The configuration file of walrelay",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "definitions": { "section": section },
    });
    format!("{schema:#}\n")
}

fn property(option: &Declaration) -> Value {
    let mut property = match option.kind {
        Kind::Text(_) => json!({ "type": "string" }),
        Kind::List(..) => json!({
            "anyOf": [
                { "type": "array", "items": { "type": "string" } },
                { "type": ["string", "boolean"] },
            ]
        }),
        Kind::Words(words) => json!({ "enum": words }),
        Kind::Switch => json!({ "type": "boolean" }),
        Kind::Duration(..) => {
            json!({ "type": "string", "pattern": "^([0-9]+ ?(ms|s|m|h|d)|never)$" })
        }
        Kind::Size(..) => {
            json!({ "type": "string", "pattern": "^[0-9]+ ?(B|kB|KB|MB|GB|KiB|MiB|GiB)$" })
        }
        Kind::Count(low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
    };
    let range = range_in_words(option).replace('`', "");
    property["description"] = Value::from(format!("{} ({range})", option.meaning));
    if let Fallback::Value(value) = option.default {
        property["default"] = match option.kind {
            Kind::Count(..) => value.parse::<u64>().map_or(Value::Null, Value::from),
            Kind::Switch => Value::from(value == "true"),
            Kind::List(..) => json!([value]),
            Kind::Text(_) | Kind::Words(_) | Kind::Duration(..) | Kind::Size(..) => {
                Value::from(value)
            }
        };
    }
    property
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "options are declared for everybody")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::declaration::{Setting, options};

    options! {
        /// An option for the tests.
        MadeUpOptions "Made up"
        NAP: Duration = Setting::duration("nap", "5m", Duration::ZERO, Duration::from_hours(2))
            .means("How long the relay naps after lunch")
            .detail("Not before noon.");
    }

    #[test]
    fn one_declaration_is_a_row_an_argument_a_line_of_the_file_and_a_property() {
        let [nap] = MadeUpOptions::GROUP.options else { panic!("one option was declared") };
        assert_eq!(nap.name, NAP.declaration.name);
        assert_eq!(
            row(nap, &[]),
            "| `--nap` | `WALRELAY_NAP` | `5m` | `0ms` to `2h` \
             | How long the relay naps after lunch. Not before noon |\n"
        );
        let help = MadeUpOptions::GROUP.augment(Command::new("x")).render_help().to_string();
        assert!(help.contains("--nap <DURATION>"), "{help}");
        assert!(help.contains("after lunch; 0ms to 2h [default: 5m]"), "{help}");
        let example = example_of(nap, &[]);
        assert!(example.ends_with("# Not before noon.\n# nap = \"5m\"\n"), "{example}");
        assert_eq!(property(nap)["default"], "5m");
    }
}

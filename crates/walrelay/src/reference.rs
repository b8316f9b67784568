//! Generates files from the command line's declaration: the tables of the configuration page, the
//! page of commands, an annotated configuration file, and a JSON schema for editors. A test compares
//! the files with the output.

pub mod commands;
#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use crate::config::{established_variables, is_section, keys, variable};
use crate::options::units::{parse_duration, parse_size};
use crate::options::values::{Bytes, OrNever};
use crate::options::{OWN_OPTIONS, is_option};

/// The page's heading for the options of single commands.
const SINGLE: &str = "Single commands";
/// The headings of options of single commands in the help.
const SINGLE_HEADINGS: [&str; 3] = [OWN_OPTIONS, "Emulator", "Demo"];

/// An option: an argument that environment and file may set.
#[derive(Debug, Clone)]
pub struct OptionEntry {
    /// The long name.
    pub name: String,
    pub heading: String,
    /// The commands that take the option, as a user types them. Empty if all commands take it.
    pub commands: Vec<String>,
    /// The effect, without range and default.
    pub meaning: String,
    /// Further information, or an empty text.
    pub detail: String,
    /// The lowest and the highest value, if the values have a range.
    pub range: Option<(String, String)>,
    pub default: Option<String>,
    /// The meaning of an unset option, if it has no default value.
    pub unset: Option<String>,
    argument: Arg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Text,
    List,
    Switch,
    Duration,
    /// A size in bytes.
    Size,
    /// A whole number.
    Count,
}

impl OptionEntry {
    fn new(argument: &Arg) -> Self {
        let text = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let (text, unset) = match text.split_once(" [default: ") {
            Some((text, unset)) => (text, Some(unset.trim_end_matches(']').to_owned())),
            None => (text.as_str(), None),
        };
        let (meaning, range) = match text.rsplit_once("; ").map(|(text, end)| (text, range(end))) {
            Some((text, Some(range))) => (text, Some(range)),
            Some((_, None)) | None => (text, None),
        };
        let long = argument.get_long_help().map(ToString::to_string).unwrap_or_default();
        let detail = long.split_once("\n\n").map(|(_, detail)| detail.replace('\n', " "));
        let default = argument.get_default_values().first();
        Self {
            name: argument.get_long().unwrap_or_default().to_owned(),
            heading: argument.get_help_heading().unwrap_or_default().to_owned(),
            commands: Vec::new(),
            meaning: meaning.to_owned(),
            detail: detail.unwrap_or_default(),
            range,
            default: default.and_then(|value| value.to_str()).map(str::to_owned),
            unset,
            argument: argument.clone(),
        }
    }

    #[must_use]
    pub(crate) fn kind(&self) -> ValueKind {
        let value = self.argument.get_value_parser().type_id();
        match () {
            () if matches!(self.argument.get_action(), ArgAction::Append) => ValueKind::List,
            () if value == TypeId::of::<bool>() => ValueKind::Switch,
            () if value == TypeId::of::<Duration>() || value == TypeId::of::<OrNever>() => {
                ValueKind::Duration
            }
            () if value == TypeId::of::<Bytes>() => ValueKind::Size,
            () if value == TypeId::of::<u32>() => ValueKind::Count,
            () => ValueKind::Text,
        }
    }

    /// Returns the accepted words, or none if other values are accepted too.
    #[must_use]
    pub(crate) fn words(&self) -> Vec<String> {
        let words = self.argument.get_possible_values();
        words.iter().filter(|word| !word.is_hide_set()).map(|it| it.get_name().to_owned()).collect()
    }

    fn is_single(&self) -> bool {
        SINGLE_HEADINGS.contains(&self.heading.as_str())
    }

    /// Returns whether both are one option, which two groups contain.
    fn is_like(&self, other: &Self) -> bool {
        self.name == other.name && self.meaning == other.meaning && self.default == other.default
    }

    fn values(&self) -> String {
        let words = self.words();
        match &self.range {
            Some((low, high)) => format!("{low} to {high}"),
            None if !words.is_empty() => words.join(", "),
            None => {
                let name = self.argument.get_value_names().unwrap_or_default();
                name.iter().map(|name| name.to_lowercase()).collect()
            }
        }
    }

    fn commands_before(&self, quote: &str) -> String {
        match self.is_single() {
            true => {
                let names = self.commands.iter().map(|name| format!("{quote}{name}{quote}"));
                format!("{}: ", names.collect::<Vec<_>>().join(", "))
            }
            false => String::new(),
        }
    }
}

fn range(text: &str) -> Option<(String, String)> {
    let (low, high) = text.split_once(" to ")?;
    let is_value = |end: &str| {
        let number: Option<u64> = end.parse().ok();
        number.is_some() || parse_duration(end).is_some() || parse_size(end).is_some()
    };
    (is_value(low) && is_value(high)).then(|| (low.to_owned(), high.to_owned()))
}

/// Returns every option, in the order of the page. An option that two groups contain alike is
/// listed once.
#[must_use]
pub fn options(root: &Command) -> Vec<OptionEntry> {
    fn collect(command: &Command, path: &str, found: &mut Vec<OptionEntry>) {
        for argument in command.get_arguments().filter(|argument| is_option(argument)) {
            let entry = OptionEntry::new(argument);
            let known = found.iter().position(|known| known.is_like(&entry));
            let index = known.unwrap_or_else(|| {
                found.push(entry);
                found.len() - 1
            });
            if !path.is_empty() {
                found[index].commands.push(path.to_owned());
            }
        }
        for below in command.get_subcommands() {
            collect(below, format!("{path} {}", below.get_name()).trim_start(), found);
        }
    }
    let mut found = Vec::new();
    collect(root, "", &mut found);
    let order = headings();
    found.sort_by_key(|entry| {
        let heading = if entry.is_single() { SINGLE } else { &entry.heading };
        (order.iter().position(|known| *known == heading), is_late(&entry.heading))
    });
    found
}

/// Returns the page's heading for a heading of the help.
fn section_of(heading: &str) -> &str {
    if SINGLE_HEADINGS.contains(&heading) { SINGLE } else { heading }
}

/// The position of a heading among those of single commands.
fn is_late(heading: &str) -> Option<usize> {
    SINGLE_HEADINGS.iter().position(|known| *known == heading)
}

#[must_use]
pub fn headings() -> [&'static str; 8] {
    ["General", "Postgres", "Outbox", "Messages", "Pub/Sub", "Relay", "Consumer", SINGLE]
}

const START: &str = "<!-- options: ";
const END: &str = "<!-- end -->";

/// Returns the page with its tables regenerated: the text between `<!-- options: HEADING -->` and
/// `<!-- end -->` is replaced.
#[must_use]
pub fn page(root: &Command, old: &str) -> String {
    let mut new = String::new();
    let mut rest = old;
    while let Some((before, after)) = rest.split_once(START) {
        let Some((heading, after)) = after.split_once(" -->\n") else { break };
        let Some((_, after)) = after.split_once(END) else { break };
        new.extend([before, START, heading, " -->\n\n", &table(root, heading), "\n", END]);
        rest = after;
    }
    new + rest
}

/// Returns the table of a heading, or an empty text for an unknown heading.
#[must_use]
pub fn table(root: &Command, heading: &str) -> String {
    let options = options(root);
    let rows: String = options
        .iter()
        .filter(|option| match heading {
            SINGLE => option.is_single(),
            _ => option.heading == heading,
        })
        .map(row)
        .collect();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "| Flag | Environment | Default | Values | Meaning |\n| --- | --- | --- | --- | --- |\n{rows}"
    )
}

fn row(option: &OptionEntry) -> String {
    let own = variable(&option.name);
    let variables: Vec<String> = std::iter::once(own.as_str())
        .chain(established_variables(&option.name).iter().copied())
        .map(|name| format!("`{name}`"))
        .collect();
    let default = match (&option.default, &option.unset) {
        (Some(value), _) => format!("`{value}`"),
        (None, Some(unset)) => unset.clone(),
        (None, None) => "none".to_owned(),
    };
    let meaning = match option.detail.as_str() {
        "" => option.meaning.clone(),
        detail => format!("{}. {}", option.meaning, detail.trim_end_matches('.')),
    };
    format!(
        "| `--{}` | {} | {default} | {} | {}{} |\n",
        option.name,
        variables.join(", "),
        option.values(),
        option.commands_before("`"),
        meaning.replace('|', "\\|"),
    )
}

/// Returns a configuration file with every option, its meaning and its default. All options are
/// commented out.
#[must_use]
pub fn example(root: &Command) -> String {
    let mut text = String::from(
        "#:schema ./walrelay.schema.json\n\
         # Every option with its default; take the lines you need. `walrelay run --config walrelay.toml`\n\
         # A flag beats the environment, the environment beats this file. An option below [consumer], or the name\n\
         # of another command, at the end of the file, applies to that command alone.\n",
    );
    let mut heading = String::new();
    let mut written = Vec::new();
    let keys = keys(root);
    for option in options(root).iter().filter(|option| keys.contains(&option.name)) {
        if written.contains(&option.name) {
            continue;
        }
        written.push(option.name.clone());
        if option.heading != heading {
            heading.clone_from(&option.heading);
            let shown = if heading == SINGLE_HEADINGS[0] { SINGLE } else { &heading };
            text.extend(["\n# ", shown, "\n"]);
        }
        text.push_str(&example_of(option));
    }
    text
}

fn example_of(option: &OptionEntry) -> String {
    let mut text = format!("\n# {}{}", option.commands_before(""), option.meaning);
    text.extend([" (", &option.values(), ").\n"]);
    if !option.detail.is_empty() {
        text.extend(["# ", &option.detail, "\n"]);
    }
    let written = match (option.kind(), &option.default) {
        (_, None) => "…".to_owned(),
        (ValueKind::Switch | ValueKind::Count, Some(value)) => value.clone(),
        (ValueKind::List, Some(value)) => format!("[\"{value}\"]"),
        (ValueKind::Text | ValueKind::Duration | ValueKind::Size, Some(value)) => {
            format!("\"{value}\"")
        }
    };
    text.extend(["# ", &option.name, " = ", &written, "\n"]);
    text
}

#[must_use]
pub fn schema(root: &Command) -> String {
    let keys = keys(root);
    let options: Vec<_> =
        options(root).into_iter().filter(|option| keys.contains(&option.name)).collect();
    let mut properties = Map::new();
    for option in &options {
        let mut property = property(option);
        if options.iter().any(|other| other.name == option.name && other.default != option.default)
        {
            // The default depends on the command.
            property.as_object_mut().map(|property| property.remove("default"));
        }
        properties.entry(option.name.clone()).or_insert(property);
    }
    let section = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    // Sections with settings for one command alone.
    let names = root.get_subcommands().map(|command| command.get_name().to_owned());
    let section_of = |name| (name, json!({ "$ref": "#/definitions/section" }));
    properties.extend(names.filter(|name| is_section(root, name)).map(section_of));
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

fn property(option: &OptionEntry) -> Value {
    let kind = option.kind();
    let words = option.words();
    let mut property = match kind {
        ValueKind::Switch => json!({ "type": "boolean" }),
        ValueKind::Count => json!({ "type": "integer" }),
        ValueKind::List => json!({
            "anyOf": [
                { "type": "array", "items": { "type": "string" } },
                { "type": ["string", "boolean"] },
            ]
        }),
        ValueKind::Text if !words.is_empty() => json!({ "enum": words }),
        ValueKind::Text | ValueKind::Duration | ValueKind::Size => json!({ "type": "string" }),
    };
    property["description"] = Value::from(format!("{} ({})", option.meaning, option.values()));
    if let Some(value) = &option.default {
        property["default"] = match kind {
            ValueKind::Count => value.parse::<u64>().map_or(Value::Null, Value::from),
            ValueKind::Switch => Value::from(value == "true"),
            ValueKind::List => json!([value]),
            ValueKind::Text | ValueKind::Duration | ValueKind::Size => Value::from(value.as_str()),
        };
    }
    property
}

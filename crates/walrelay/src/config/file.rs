//! The configuration file.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;
use walrelay_errors::Code;

use super::problem::Problem;
use crate::options::is_option;

/// The option that names the file, and therefore cannot be set in it.
pub(crate) const CONFIG: &str = "config";

/// Values as text, by the long name of the option.
pub(super) type Values = BTreeMap<String, Vec<String>>;

/// The file named by `--config`.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) path: String,
    pub(super) values: Values,
    /// Settings for one command alone, by its name. They win over the general settings.
    pub(super) sections: BTreeMap<String, Values>,
}

impl ConfigFile {
    /// Reads the file. Returns problems of single keys separately.
    pub(super) fn read(root: &Command, path: &str) -> Result<(Self, Vec<Problem>), Problem> {
        let unusable = |allowed: String| Problem {
            option: format!("--{CONFIG}"),
            value: Some(path.to_owned()),
            origin: None,
            allowed,
            code: Code::ConfigurationInvalid,
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| unusable(format!("a file that can be read ({error})")))?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's long message quotes the line, which may contain a password.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            unusable(format!("a TOML file; line {line}: {}", error.message()))
        })?;
        let reader = Reader { path, root, keys: keys(root) };
        Ok(reader.file(table))
    }
}

struct Reader<'a> {
    path: &'a str,
    root: &'a Command,
    keys: BTreeSet<String>,
}

impl Reader<'_> {
    fn file(&self, table: toml::Table) -> (ConfigFile, Vec<Problem>) {
        let mut file = ConfigFile { path: self.path.to_owned(), ..ConfigFile::default() };
        let mut problems = Vec::new();
        let (sections, table): (Vec<_>, Vec<_>) = table
            .into_iter()
            .partition(|(key, value)| value.is_table() && is_section(self.root, key));
        file.values = self.values(table, &mut problems);
        for (name, section) in sections {
            let toml::Value::Table(section) = section else { continue };
            let section = self.values(section, &mut problems);
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

    /// Returns the keys of a table that are options.
    fn values(
        &self,
        table: impl IntoIterator<Item = (String, toml::Value)>,
        problems: &mut Vec<Problem>,
    ) -> Values {
        let mut values = Values::new();
        for (key, value) in table {
            let allowed = match self.keys.contains(&key) {
                false => Err(self.unknown_key(&key)),
                true => texts(&value)
                    .ok_or_else(|| "a string, a number, a boolean or a list".to_owned()),
            };
            match allowed {
                Ok(texts) => drop(values.insert(key, texts)),
                Err(allowed) => problems.push(Problem {
                    option: key,
                    value: None,
                    origin: Some(self.path.to_owned()),
                    allowed,
                    code: Code::ConfigurationInvalid,
                }),
            }
        }
        values
    }

    fn unknown_key(&self, key: &str) -> String {
        let kebab = key.replace('_', "-");
        let likeness = |known: &&String| strsim::jaro(known, &kebab);
        let closest = self.keys.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        // The threshold of clap's own tips.
        if let Some(meant) = closest.filter(|meant| likeness(meant) > 0.7) {
            return format!("not an option; did you mean {meant}?");
        }
        "not an option; the keys are the long names of the flags, such as park-after, also below [consumer] and \
         other commands"
            .to_owned()
    }
}

/// Returns the keys of the file: the long names of all options except `--config`.
pub(crate) fn keys(root: &Command) -> BTreeSet<String> {
    fn collect(command: &Command, keys: &mut BTreeSet<String>) {
        let options = command.get_arguments().filter(|argument| is_option(argument));
        keys.extend(options.filter_map(|argument| argument.get_long().map(str::to_owned)));
        command.get_subcommands().for_each(|below| collect(below, keys));
    }
    let mut keys = BTreeSet::new();
    collect(root, &mut keys);
    keys.remove(CONFIG);
    keys
}

/// Returns whether `name` is a command and not also an option, as `slot` is.
pub(crate) fn is_section(root: &Command, name: &str) -> bool {
    root.find_subcommand(name).is_some() && name != CONFIG && !keys(root).contains(name)
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

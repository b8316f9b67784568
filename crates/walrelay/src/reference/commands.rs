//! Generates the page of commands: usage, arguments, options and examples of each command.

use clap::{Arg, Command};

use crate::config::variable;
use crate::options::is_option;

const HEAD: &str =
    "<!-- generated from the command line by the test `reference` -->\n\n# Commands\n\n";

const INTRODUCTION: &str = "\
This page lists every command with its arguments and options. Every command also takes the
[general options](configuration.md#general).

An option with a variable can also be set in the environment and in the [file](configuration.md). \
The same applies to the groups of options below each table. All other options are given on the command line alone.
";

const CONSENT: &str = "
Commands that delete, discard, republish or move a position ask at a terminal, and count the affected rows in the \
question. Without a terminal they need `--yes`. With `--dry-run` they print the effect and change nothing.
";

#[must_use]
pub fn page(root: &Command) -> String {
    let mut text = format!("{HEAD}{INTRODUCTION}{CONSENT}");
    for command in root.get_subcommands().filter(|command| is_shown(command)) {
        add(&mut text, command, &format!("walrelay {}", command.get_name()));
    }
    text
}

fn is_shown(command: &Command) -> bool {
    command.get_name() != "help" && !command.is_hide_set()
}

/// Adds a command, and behind it the commands below it.
fn add(text: &mut String, command: &Command, path: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.push_str(&format!("\n## {path}\n\n{}.\n", about.trim_end_matches('.')));
    let has_subcommands = command.get_subcommands().any(is_shown);
    if !has_subcommands {
        let usage = command.clone().bin_name(path).render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        text.push_str(&format!("\n```text\n{usage}\n```\n"));
        text.push_str(&arguments(command));
        text.push_str(&own_options(command));
        text.push_str(&groups(command));
        text.push_str(&examples(command));
    }
    for below in command.get_subcommands().filter(|command| is_shown(command)) {
        add(text, below, &format!("{path} {}", below.get_name()));
    }
}

/// Returns the table of the positional arguments.
fn arguments(command: &Command) -> String {
    let rows: String = command
        .get_positionals()
        .filter(|argument| !argument.is_hide_set())
        .map(|argument| format!("| `{}` | {} |\n", name_of(argument), meaning_of(argument)))
        .collect();
    if rows.is_empty() {
        return rows;
    }
    format!("\n| Argument | Meaning |\n| --- | --- |\n{rows}")
}

/// Returns the table of the options that belong to the command, with the variable of those that
/// environment and file may set.
fn own_options(command: &Command) -> String {
    let is_own = |argument: &&Arg| {
        let is_help = ["help", "version"].contains(&argument.get_id().as_str());
        let is_single = !is_option(argument) || is_in_single_section(argument);
        argument.get_long().is_some() && is_single && !is_help && !argument.is_hide_set()
    };
    let rows: String = command
        .get_arguments()
        .filter(is_own)
        .map(|argument| {
            let variable = match is_option(argument) {
                true => format!("`{}`", variable(argument.get_long().unwrap_or_default())),
                false => String::new(),
            };
            format!("| `{}` | {} | {variable} |\n", name_of(argument), meaning_of(argument))
        })
        .collect();
    if rows.is_empty() {
        return rows;
    }
    format!("\n| Option | Meaning | Variable |\n| --- | --- | --- |\n{rows}")
}

fn is_in_single_section(argument: &Arg) -> bool {
    super::section_of(argument.get_help_heading().unwrap_or_default()) == super::SINGLE
}

fn meaning_of(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    help.replace('|', "\\|")
}

fn name_of(argument: &Arg) -> String {
    // A switch takes a value only to turn off what the environment or the file has turned on.
    let names = argument.get_value_names().filter(|names| *names != ["BOOL"]);
    let value: String = names
        .filter(|_| argument.get_action().takes_values())
        .map(|names| names.iter().map(|name| format!("<{name}>")).collect())
        .unwrap_or_default();
    let name = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
        (None, Some(long)) => format!("--{long} {value}"),
        (Some(_) | None, None) => value,
    };
    name.trim_end().to_owned()
}

/// Returns the names of the options that several commands share, by their heading.
fn groups(command: &Command) -> String {
    let mut headings: Vec<(String, Vec<String>)> = Vec::new();
    let shown = |argument: &&Arg| {
        is_option(argument) && !argument.is_global_set() && !is_in_single_section(argument)
    };
    for argument in command.get_arguments().filter(shown) {
        let heading = argument.get_help_heading().unwrap_or_default().to_owned();
        let name = format!("`--{}`", argument.get_long().unwrap_or_default());
        match headings.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, names)) => names.push(name),
            None => headings.push((heading, vec![name])),
        }
    }
    let line = |(heading, names): &(String, Vec<String>)| {
        let anchor = heading.to_lowercase().replace(' ', "-").replace('/', "");
        format!("- [{heading}](configuration.md#{anchor}): {}\n", names.join(", "))
    };
    let lines: String = headings.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nShared options:\n\n{lines}") }
}

fn examples(command: &Command) -> String {
    let Some(help) = command.get_after_help().map(ToString::to_string) else {
        return String::new();
    };
    let lines: Vec<&str> = help.lines().skip(1).map(str::trim).collect();
    match help.starts_with("Example") {
        true => format!("\n```text\n{}\n```\n", lines.join("\n").trim_end()),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_section_with_its_usage() {
        let page = page(&crate::cli::command());
        for path in ["init", "run", "slot reset", "consumer rebuild", "config show"] {
            assert!(page.contains(&format!("\n## walrelay {path}\n")), "{path}");
            assert!(page.contains(&format!("\nwalrelay {path} ")), "{path}");
        }
        assert!(!page.contains("## walrelay help"), "{page}");
    }

    #[test]
    fn arguments_and_own_options_are_in_tables_and_shared_options_are_links() {
        let page = page(&crate::cli::command());
        let (_, section) = page.split_once("\n## walrelay slot reset\n").unwrap_or_default();
        let section = section.split("\n## ").next().unwrap_or_default();
        assert!(section.contains("| `--to-anchor <NAME>` |"), "{section}");
        assert!(section.contains("| `-y, --yes` | Do not ask |  |"), "{section}");
        assert!(section.contains("| `WALRELAY_OUTPUT` |"), "{section}");
        assert!(section.contains("(configuration.md#postgres): `--database-url`"), "{section}");
    }
}

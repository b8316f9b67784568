//! `walrelay completions` and `walrelay man`. Both are generated from the clap definition, so that
//! neither names an option that does not exist.

use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::shells;

use crate::cli::{ARGUMENTS, Cli};
use crate::config::{SHELLS, STATES, Shell};
use crate::error::Error;
use crate::options;
use crate::options::declaration::Kind;
use crate::output::print;

/// Prints the completions for a shell.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print_for(shell: Shell) -> Result<(), Error> {
    print(&script_of(shell))
}

fn script_of(shell: Shell) -> String {
    let mut command = with_values(Cli::command(), "");
    let mut script = Vec::new();
    let name = "walrelay";
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Adds the accepted words to each argument. The real command line accepts any text, so that
/// `config` can report all problems at once.
fn with_values(mut command: Command, path: &str) -> Command {
    let known: Vec<_> = command
        .get_arguments()
        .filter_map(|argument| Some((argument.get_id().clone(), words_of(path, argument)?)))
        .collect();
    for (id, words) in known {
        let parser = PossibleValuesParser::new(words);
        command = command.mut_arg(id, |argument| argument.value_parser(parser));
    }
    let names: Vec<_> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names.into_iter().fold(command, |all, name| {
        let path = format!("{path} {name}");
        all.mut_subcommand(name, |below| with_values(below, path.trim_start()))
    })
}

/// Returns the words that an argument accepts, or none if it accepts any text.
fn words_of(path: &str, argument: &Arg) -> Option<Vec<&'static str>> {
    if argument.get_help_heading() != Some(ARGUMENTS) {
        return match options::find(argument.get_long()?)?.kind {
            Kind::Words(words) => Some(words.to_vec()),
            Kind::Switch => Some(vec!["true", "false"]),
            Kind::Text(_)
            | Kind::List(..)
            | Kind::Duration(..)
            | Kind::Size(..)
            | Kind::Count(..) => None,
        };
    }
    let default = argument.get_default_values().first().and_then(|value| value.to_str());
    match (path, argument.get_id().as_str(), default) {
        (_, "format", Some("table")) => Some(vec!["table", "json"]),
        (_, "format", Some("text")) => Some(vec!["text", "json"]),
        (path, "status", _) if path.starts_with("dispatch ") => {
            Some(STATES.map(|(word, _)| word).to_vec())
        }
        ("inbox list", "status", _) => Some(INBOX_STATUSES.to_vec()),
        ("completions", "shell", _) => Some(SHELLS.map(|(word, _)| word).to_vec()),
        _ => None,
    }
}

/// The statuses of an event in an inbox.
const INBOX_STATUSES: [&str; 5] = ["done", "late", "retrying", "dead", "discarded"];

/// Writes `walrelay.1`, `walrelay-run.1` and so on into a directory, and prints the number of
/// pages.
///
/// # Errors
///
/// The directory or a page cannot be written.
pub fn write_pages(directory: &Path) -> Result<(), Error> {
    let shown = directory.display();
    let io = |source| Error::Io { action: format!("write man pages into {shown}"), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    clap_mangen::generate_to(Cli::command(), directory).map_err(io)?;
    let pages = std::fs::read_dir(directory).map_err(io)?.filter_map(Result::ok);
    let ours = pages.filter(|page| page.file_name().to_string_lossy().starts_with("walrelay"));
    print(&format!("{} pages in {shown}\n", ours.count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_takes_few_words_is_completed_with_them() {
        let script = script_of(Shell::Bash);
        for words in [
            "retrying dead published discarded all",
            "done late retrying dead discarded",
            "table json",
            "text json",
            "continue hold",
        ] {
            assert!(script.contains(&format!("compgen -W \"{words}\"")), "{words}");
        }
        // A positional argument lists its words together with the flags.
        assert!(script.contains(" bash zsh fish\""), "shells");
    }
}

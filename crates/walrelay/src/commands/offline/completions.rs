//! `walrelay completions` and `walrelay man`. Both are generated from the clap definition, so that
//! neither names an option that does not exist.

use std::path::Path;

use crate::cli::command;
use crate::config::Shell;
use crate::error::Error;
use clap_complete::shells;

use crate::output::print;

/// Prints the completions for a shell.
///
/// # Errors
///
/// Standard output cannot be written.
pub(crate) fn print_for(shell: Shell) -> Result<(), Error> {
    print(&script_of(shell))
}

fn script_of(shell: Shell) -> String {
    let mut command = command();
    let mut script = Vec::new();
    let name = "walrelay";
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `walrelay.1`, `walrelay-run.1` and so on into a directory, and prints the number of
/// pages.
///
/// # Errors
///
/// The directory or a page cannot be written.
pub(crate) fn write_pages(directory: &Path) -> Result<(), Error> {
    let shown = directory.display();
    let io = |source| Error::Io { action: format!("write man pages into {shown}"), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    clap_mangen::generate_to(command(), directory).map_err(io)?;
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
            "done late retrying dead discarded all",
            "text json",
            "continue hold",
        ] {
            assert!(script.contains(&format!("compgen -W \"{words}\"")), "{words}");
        }
        // A positional argument lists its words together with the flags.
        assert!(script.contains(" bash zsh fish\""), "shells");
    }
}

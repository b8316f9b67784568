//! `walrelay completions` and `walrelay man`: made of the command line's own description, so that
//! neither can name what does not exist.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::shells;

use crate::cli::Cli;
use crate::config::Shell;
use crate::error::Error;
use crate::output::print;

/// Prints the completions of a shell.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print_for(shell: Shell) -> Result<(), Error> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    let name = "walrelay";
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    print(&String::from_utf8_lossy(&script))
}

/// Writes `walrelay.1`, `walrelay-run.1` and so on into a directory, and prints how many.
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

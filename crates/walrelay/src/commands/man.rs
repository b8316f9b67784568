//! `walrelay man`: writes the man pages, from the clap definition.

use std::path::{Path, PathBuf};

use clap::{Args, Command};

use crate::config::Checks;
use crate::error::Error;
use crate::options::ARGUMENTS;
use crate::output::print;
use crate::plan::Plan;

/// Write the man pages, one for each command.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay man /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// Directory that the pages are written into; it is created when it is missing.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Man {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let command = (checks.program.command)();
        Some(Plan::new(async move |_| write_pages(&self.directory, command)))
    }
}

/// Writes `walrelay.1`, `walrelay-run.1` and so on into a directory, and prints the number of
/// pages.
fn write_pages(directory: &Path, command: Command) -> Result<(), Error> {
    let shown = directory.display();
    let io = |source| Error::Io { action: format!("write man pages into {shown}"), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    clap_mangen::generate_to(command, directory).map_err(io)?;
    let pages = std::fs::read_dir(directory).map_err(io)?.filter_map(Result::ok);
    let ours = pages.filter(|page| page.file_name().to_string_lossy().starts_with("walrelay"));
    print(&format!("{} pages in {shown}\n", ours.count()))
}

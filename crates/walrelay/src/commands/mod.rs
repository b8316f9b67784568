//! One module per command; each takes its part of the configuration and does what `--help` says.

use std::io::{self, Write as _};
use std::time::SystemTime;

use crate::config::Command;
use crate::error::Error;
use crate::shutdown::Shutdown;

pub mod check;
pub mod demo;
pub mod dispatch;
pub mod emulator;
pub mod init;
pub mod prune;
pub mod run;
pub mod slot;
pub mod status;
mod topics;

/// Does what the command line asks for.
///
/// # Errors
///
/// Whatever ended the command; [`Error::exit`] says what the process exits with.
pub async fn execute(command: Command, shutdown: &Shutdown) -> Result<(), Error> {
    match command {
        Command::Run(config) => run::execute(*config, shutdown).await,
        Command::Demo(config) => demo::execute(config, shutdown).await,
        Command::Emulator(config) => emulator::execute(config, shutdown).await,
        Command::Init(config) => init::execute(*config).await,
        Command::Check(config) => check::execute(*config).await,
        Command::Status(config) => status::execute(config).await,
        Command::Dispatch(config) => dispatch::execute(config).await,
        Command::Slot(config) => slot::execute(config).await,
        Command::Prune(config) => prune::execute(config).await,
    }
}

/// Prints what a command was asked for. A reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { action: "write to standard output".into(), source: error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A moment as people and programs read it, `2026-01-31T12:00:00Z`.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}

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
        Command::Run(config) => Box::pin(run::execute(*config, shutdown)).await,
        Command::Demo(config) => demo::execute(config, shutdown).await,
        Command::Emulator(config) => emulator::execute(config, shutdown).await,
        // Nothing of these is worth draining, and each may be run again.
        Command::Init(config) => unless_stopped(init::execute(*config), shutdown).await,
        Command::Check(config) => unless_stopped(check::execute(*config), shutdown).await,
        Command::Status(config) => unless_stopped(status::execute(config), shutdown).await,
        Command::Dispatch(config) => unless_stopped(dispatch::execute(config), shutdown).await,
        Command::Slot(config) => unless_stopped(slot::execute(config), shutdown).await,
        Command::Prune(config) => unless_stopped(prune::execute(config), shutdown).await,
    }
}

async fn unless_stopped(
    command: impl Future<Output = Result<(), Error>>,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    tokio::select! {
        done = command => done,
        () = shutdown.requested() => Err(Error::Interrupted),
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

//! The errors of starting and stopping a private server, each with its fix.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why no server is running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No server binaries were found in the searched folders.
    #[error(
        "no Postgres server binaries found; install them, for example with \
         `apt-get install postgresql` (Debian, Ubuntu) or `brew install postgresql@17` (macOS)"
    )]
    NotInstalled,

    /// The current user is root, and Postgres refuses to run as root.
    #[error(
        "running as root, and there is no user `postgres` or `nobody` to run the server as; \
         create one with `useradd --system postgres`"
    )]
    NoUnprivilegedUser,

    /// A program of the installation, or of the system, could not be run.
    #[error("run {}", program.display())]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },

    /// A program ran and reported failure.
    #[error("{} ended with {status}: {output}", program.display())]
    Failed {
        program: PathBuf,
        /// The exit status in words.
        status: String,
        /// The end of the program's output.
        output: String,
    },

    /// A file or directory of the server could not be created.
    #[error("prepare {}", path.display())]
    Storage {
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("no free port on 127.0.0.1 after {attempts} attempts")]
    NoFreePort {
        /// The number of ports that were tried.
        attempts: u32,
    },

    /// The server ended before it accepted a connection.
    #[error("the server ended while starting; its log ends with:\n{log}")]
    Ended {
        /// The last lines of the server's log.
        log: String,
    },

    /// The server accepted no connection in time.
    #[error("the server accepted no connection within {waited:?}; its log ends with:\n{log}")]
    NotReady { waited: Duration, log: String },

    /// A restart could not stop the running server first.
    #[error("stop the server before starting it again")]
    Stop(#[from] StopError),
}

/// The reason why a server is still running.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The supervisor could not be reached.
    #[error("tell the server to stop")]
    Tell(#[source] io::Error),

    /// The server did not end in time. A fast stop waits for every replication client.
    #[error(
        "the server was still running {waited:?} after it was told to stop; its log ends with:\n{log}"
    )]
    StillRunning { waited: Duration, log: String },
}

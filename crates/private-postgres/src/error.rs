//! Why a private server did not start or stop, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why no server is running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The machine has no server binaries where we look.
    #[error(
        "no Postgres server binaries found; install them, for example with \
         `apt-get install postgresql` (Debian, Ubuntu) or `brew install postgresql@17` (macOS)"
    )]
    NotInstalled,

    /// We are root, and Postgres refuses to run as root.
    #[error(
        "running as root, and there is no user `postgres` or `nobody` to run the server as; \
         create one with `useradd --system postgres`"
    )]
    NoUnprivilegedUser,

    /// A program of the installation, or of the system, could not be run.
    #[error("run {}", program.display())]
    Run {
        /// What was to be run.
        program: PathBuf,
        /// Why it was not.
        #[source]
        source: io::Error,
    },

    /// A program ran and reported failure.
    #[error("{} ended with {status}: {output}", program.display())]
    Failed {
        /// What was run.
        program: PathBuf,
        /// Its exit status in words.
        status: String,
        /// The end of what it printed.
        output: String,
    },

    /// A file or directory of the server could not be made.
    #[error("prepare {}", path.display())]
    Storage {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },

    /// No port could be bound.
    #[error("no free port on 127.0.0.1 after {attempts} attempts")]
    NoFreePort {
        /// How many ports were tried.
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
    NotReady {
        /// How long we waited.
        waited: Duration,
        /// The last lines of the server's log.
        log: String,
    },

    /// The running server had to be stopped first, and was not.
    #[error("stop the server before starting it again")]
    Stop(#[from] StopError),
}

/// Why a server is still running.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The supervisor could not be told.
    #[error("tell the server to stop")]
    Tell(#[source] io::Error),

    /// The server did not end in time: a fast stop waits for every replication client.
    #[error(
        "the server was still running {waited:?} after it was told to stop; its log ends with:\n{log}"
    )]
    StillRunning {
        /// How long we waited.
        waited: Duration,
        /// The last lines of the server's log.
        log: String,
    },
}

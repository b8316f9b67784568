//! The process between us and the server, which outlives us just long enough to clean up.
//!
//! ```text
//! owner ──pipe──▶ sh (supervisor) ──signals──▶ postgres
//! ```
//!
//! A line in the pipe is a signal for the server. The end of the pipe means that the owner is gone,
//! even by SIGKILL: then the server is stopped and its folder removed. The supervisor ends with the
//! server. It sits in a process group of its own, so that Ctrl-C and a test runner's kill of the
//! whole group reach the owner only.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use crate::account::Account;
use crate::readiness::poll_until;
use crate::storage::Storage;
use crate::{Installation, StartError, StopError};

/// `$1` is `postgres`, `$2` the server's folder. A command in the background would read /dev/null
/// instead of the pipe, hence descriptor 3. The reader leaves a mark when the owner is gone, because
/// only then is the folder the supervisor's to remove.
const SCRIPT: &str = r#"
exec 3<&0 0</dev/null
"$1" -D "$2/data" >>"$2/server.log" 2>&1 3<&- &
server=$!
(
    while read -r signal <&3; do kill -s "$signal" "$server"; done
    : >"$2/orphaned"
    kill -s QUIT "$server"
) &
reader=$!
wait "$server"
if [ -e "$2/orphaned" ]; then rm -rf "$2"; else kill "$reader"; fi
"#;

/// What the server can be told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Signal {
    /// Finish: roll back what is open, write a checkpoint, wait for replication clients.
    FastStop,
    /// End at once, without a checkpoint, as after a crash.
    ImmediateStop,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::FastStop => "INT",
            Self::ImmediateStop => "QUIT",
        }
    }
}

/// A running server, as seen by its owner.
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: Child,
    signals: Option<ChildStdin>,
}

impl Supervisor {
    /// Starts the server on the data in `storage`; it is not ready yet.
    pub(crate) fn start(
        installation: &Installation,
        account: &Account,
        storage: &Storage,
    ) -> Result<Self, StartError> {
        let shell = Path::new("/bin/sh");
        let mut process = account
            .command(shell)
            .args(["-c", SCRIPT, "walrelay-postgres-supervisor"])
            .arg(installation.bin_dir.join("postgres"))
            .arg(storage.base())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| StartError::Run { program: shell.to_path_buf(), source })?;
        let signals = process.stdin.take();
        Ok(Self { process, signals })
    }

    /// Passes a signal to the server, and does not wait for what it does.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<(), StopError> {
        let Some(pipe) = &mut self.signals else { return Ok(()) };
        match writeln!(pipe, "{}", signal.name()) {
            // The server has ended by itself, and the supervisor with it.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(StopError::Tell),
        }
    }

    /// Whether the server has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until the server has ended; false when it has not in time.
    pub(crate) fn wait_ended(&mut self, deadline: Duration) -> bool {
        poll_until(deadline, || self.has_ended())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The end of the pipe stops the server at once. The postmaster gives its children five
        // seconds before it kills them, so twice that is enough.
        drop(self.signals.take());
        if !self.wait_ended(Duration::from_secs(10)) {
            drop(self.process.kill());
            drop(self.process.wait());
        }
    }
}

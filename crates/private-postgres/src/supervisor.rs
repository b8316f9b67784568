//! The supervisor process between the owner and the server. It outlives the owner only to clean up.
//!
//! ```text
//! owner ──pipe──▶ sh (supervisor) ──signals──▶ postgres
//! ```
//! A line in the pipe is a signal for the server. The end of the pipe means that the owner is gone,
//! even by SIGKILL. The supervisor then stops the server and removes its folder. The supervisor
//! ends with the server. The supervisor has its own process group, so that only the owner receives
//! Ctrl-C or a test runner's kill of the whole group.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use crate::account::Account;
use crate::readiness::poll_until;
use crate::storage::Storage;
use crate::{Installation, StartError, StopError};

/// `$1` is `postgres`, `$2` is the server's folder. The shell connects a background command's
/// standard input to /dev/null, so descriptor 3 keeps the pipe.
///
/// The reader leaves a mark when the owner is gone. Only then may the supervisor remove the folder.
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

#[derive(Debug, Clone, Copy)]
pub(crate) enum Signal {
    /// Rolls back open transactions, writes a checkpoint and waits for replication clients.
    FastStop,
    /// Ends at once without a checkpoint, as after a crash.
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

/// The owner's handle of a running server.
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: Child,
    signals: Option<ChildStdin>,
}

impl Supervisor {
    /// Starts the server on the data in `storage`, and does not wait until it is ready.
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

    /// Passes a signal to the server, and does not wait for its effect.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<(), StopError> {
        let Some(pipe) = &mut self.signals else { return Ok(()) };
        match writeln!(pipe, "{}", signal.name()) {
            // The server has ended by itself, and the supervisor has ended with it.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(StopError::Tell),
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until the server has ended. Returns false at the deadline.
    pub(crate) fn wait_ended(&mut self, deadline: Duration) -> bool {
        poll_until(deadline, || self.has_ended())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Closing the pipe stops the server at once. The postmaster kills its children after five
        // seconds, so ten seconds are enough.
        drop(self.signals.take());
        if !self.wait_ended(Duration::from_secs(10)) {
            drop(self.process.kill());
            drop(self.process.wait());
        }
    }
}

//! The relay of the demo: `walrelay run` as a process of its own, so that it can be killed.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Starts the relay, and kills it with SIGKILL once standard input ends. So no relay outlives the demo,
/// however that ends.
const SUPERVISOR: &str = "\"$@\" </dev/null & read -r _; kill -9 $!";

/// The demo reports what it does to the relay, and its summary has the dead row.
const LOG_LEVEL: &str = "error,walrelay_relay::observe::dead_rows=off";

/// A relay, running or killed.
#[derive(Debug)]
pub(crate) struct RelayProcess {
    url: String,
    pubsub: String,
    project: &'static str,
    supervisor: Option<Child>,
}

impl RelayProcess {
    /// Describes the relay of this database and this Pub/Sub. It does not run yet.
    pub(crate) const fn new(url: String, pubsub: String, project: &'static str) -> Self {
        Self { url, pubsub, project, supervisor: None }
    }

    /// Starts the relay unless it runs.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        if self.supervisor.is_some() {
            return Ok(());
        }
        let supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, "walrelay-demo"])
            .arg(std::env::current_exe()?)
            .args(["run", "--database-url", &self.url, "--project", self.project])
            .args(["--log-format", "text", "--log-level", LOG_LEVEL])
            .env("PUBSUB_EMULATOR_HOST", &self.pubsub)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C at the terminal ends the demo, which ends the relay when all rows have arrived.
            .process_group(0)
            .spawn()?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    /// Kills the relay with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let Some(mut supervisor) = self.supervisor.take() else { return };
        drop(supervisor.stdin.take());
        // An error means that it has ended.
        drop(supervisor.wait());
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

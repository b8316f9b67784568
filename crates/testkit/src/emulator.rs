//! Google's own Pub/Sub emulator, where the Cloud SDK has it: the reference for our own.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::environment::{random_name, variable};
use crate::relay::free_port;
use crate::skip;

/// The address of an official emulator that `with-servers` started.
pub const ADDRESS_VARIABLE: &str = "WALRELAY_TEST_OFFICIAL_EMULATOR";

/// A cold Java virtual machine on a busy machine takes its time.
const START_DEADLINE: Duration = Duration::from_secs(90);

const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Printed by the emulator when it listens.
const READY: &str = "Server started, listening on";

/// Printed when the emulator ended by itself.
const ENDED: &str = "the emulator has ended";

/// Runs `$@` until our end of the pipe closes, even by SIGKILL. The emulator's start script forks
/// the Java process, so the whole process group is killed.
const SUPERVISOR: &str = r#"
exec 3<&0 0</dev/null
{ "$@"; echo "$ENDED"; } 3<&- >"$LOG" 2>&1 &
read -r _ <&3
rm -f "$LOG"
kill -s KILL 0
"#;

/// The address of an official emulator: the wrapper's, `PUBSUB_EMULATOR_HOST`, or `None` with the
/// test reported as skipped. Starting one takes seconds, so a test does not start its own.
#[must_use]
pub fn official_or_skip() -> Option<String> {
    variable(ADDRESS_VARIABLE)
        .or_else(|| variable("PUBSUB_EMULATOR_HOST"))
        .or_else(|| skip("no official Pub/Sub emulator; run the tests through `make test`"))
}

/// The official emulator's folder: that of the `gcloud` on `PATH`, whose link leads into the SDK.
#[must_use]
pub fn installation() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find_map(|dir| {
        let gcloud = fs::canonicalize(dir.join("gcloud")).ok()?;
        // …/google-cloud-sdk/bin/gcloud, or …/google-cloud-sdk/gcloud.
        gcloud
            .ancestors()
            .skip(1)
            .take(2)
            .map(|sdk| sdk.join("platform/pubsub-emulator"))
            .find(|emulator| start_script(emulator).exists())
    })
}

fn start_script(emulator: &Path) -> PathBuf {
    emulator.join("bin/cloud-pubsub-emulator")
}

/// A running official emulator; all its processes end when this is dropped.
#[derive(Debug)]
pub struct OfficialEmulator {
    supervisor: Child,
    pipe: Option<ChildStdin>,
    address: String,
}

impl OfficialEmulator {
    /// Starts it on a random port and waits until it answers; `Err` says what is missing.
    ///
    /// # Errors
    ///
    /// A sentence for the person who runs the tests.
    pub fn start() -> Result<Self, String> {
        let installation = installation()
            .ok_or("not installed: `gcloud components install pubsub-emulator` (needs Java)")?;
        let port = free_port();
        let name = random_name("walrelay-pubsub-emulator");
        let log = env::temp_dir().join(format!("{name}.log"));
        let mut supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, "walrelay-emulator-supervisor"])
            .arg(start_script(&installation))
            .args(["--host=127.0.0.1", &format!("--port={port}")])
            .env("LOG", &log)
            .env("ENDED", ENDED)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("start the supervisor of the emulator: {error}"))?;
        let pipe = supervisor.stdin.take();
        let emulator = Self { supervisor, pipe, address: format!("127.0.0.1:{port}") };
        emulator.wait_ready(&log)?;
        Ok(emulator)
    }

    /// For `PUBSUB_EMULATOR_HOST`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// It says when it listens; its port opens a little earlier than it answers.
    fn wait_ready(&self, log: &Path) -> Result<(), String> {
        let mut text = String::new();
        poll(START_DEADLINE, || {
            text = fs::read_to_string(log).unwrap_or_default();
            text.contains(READY) || text.contains(ENDED)
        });
        if text.contains(READY) { Ok(()) } else { Err(format!("it did not start:\n{text}")) }
    }
}

impl Drop for OfficialEmulator {
    fn drop(&mut self) {
        drop(self.pipe.take());
        drop(self.supervisor.wait());
        // The supervisor kills its whole group at once, and Java takes a moment longer to die.
        let is_gone = || TcpStream::connect(&self.address).is_err();
        if !poll(STOP_DEADLINE, is_gone) {
            eprintln!("the official emulator on {} was killed and still answers", self.address);
        }
    }
}

/// Looks until the answer is yes; false when it was not before the deadline.
#[expect(clippy::disallowed_methods, reason = "synchronous: there is no runtime to block")]
fn poll(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_official_emulator_answers_and_is_gone_when_dropped() {
        let Some(_) = installation().or_else(|| skip("no official Pub/Sub emulator found")) else {
            return;
        };
        let emulator = OfficialEmulator::start().unwrap();
        let address = emulator.address().to_owned();
        TcpStream::connect(&address).unwrap();

        drop(emulator);

        assert!(TcpStream::connect(&address).is_err());
    }
}

//! Google's Pub/Sub emulator from the Cloud SDK, as the reference for the embedded emulator.

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

/// The time limit for the start, because a cold Java virtual machine is slow on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(90);

const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// The line that the emulator prints when it listens.
const READY: &str = "Server started, listening on";

/// The line that the supervisor prints when the emulator ended by itself.
const ENDED: &str = "the emulator has ended";

/// Runs `$@` until the owner's end of the pipe closes, even by SIGKILL. The emulator's start script
/// forks the Java process, so the whole process group is killed.
const SUPERVISOR: &str = r#"
exec 3<&0 0</dev/null
{ "$@"; echo "$ENDED"; } 3<&- >"$LOG" 2>&1 &
read -r _ <&3
rm -f "$LOG"
kill -s KILL 0
"#;

/// Returns the address of an official emulator, from `with-servers` or `PUBSUB_EMULATOR_HOST`.
/// Otherwise reports the test as skipped and returns `None`. A start takes seconds, so no test
/// starts its own emulator.
#[must_use]
pub fn official_or_skip() -> Option<String> {
    variable(ADDRESS_VARIABLE)
        .or_else(|| variable("PUBSUB_EMULATOR_HOST"))
        .or_else(|| skip("no official Pub/Sub emulator; run the tests through `make test`"))
}

/// Returns the official emulator's folder, found through the `gcloud` link on `PATH`. None without Java,
/// which the emulator needs.
#[must_use]
pub fn installation() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let has_java = variable("JAVA_HOME").is_some()
        || env::split_paths(&path).any(|folder| folder.join("java").is_file());
    if !has_java {
        return None;
    }
    env::split_paths(&path).find_map(|dir| {
        let gcloud = fs::canonicalize(dir.join("gcloud")).ok()?;
        // The link's target is …/google-cloud-sdk/bin/gcloud or …/google-cloud-sdk/gcloud.
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

/// A running official emulator. Dropping the value ends all its processes.
#[derive(Debug)]
pub struct OfficialEmulator {
    supervisor: Child,
    pipe: Option<ChildStdin>,
    address: String,
}

impl OfficialEmulator {
    /// Starts the emulator on a random port and waits until it replies.
    ///
    /// # Errors
    ///
    /// A sentence that names the missing part, for the person who runs the tests.
    pub fn start() -> Result<Self, String> {
        let installation = installation()
            .ok_or("not installed, or without Java: `gcloud components install pubsub-emulator`")?;
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

    /// Returns the address for `PUBSUB_EMULATOR_HOST`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the ready line. The port opens slightly before the emulator replies.
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
        // The supervisor kills its group at once, but Java takes a moment to end.
        let is_gone = || TcpStream::connect(&self.address).is_err();
        if !poll(STOP_DEADLINE, is_gone) {
            eprintln!("the official emulator on {} was killed and still answers", self.address);
        }
    }
}

/// Polls until `condition` is true. Returns false when it is still false at the deadline.
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
        let none = "no official Pub/Sub emulator with Java found";
        let Some(_) = installation().or_else(|| skip(none)) else {
            return;
        };
        let emulator = OfficialEmulator::start().unwrap();
        let address = emulator.address().to_owned();
        TcpStream::connect(&address).unwrap();

        drop(emulator);

        assert!(TcpStream::connect(&address).is_err());
    }
}

//! Child processes of tests and benchmarks: a clean environment, signals, peak memory and exit.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The polling interval for the end of a process. It is short because a benchmark measures the end.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Requests a graceful stop.
    Terminate,
    /// Interrupts, as Ctrl-C does.
    Interrupt,
    /// Ends the process at once, without any cleanup.
    Kill,
    /// Freezes the process, which looks like a lost host from outside.
    Stop,
    /// Resumes a frozen process.
    Continue,
    /// Reports a closed terminal.
    HangUp,
    /// User-defined signal 1.
    User1,
    /// User-defined signal 2.
    User2,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Terminate => "TERM",
            Self::Interrupt => "INT",
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
            Self::HangUp => "HUP",
            Self::User1 => "USR1",
            Self::User2 => "USR2",
        }
    }
}

/// Returns a command without the environment variables that configure a relay, a Postgres client or
/// a Pub/Sub client. Variables set on the command afterwards stay.
pub fn clean_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let inherited = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in inherited.filter(|name| configures(name)) {
        command.env_remove(name);
    }
    command
}

fn configures(name: &str) -> bool {
    let others = ["DATABASE_URL", "GOOGLE_CLOUD_PROJECT", "PORT", "RUST_LOG"];
    ["WALRELAY_", "PUBSUB_", "PG", "OTEL_"].iter().any(|prefix| name.starts_with(prefix))
        || others.contains(&name)
}

/// Sends a signal. A signal to a process that has ended is lost.
///
/// # Errors
///
/// The program `kill` does not exist.
pub fn send(process: &Child, signal: Signal) -> io::Result<()> {
    let id = process.id().to_string();
    let sent = Command::new("kill").args(["-s", signal.name(), &id]).stderr(Stdio::null()).status();
    sent.map(drop)
}

/// Waits until a process has ended by itself. Returns `None` when it has not ended within `limit`.
pub async fn ended(process: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        let status = process.try_wait()?;
        if status.is_some() || begin.elapsed() > limit {
            return Ok(status);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Kills a process, even a frozen one, and waits until it is gone.
pub fn kill(process: &mut Child) {
    // `kill` fails only for a process that has already ended.
    drop(process.kill());
    drop(process.wait());
}

/// Returns the peak memory of a process in bytes. `None` when the process has ended or /proc is
/// missing.
#[must_use]
pub fn peak_memory_bytes(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn variables_that_configure_a_relay_are_not_inherited() {
        for name in ["WALRELAY_SLOT", "PGPASSWORD", "PORT", "PUBSUB_EMULATOR_HOST", "RUST_LOG"] {
            assert!(configures(name), "{name}");
        }
        assert!(!configures("PATH"));
    }

    #[tokio::test]
    async fn a_process_that_does_not_stop_is_waited_for_no_longer_than_that() {
        let mut process =
            clean_command("sh").args(["-c", "exec sleep 1000"]).spawn().expect("a shell");
        if peak_memory_bytes(process.id()).is_some() {
            // Before `exec`, a new process uses hardly any memory.
            let grown = async || peak_memory_bytes(process.id()).filter(|bytes| *bytes > 100_000);
            crate::wait_until(LIMIT, "memory in bytes", grown).await;
        }
        assert_eq!(ended(&mut process, Duration::ZERO).await.expect("its state"), None);

        send(&process, Signal::Terminate).expect("kill");

        let status = ended(&mut process, LIMIT).await.expect("its state").expect("its end");
        assert_eq!(status.code(), None, "a signal ended it");
        kill(&mut process);
        assert_eq!(peak_memory_bytes(process.id()), None);
    }
}

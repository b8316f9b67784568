//! Runs the measured processes. Reads CPU time and memory from /proc and keeps the log output for
//! error messages.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;
use walrelay_testkit::process::{Signal, ended, kill, peak_memory_bytes, send};

use crate::failure::Failure;

/// /proc/PID/stat counts 100 ticks per second on every Linux.
const TICK: Duration = Duration::from_millis(10);

const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The time in which a stopping relay must finish its outstanding work.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// The resources that a process has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Usage {
    /// CPU time in user mode.
    pub user_seconds: f64,
    /// CPU time in the kernel.
    pub system_seconds: f64,
    /// Peak resident memory.
    pub peak_bytes: u64,
}

impl Usage {
    /// Returns the usage since `before`. The peak memory covers the process's whole life.
    pub fn since(self, before: Self) -> Self {
        Self {
            user_seconds: self.user_seconds - before.user_seconds,
            system_seconds: self.system_seconds - before.system_seconds,
            peak_bytes: self.peak_bytes,
        }
    }

    /// CPU time in user mode and in the kernel.
    pub fn cpu_seconds(self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    /// Combines two processes: the sum of their CPU time and the higher peak memory.
    pub fn with(self, other: Self) -> Self {
        Self {
            user_seconds: self.user_seconds + other.user_seconds,
            system_seconds: self.system_seconds + other.system_seconds,
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
        }
    }
}

/// One process's rate and usage for a number of rows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measured {
    pub seconds: f64,
    pub rows_per_second: f64,
    pub usage: Usage,
}

impl Measured {
    pub fn new(rows: u32, elapsed: Duration, usage: Usage) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self { seconds, rows_per_second: f64::from(rows) / seconds, usage }
    }
}

/// The destination of a process's standard output.
#[derive(Debug, Clone, Copy)]
pub enum Output {
    /// The suite reads standard output.
    Lines,
    /// Standard output goes to the same file as standard error.
    Log,
}

/// A child process whose standard error goes to a file. Dropping it kills the child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
    started: Instant,
    peak_bytes: u64,
}

impl Process {
    /// Starts a `command` that `clean_command` created.
    pub fn start(name: &str, mut command: Command, output: Output) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = format!("walrelay-bench-{}-{number}.log", std::process::id());
        let log = std::env::temp_dir().join(file);
        let errors = File::create(&log)?;
        let stdout = match output {
            Output::Lines => Stdio::piped(),
            Output::Log => errors.try_clone()?.into(),
        };
        command.stdin(Stdio::piped()).stdout(stdout).stderr(errors);
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("start {name}: {error}"))?;
        let stdin = child.stdin.take();
        Ok(Self { name: name.to_owned(), child, stdin, log, started, peak_bytes: 0 })
    }

    /// Returns the start time.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the next printed line. Blocks until the process prints one.
    pub fn read_line(&mut self) -> Result<String, Failure> {
        let stdout = self.child.stdout.take().ok_or("standard output is read already")?;
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        // The pipe is put back: with a closed pipe, the next line would end the process.
        self.child.stdout = Some(reader.into_inner());
        match read {
            Ok(count) if count > 0 => Ok(line.trim().to_owned()),
            Ok(_) | Err(_) => Err(self.failed("ended without an answer")),
        }
    }

    /// Returns the usage so far. For a process that has ended but was not waited for, the peak
    /// memory is the last known value.
    pub fn usage(&mut self) -> Result<Usage, Failure> {
        let (_, user, system) = self.stat()?;
        if let Some(bytes) = peak_memory_bytes(self.child.id()) {
            self.peak_bytes = self.peak_bytes.max(bytes);
        }
        Ok(Usage {
            user_seconds: user.as_secs_f64(),
            system_seconds: system.as_secs_f64(),
            peak_bytes: self.peak_bytes,
        })
    }

    /// Returns an error when the process has ended.
    pub fn check_alive(&self) -> Result<(), Failure> {
        if self.stat()?.0 == 'Z' { Err(self.failed("ended too early")) } else { Ok(()) }
    }

    /// Waits for a successful end. Returns the elapsed time and the usage.
    pub async fn finish(mut self, limit: Duration) -> Result<(Duration, Usage), Failure> {
        loop {
            let usage = self.usage()?;
            let elapsed = self.started.elapsed();
            if self.stat()?.0 == 'Z' {
                let status = self.child.wait()?;
                return status
                    .success()
                    .then_some((elapsed, usage))
                    .ok_or_else(|| self.failed("failed"));
            }
            if elapsed > limit {
                return Err(self.failed("did not end in time"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn terminate(mut self) -> Result<(), Failure> {
        send(&self.child, Signal::Terminate)?;
        drop(self.stdin.take());
        match ended(&mut self.child, STOP_LIMIT).await? {
            Some(_) => Ok(()),
            None => Err(self.failed("did not stop")),
        }
    }

    fn failed(&self, what: &str) -> Failure {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        format!("{} {what}; it printed:\n{tail}", self.name).into()
    }

    /// Returns the state, user time and system time.
    fn stat(&self) -> Result<(char, Duration, Duration), Failure> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        parse_stat(&text).ok_or_else(|| format!("/proc of {} is not understood", self.name).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(&mut self.child);
        drop(fs::remove_file(&self.log));
    }
}

fn parse_stat(text: &str) -> Option<(char, Duration, Duration)> {
    // The program name is in parentheses and may contain any character.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let mut ticks = fields.skip(10).map(|field| field.parse::<u32>().ok());
    let (user, system) = (ticks.next()??, ticks.next()??);
    Some((state, TICK * user, TICK * system))
}

/// Finds the program `name` in `dirs` or on `PATH`.
pub fn program(name: &str, dirs: &[&Path]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = dirs.iter().map(|dir| dir.to_path_buf()).chain(std::env::split_paths(&path));
    found.map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_for_any_program_name() {
        let text = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 230 15 0 0 20 0 1 0 9 1 1";
        let expected = ('S', Duration::from_millis(2_300), Duration::from_millis(150));
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("7 (a"), None);
    }
}

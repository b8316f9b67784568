//! Runs the real `walrelay` binary as a process: start, output, signals and kill.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::environment::variable;

use crate::process::Signal;
use crate::{http_get, process, skip, wait_until};

/// The variable with the path of the binary. Without it, the binary next to the test executable is
/// used.
pub const BINARY_VARIABLE: &str = "WALRELAY_BIN";

/// The number of output lines to keep, so that a soak run does not fill the memory.
const LINES_MAX: usize = 40_000;

/// Returns the path of the binary, or `None` when the binary has not been built.
#[must_use]
pub fn binary() -> Option<PathBuf> {
    if let Some(path) = variable(BINARY_VARIABLE) {
        return Some(PathBuf::from(path));
    }
    // target/debug/deps/test-1234 is one folder below target/debug/walrelay.
    let test = env::current_exe().ok()?;
    test.ancestors().skip(1).take(2).map(|dir| dir.join("walrelay")).find(|path| path.exists())
}

#[derive(Debug)]
pub struct RelayCommand {
    command: Command,
    http_address: Option<String>,
}

impl RelayCommand {
    /// Creates a command with these arguments, without any environment variable that configures the
    /// relay. Reports the test as skipped when the binary has not been built.
    pub fn new<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Option<Self> {
        let Some(binary) = binary() else {
            return skip("the walrelay binary is not built: `cargo build -p walrelay`");
        };
        let mut command = process::clean_command(binary);
        // Tests read the fields of messages, also those of commands that write text by default.
        command.args(arguments).env("WALRELAY_LOG_FORMAT", "json");
        // No test waits for the leases of a killed consumer, unless it says so.
        command.env("WALRELAY_QUIET_FOR", "300ms");
        Some(Self { command, http_address: None })
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.command.arg(argument);
        self
    }

    /// Serves HTTP on a random port. See [`Relay::http_address`].
    #[must_use]
    pub fn with_http(self) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let mut this = self.arg("--http").arg(&address);
        this.http_address = Some(address);
        this
    }

    /// Runs the command on a terminal, by util-linux's `script`. The end of the process that is
    /// started then closes the terminal. The program survives that for ten minutes at most.
    #[must_use]
    pub fn on_terminal(self) -> Self {
        let words = self.command.get_args().map(|word| word.to_string_lossy());
        let program = self.command.get_program().to_string_lossy();
        let line = ["exec timeout --foreground 600".into(), program]
            .into_iter()
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ");
        let mut command = process::clean_command("script");
        command.args(["-qec", &line, "/dev/null"]);
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self { command, ..self }
    }

    #[must_use]
    pub fn start(self) -> Relay {
        let mut relay = self.start_unread();
        relay.read();
        relay
    }

    /// Starts the command with pipes that nobody reads before [`Relay::read`].
    #[must_use]
    pub fn start_unread(mut self) -> Relay {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("start {:?}: {error}", self.command.get_program()));
        let (lines, http_address) = (Arc::default(), self.http_address);
        Relay { process, lines, collectors: Vec::new(), http_address }
    }

    /// Starts the relay, waits until it has ended by itself, and returns its exit code and output.
    pub async fn finish(self, deadline: Duration) -> Finished {
        self.start().finish(deadline).await
    }
}

/// The exit code and the output of a process that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The exit code. `None` when a signal ended the process.
    pub code: Option<i32>,
    /// The combined output on stdout and stderr.
    pub text: String,
}

/// A started relay. Dropping the value kills the process, and prints its output if the test fails.
#[derive(Debug)]
pub struct Relay {
    process: Child,
    lines: Arc<Mutex<VecDeque<String>>>,
    collectors: Vec<JoinHandle<()>>,
    http_address: Option<String>,
}

impl Relay {
    /// Reads the output from now on.
    pub fn read(&mut self) {
        let collect_into = || Arc::clone(&self.lines);
        let stdout = self.process.stdout.take().map(|stdout| collect(stdout, collect_into()));
        let stderr = self.process.stderr.take().map(|stderr| collect(stderr, collect_into()));
        self.collectors = stdout.into_iter().chain(stderr).collect();
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the HTTP address. Panics without [`RelayCommand::with_http`].
    #[must_use]
    pub fn http_address(&self) -> &str {
        self.http_address.as_deref().expect("started with_http")
    }

    /// Returns the lines printed so far to stdout and stderr.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }

    /// Waits for a printed line that contains `text`, and returns the line.
    pub async fn wait_for_line(&self, deadline: Duration, text: &str) -> String {
        let what = format!("a line with {text:?}");
        wait_until(deadline, &what, async || {
            // Checked before the search, so that the search includes the last line before the end.
            let is_silent = self.collectors.iter().all(JoinHandle::is_finished);
            let found = self.lines().into_iter().find(|line| line.contains(text));
            assert!(found.is_some() || !is_silent, "the relay ended without {what}");
            found
        })
        .await
    }

    /// Waits until `path` responds with `code`, and returns the body.
    pub async fn wait_for_http(&self, deadline: Duration, path: &str, code: u16) -> String {
        wait_until(deadline, &format!("{path} to answer {code}"), async || {
            let (actual, body) = http_get(self.http_address(), path).await.ok()?;
            (actual == code).then_some(body)
        })
        .await
    }

    /// Waits until the metrics meet a condition. Rows change before the process counts them.
    pub async fn wait_for_metrics(&self, deadline: Duration, condition: impl Fn(&str) -> bool) {
        wait_until(deadline, "the metrics", async || {
            let (code, body) = http_get(self.http_address(), "/metrics").await.ok()?;
            (code == 200 && condition(&body)).then_some(())
        })
        .await;
    }

    pub fn signal(&self, signal: Signal) {
        process::send(&self.process, signal).expect("run kill");
    }

    /// Returns whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("the relay's state can be read").is_some()
    }

    /// Waits until the process has ended by itself. All its output is available afterwards.
    pub async fn wait_ended(&mut self, deadline: Duration) -> ExitStatus {
        let ended = process::ended(&mut self.process, deadline).await;
        let status = ended.expect("the relay's state can be read");
        let status =
            status.unwrap_or_else(|| panic!("waited {deadline:?} in vain for the relay to end"));
        for collector in self.collectors.drain(..) {
            // A collector panics only if the lock is poisoned, and then some text is missing.
            drop(collector.join());
        }
        status
    }

    /// Waits until the process has ended by itself, and returns its exit code and output.
    pub async fn finish(mut self, deadline: Duration) -> Finished {
        let code = self.wait_ended(deadline).await.code();
        Finished { code, text: self.lines().join("\n") }
    }

    /// Sends SIGTERM and returns the exit code.
    pub async fn terminate(&mut self, deadline: Duration) -> Option<i32> {
        self.signal(Signal::Terminate);
        self.wait_ended(deadline).await.code()
    }

    pub fn kill(&mut self) {
        process::kill(&mut self.process);
    }

    #[must_use]
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        process::peak_memory_bytes(self.pid())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the relay printed:\n{}", self.lines().join("\n"));
        }
    }
}

/// Collects the lines of a pipe on a thread. The thread ends when the process closes the pipe.
fn collect(
    output: impl Read + Send + 'static,
    lines: Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut kept = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == LINES_MAX {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    })
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Relay {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        RelayCommand { command, http_address: None }.start()
    }

    #[tokio::test]
    async fn output_exit_code_and_memory_of_a_process_are_seen() {
        let script = "trap 'exit 3' TERM; echo out; echo err >&2; while :; do sleep 0.05; done";
        let mut process = shell(script);
        assert_eq!(process.wait_for_line(LIMIT, "out").await, "out");
        assert_eq!(process.wait_for_line(LIMIT, "err").await, "err");
        assert!(process.peak_memory_bytes().is_none_or(|bytes| bytes > 100_000));
        assert_eq!(process.terminate(LIMIT).await, Some(3));
    }

    #[tokio::test]
    async fn a_frozen_process_is_killed_on_drop() {
        let process = shell("echo up; exec sleep 1000");
        process.wait_for_line(LIMIT, "up").await;
        let pid = process.pid();
        process.signal(Signal::Stop);

        drop(process);

        assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
    }
}

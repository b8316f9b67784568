//! Describes the machine and the versions that the numbers were measured on.

use std::fmt;
use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::database::Server;

/// The machine and the versions.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) postgres: String,
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn here(server: &Server) -> Self {
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_gib().unwrap_or(0),
            kernel: output("uname", &["-sr"]).unwrap_or_else(unknown),
            postgres: server.version().to_owned(),
            commit: output("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown),
            date: output("date", &["-u", "+%Y-%m-%d %H:%M"]).unwrap_or_else(unknown),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_gib, kernel, postgres, commit, date } = self;
        write!(
            f,
            "{date} UTC, {processor}, {cores} cores, {memory_gib} GiB, {kernel}, PostgreSQL {postgres}, commit {commit}"
        )
    }
}

/// Returns the load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_gib() -> Option<u64> {
    let kibibytes: u64 = field("/proc/meminfo", "MemTotal")?.split(' ').next()?.parse().ok()?;
    Some(kibibytes / (1024 * 1024))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

//! Describes the machine and the versions that the numbers were measured on.

use std::fmt;
use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::database::Server;

/// The machine and the versions.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    pub postgres: String,
    pub commit: String,
    pub date: String,
}

impl Machine {
    pub fn here(server: &Server) -> Self {
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
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// The processor time used since the machine started, in clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorTicks {
    busy: u64,
    idle: u64,
    /// Used by this process and by the processes that it has started and waited for.
    own: u64,
}

impl ProcessorTicks {
    pub fn now() -> Option<Self> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        Self::parse(&machine, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(machine: &str, process: &str) -> Option<Self> {
        let numbers = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let all: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        let [user, nice, system, idle, waiting, ..] = all[..] else { return None };
        // After the program's name in parentheses: utime, stime, cutime and cstime.
        let fields = process.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
        let own = fields.map_while(|field| field.parse::<u64>().ok()).sum();
        Some(Self { busy: user + nice + system, idle: idle + waiting, own })
    }

    /// Returns the share of the machine that other programs used since `earlier`, from 0 to 1.
    pub fn foreign_share(self, earlier: Self) -> f64 {
        let busy = self.busy.saturating_sub(earlier.busy);
        let all = busy + self.idle.saturating_sub(earlier.idle);
        let foreign = busy.saturating_sub(self.own.saturating_sub(earlier.own));
        let number = |ticks: u64| f64::from(u32::try_from(ticks).unwrap_or(u32::MAX));
        number(foreign) / number(all).max(1.0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_other_programs_excludes_own_and_ended_child_processes() {
        let own = |ticks| format!("7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 {ticks} 10 20 30 20 0 1");
        let earlier = ProcessorTicks::parse("cpu  100 0 100 800 0 5\ncpu0 1", &own(40)).unwrap();
        let later = ProcessorTicks::parse("cpu  200 50 150 1000 0 5\n", &own(140)).unwrap();
        assert_eq!(later.own - earlier.own, 100);
        assert_eq!(later.foreign_share(earlier), 0.25);
        assert_eq!(ProcessorTicks::parse("cpu", &own(1)), None);
    }
}

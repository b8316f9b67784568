//! Runs a command with the servers that the tests share, and stops the servers afterwards.
//!
//! ```text
//! with-servers cargo nextest run
//! with-servers --versions
//! ```
//!
//! Starts servers of the default version of Postgres, as many as tests run at a time, and one of each
//! other installed version. Starts the official Pub/Sub emulator if it is installed. Environment
//! variables pass the addresses to the command. The exit code is the command's.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::emulator::{self, OfficialEmulator};
use walrelay_testkit::{postgres, random_name, skip, variable};

/// The major versions that the tests need.
const MAJORS_WANTED: [u32; 3] = [15, 17, 18];

/// The variable with the number of tests that cargo-nextest runs at a time.
const TEST_THREADS_VARIABLE: &str = "NEXTEST_TEST_THREADS";

/// The number of servers of the default version without that variable.
const SERVERS_DEFAULT: usize = 2;

/// Settings of servers that the tests share. Autovacuum would visit each database all the time.
/// There is little WAL, because the data may be in memory.
const SETTINGS: [(&str, &str); 3] =
    [("autovacuum_naptime", "1d"), ("max_wal_size", "128MB"), ("min_wal_size", "64MB")];

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: with-servers COMMAND [ARGUMENT…]");
        return ExitCode::from(2);
    };
    if program == "--versions" {
        let shown = writeln!(io::stdout(), "{}", versions());
        return if shown.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let skips = env::temp_dir().join(random_name("walrelay-test-skips"));
    let mut command = Command::new(&program);
    command.args(words).env(skip::SKIPS_FILE_VARIABLE, &skips);

    // Java takes seconds to start, so the databases start at the same time.
    let official = thread::spawn(OfficialEmulator::start);
    let databases = start_databases();
    for (name, value) in variables(&databases) {
        command.env(name, value);
    }
    let official = official.join().unwrap_or_else(|_| Err("its start panicked".into()));
    match &official {
        Ok(official) => {
            eprintln!("with-servers: official Pub/Sub emulator on {}", official.address());
            command.env(emulator::ADDRESS_VARIABLE, official.address());
        }
        Err(reason) => eprintln!("with-servers: no official Pub/Sub emulator: {reason}"),
    }

    let status = command.status();
    report_skips(&skips);
    match status {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("with-servers: run {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}

fn start_databases() -> Vec<PrivatePostgres> {
    let installations = postgres::installations();
    for major in MAJORS_WANTED {
        if !installations.iter().any(|found| found.major == major) {
            eprintln!("with-servers: no Postgres {major}; see scripts/install-servers.sh");
        }
    }
    let default = postgres::default_installation().map(|installation| installation.major);
    let mut servers = Vec::new();
    for installation in &installations {
        let count = if Some(installation.major) == default { servers_wanted() } else { 1 };
        eprintln!("with-servers: Postgres {}, servers: {count}", installation.version);
        for _ in 0..count {
            match PrivatePostgres::start(installation, &SETTINGS) {
                Ok(server) => servers.push(server),
                Err(error) => {
                    let version = &installation.version;
                    eprintln!("with-servers: Postgres {version} does not start: {error}");
                    break;
                }
            }
        }
    }
    servers
}

fn versions() -> String {
    let majors = postgres::installations().into_iter().map(|found| found.major.to_string());
    majors.collect::<Vec<_>>().join(" ")
}

fn servers_wanted() -> usize {
    let threads = variable(TEST_THREADS_VARIABLE).and_then(|number| number.parse().ok());
    threads.unwrap_or(SERVERS_DEFAULT)
}

/// Returns the addresses of the servers of the default version, and one of each version.
fn variables(servers: &[PrivatePostgres]) -> Vec<(String, String)> {
    let default = postgres::default_installation().map(|installation| installation.major);
    let pool: Vec<String> = servers
        .iter()
        .filter(|server| Some(server.installation().major) == default)
        .map(|server| server.url("postgres"))
        .collect();
    let by_major = servers.iter().map(|server| {
        let name = format!("{}_{}", postgres::URL_VARIABLE, server.installation().major);
        (name, server.url("postgres"))
    });
    by_major.chain([(postgres::URL_VARIABLE.to_owned(), pool.join(" "))]).collect()
}

fn report_skips(path: &PathBuf) {
    let Ok(list) = fs::read_to_string(path) else { return };
    eprintln!("with-servers: {} tests skipped for want of a server:", list.lines().count());
    for line in list.lines() {
        eprintln!("  {line}");
    }
    drop(fs::remove_file(path));
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let signalled = || status.signal().map_or(1, |signal| 128 + signal);
    let code = status.code().unwrap_or_else(signalled);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

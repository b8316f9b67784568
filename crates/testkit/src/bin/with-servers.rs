//! Runs a command with the servers that the tests share, and stops the servers afterwards.
//!
//! ```text
//! with-servers cargo nextest run
//! ```
//!
//! Starts every installed major version of Postgres, and the official Pub/Sub emulator if it is
//! installed. Environment variables pass the addresses to the command. The exit code is the
//! command's.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::emulator::{self, OfficialEmulator};
use walrelay_testkit::{postgres, random_name, skip};

/// The major versions that the tests need.
const MAJORS_WANTED: [u32; 3] = [15, 17, 18];

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: with-servers COMMAND [ARGUMENT…]");
        return ExitCode::from(2);
    };
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
    let start = |installation| match PrivatePostgres::start(installation, &[]) {
        Ok(server) => {
            eprintln!(
                "with-servers: Postgres {} on {}",
                server.installation().version,
                server.url("postgres")
            );
            Some(server)
        }
        Err(error) => {
            eprintln!("with-servers: Postgres {} does not start: {error}", installation.version);
            None
        }
    };
    installations.iter().filter_map(start).collect()
}

fn variables(databases: &[PrivatePostgres]) -> Vec<(String, String)> {
    let by_major = databases.iter().map(|server| {
        let name = format!("{}_{}", postgres::URL_VARIABLE, server.installation().major);
        (name, server.url("postgres"))
    });
    // The list is sorted by version, so the first server is the oldest.
    let default = databases.first();
    let default = default.map(|server| (postgres::URL_VARIABLE.to_owned(), server.url("postgres")));
    by_major.chain(default).collect()
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

//! Reports tests that cannot run on this machine as skipped.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

use crate::environment::variable;

/// The variable with the path of the file in which `with-servers` collects skipped tests.
pub const SKIPS_FILE_VARIABLE: &str = "WALRELAY_TEST_SKIPS";

/// Reports the running test as skipped, with the reason. Returns `None`, so that a helper can
/// return it directly.
///
/// The line goes to the test's output and, under `with-servers`, to the list at the end of the run.
pub fn skip<T>(reason: &str) -> Option<T> {
    // The test runners name a test's thread after the test.
    let test = thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped: {test}: {reason}");
    if let Some(path) = variable(SKIPS_FILE_VARIABLE) {
        let line = format!("{test}: {reason}\n");
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the list of skipped tests can be written");
    }
    None
}

/// Reports a test that takes more than a minute as skipped, unless `WALRELAY_LONG=1` asks for it.
pub fn long_run_or_skip() -> Option<()> {
    let is_wanted = variable("WALRELAY_LONG").as_deref() == Some("1");
    if is_wanted { Some(()) } else { skip("takes more than a minute; set WALRELAY_LONG=1") }
}

//! Prints to the terminal: results to standard output, everything else to standard error.
#![expect(clippy::print_stdout, reason = "the printed tables are the result")]

use std::error::Error;

/// Prints a line or a table.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Reports the workload in progress on standard error.
pub(crate) fn progress(name: &str) {
    eprintln!("bench: {name}");
}

/// Prints an error with all its causes.
pub(crate) fn complain(error: &dyn Error) {
    eprintln!("bench: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
}

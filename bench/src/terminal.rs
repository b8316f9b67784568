//! Prints to the terminal: results to standard output, everything else to standard error.
#![expect(clippy::print_stdout, reason = "the printed tables are the result")]

use std::error::Error;

use walrelay_errors::Chain;

/// Prints a line or a table.
pub fn say(text: &str) {
    println!("{text}");
}

/// Reports the workload in progress on standard error.
pub fn progress(name: &str) {
    eprintln!("bench: {name}");
}

/// Prints an error with all its causes.
pub fn complain(error: &(dyn Error + 'static)) {
    eprintln!("bench: {}", Chain(error));
}

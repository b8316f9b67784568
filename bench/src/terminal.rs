//! What is printed: results to standard output, everything else beside it.
#![expect(clippy::print_stdout, reason = "the printed tables are the result")]

use std::error::Error;

/// Prints a line, or a table.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Says what is being measured, beside the result.
pub(crate) fn progress(name: &str) {
    eprintln!("bench: {name}");
}

/// Prints an error with everything behind it.
pub(crate) fn complain(error: &dyn Error) {
    eprintln!("bench: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
}

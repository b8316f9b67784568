//! `walrelay version`: prints the version.

use serde::Serialize;
use walrelay_command_line::config::OutputFormat;

use crate::error::Error;
use crate::json_output::print_result;

/// The output of `version -o json`.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
}

const VERSION: Version = Version { version: env!("CARGO_PKG_VERSION") };

/// Prints the version.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn execute(format: OutputFormat) -> Result<(), Error> {
    print_result(format, &VERSION, || format!("walrelay {}\n", VERSION.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_documented() {
        crate::json_output::assert_documented("version", &VERSION);
    }
}

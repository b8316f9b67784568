//! `walrelay version`: prints the version.

use crate::config::OutputFormat;
use crate::error::Error;
use serde::Serialize;

use crate::output::print_result;

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
pub(crate) fn execute(format: OutputFormat) -> Result<(), Error> {
    print_result(format, &VERSION, || format!("walrelay {}\n", VERSION.version))
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        assert_documented("version", &VERSION);
    }
}

//! `walrelay version`: prints the version.

use clap::Args;
use serde::Serialize;

use crate::config::Checks;
use crate::options::OutputOptions;
use crate::output::print_result;
use crate::plan::Plan;

/// Print the version.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay version -o json")]
pub(crate) struct Version {
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Debug, Serialize)]
struct VersionJson {
    version: &'static str,
}

const VERSION: VersionJson = VersionJson { version: env!("CARGO_PKG_VERSION") };

impl Version {
    pub(crate) fn plan(self, _: &mut Checks<'_>) -> Option<Plan> {
        let format = self.output.output;
        let text = || format!("walrelay {}\n", VERSION.version);
        Some(Plan::new(async move |_| print_result(format, &VERSION, text)))
    }
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

//! `walrelay config check`: checks the options of a command.

use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use crate::config::{CONFIG, Checks};
use crate::options::{ARGUMENTS, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Check the options of a command without connecting to anything.
///
/// Exits with 2 if the command would refuse an option or the configuration file.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay config check --config walrelay.toml\n  \
        walrelay config check -- status --watch=10s"
)]
pub(crate) struct Check {
    /// The command, with its options after `--`.
    #[arg(value_name = "COMMAND", default_value = "run")]
    command: Vec<String>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Check {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let file = checks.file.iter().map(|path| format!("--{CONFIG}={path}"));
        let arguments = ["walrelay".to_owned()].into_iter().chain(file);
        let arguments = arguments.chain(self.command.iter().cloned()).map(OsString::from);
        let checked = (checks.program.check)(arguments.collect(), checks.environment);
        checked.map_err(|refusal| checks.refuse(refusal)).ok()?;
        let (command, format) = (self.command.join(" "), self.output.output);
        Some(Plan::new(async move |_| {
            let text = format!("the configuration of `walrelay {command}` is valid\n");
            print_result(format, &CheckedConfigJson { command: &command, is_valid: true }, || text)
        }))
    }
}

#[derive(Debug, Serialize)]
struct CheckedConfigJson<'a> {
    command: &'a str,
    is_valid: bool,
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let checked = CheckedConfigJson { command: "run", is_valid: true };
        assert_documented("config check", &checked);
    }
}

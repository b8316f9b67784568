//! `walrelay config schema`: prints the JSON schema of the configuration file.

use clap::Args;

use crate::config::Checks;
use crate::output::print;
use crate::plan::Plan;
use crate::reference::schema;

/// Print the JSON schema of the configuration file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay config schema > walrelay.schema.json")]
pub(crate) struct Schema {}

impl Schema {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let text = schema(&(checks.program.command)());
        Some(Plan::new(async move |_| print(&text)))
    }
}

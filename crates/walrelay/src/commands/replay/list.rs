//! `walrelay replay list`.

use clap::Args;
use walrelay_outbox_replay::replay::read_replays;

use super::record::{in_session, slots_of};
use super::report;
use super::report::ReplayJson;
use crate::config::Checks;
use crate::options::{DatabaseOptions, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// List the replays of the slot, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay replay list --output json")]
pub(crate) struct List {
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl List {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&database, shutdown, async |client| {
                let jobs = read_replays(client, &slots_of(&database.outbox)).await?;
                let json: Vec<_> = jobs.iter().map(ReplayJson::of).collect();
                print_result(self.output.output, &json, || report::table(&jobs))
            })
            .await
        }))
    }
}

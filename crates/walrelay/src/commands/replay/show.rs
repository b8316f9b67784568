//! `walrelay replay show`.

use clap::Args;
use walrelay_outbox_replay::replay::{ReplayError, read_replay};

use super::record::{in_session, slots_of};
use super::report;
use super::report::ReplayJson;
use crate::config::Checks;
use crate::options::values::replay_id;
use crate::options::{ARGUMENTS, DatabaseOptions, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Show one replay: its request, its progress and its end.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay replay show 5f3a9c01"
)]
pub(crate) struct Show {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    id: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Show {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&database, shutdown, async |client| {
                let slots = slots_of(&database.outbox);
                let job = read_replay(client, &self.id).await?;
                let job = job.filter(|job| slots.contains(&job.slot));
                let (id, slot) = (self.id, database.outbox.slot.clone());
                let job = job.ok_or(ReplayError::Missing { id, slot })?;
                print_result(self.output.output, &ReplayJson::of(&job), || report::page(&job))
            })
            .await
        }))
    }
}

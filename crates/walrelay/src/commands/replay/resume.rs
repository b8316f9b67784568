//! `walrelay replay resume`.

use clap::Args;
use walrelay_outbox_admin::protocols::refuse_other_shards;
use walrelay_outbox_replay::replay::{
    DeadRows, Destination, ReplayEnv, ReplayError, ReplayJob, ReplayStep, RestInPlace,
};
use walrelay_pg_client::SqlClient;

use super::report::ReplayResult;
use super::work::{described, in_session, refuse_missing_topic, run_job};
use crate::commands::shared::operator::Terminal;
use crate::config::{ChangeMode, Checks};
use crate::error::Error;
use crate::options::values::replay_id;
use crate::options::{ARGUMENTS, ChangeArgs, PublishingOptions};
use crate::plan::Plan;

/// Resume an interrupted replay where it stopped.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay replay resume 5f3a9c01"
)]
pub(crate) struct Resume {
    /// Id of the replay.
    #[arg(value_name = "ID", value_parser = replay_id)]
    id: String,
    /// From now on leave out rows that Pub/Sub would never accept, and name them.
    #[arg(long)]
    skip_dead: bool,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    publishing: PublishingOptions,
}

impl Resume {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let settings = checks.publishing(&self.publishing)?;
        let options = self.change.options();
        Some(Plan::new(async move |shutdown| {
            let terminal = Terminal::new(options, shutdown);
            in_session(&settings, terminal, async |client, env| {
                let mut job = ReplayJob::load(client, env.settings, &self.id).await?;
                let dead_rows = self.skip_dead.then_some(DeadRows::LeaveOut);
                job.request.dead_rows = dead_rows.unwrap_or(job.request.dead_rows);
                resume(client, env, job, terminal).await
            })
            .await
        }))
    }
}

/// Returns `None` after a dry run.
async fn resume(
    client: &mut SqlClient,
    env: ReplayEnv<'_>,
    job: ReplayJob,
    terminal: Terminal<'_>,
) -> Result<Option<ReplayResult>, Error> {
    if job.reads_one_slot() {
        refuse_other_shards(client, &env.settings.relay.outbox).await?;
    }
    let (id, mode) = (&job.id, terminal.options.mode);
    let what = match &job.request.destination {
        Destination::Topic { .. } => {
            if mode != ChangeMode::DryRun {
                refuse_missing_topic(client, env.settings, &job.request.destination).await?;
            }
            let (what, _) = described(client, env, &job, mode).await?;
            format!("resume replay {id}: {what}")
        }
        Destination::InPlace => {
            let RestInPlace { keys, rows } = job.count_in_place(client, env.settings).await?;
            format!(
                "resume replay {id} in place: {keys} key(s) are paused, {rows} row(s) in dispatch state are to be published"
            )
        }
    };
    if !terminal.ask(what).await? {
        return Ok(None);
    }
    job.record_dead_rows(client).await?;
    env.steps.report(&ReplayStep::Resumes(&job)).map_err(ReplayError::Operator)?;
    run_job(client, env, job).await
}

//! The work of `replay start` and `replay resume`.

use std::io::{self, IsTerminal as _};

use walrelay_outbox_admin::protocols::routes;
use walrelay_outbox_replay::replay::{
    Destination, ReplayCounts, ReplayEnv, ReplayError, ReplayJob, ReplaySource, WalRows,
};
use walrelay_pg_client::{SqlClient, connect_outbox};
use walrelay_relay::settings::Settings;

use super::progress::StepPrinter;
use super::report;
use super::report::{ReplayResult, ReplayResultJson};
use crate::commands::shared::operator::Terminal;
use crate::config::ChangeMode;
use crate::error::Error;
use crate::error::printed_commands::as_given;

/// Runs `work` beside the running relay, and prints its result.
///
/// # Errors
///
/// The anchor, table or replay does not exist, a row cannot be published, or the replay was
/// interrupted. After an interruption the error names the command that resumes the replay.
pub(super) async fn in_session(
    settings: &Settings,
    terminal: Terminal<'_>,
    work: impl AsyncFnOnce(&mut SqlClient, ReplayEnv<'_>) -> Result<Option<ReplayResult>, Error>,
) -> Result<(), Error> {
    let mut client = connect_outbox(&settings.connect).await?;
    let steps = StepPrinter::default();
    let env = ReplayEnv { settings, steps: &steps, shutdown: terminal.shutdown };
    let done = Box::pin(work(&mut client, env)).await;
    // The session must stay open until here: its lock keeps other processes from running the same
    // replay.
    client.close().await;
    terminal.print_result(done?.as_ref(), report::result_text, ReplayResultJson::new)
}

/// Describes the rows that the replay publishes. Their number is not known where nobody asks for it
/// and counting means to read the WAL. A replay in place needs the keys of its rows in any case.
pub(super) async fn described(
    client: &SqlClient,
    env: ReplayEnv<'_>,
    job: &ReplayJob,
    mode: ChangeMode,
) -> Result<(String, Option<ReplayCounts>), Error> {
    let is_counted = match (&job.request.destination, mode) {
        (Destination::InPlace, _) | (_, ChangeMode::DryRun) => true,
        (Destination::Topic { .. }, ChangeMode::Agreed) => false,
        (Destination::Topic { .. }, ChangeMode::Ask) => io::stdin().is_terminal(),
    };
    let counts = match is_counted {
        true => Some(Box::pin(job.count(client, env)).await?),
        false => None,
    };
    let rows =
        counts.as_ref().map_or_else(|| "rows".to_owned(), |it| format!("{} row(s)", it.rows));
    let left_out = match counts.as_ref().map_or(0, |it| it.left_out) {
        0 => String::new(),
        left_out => format!(", and leave out {left_out} that Pub/Sub would never accept"),
    };
    let range = match &job.request.source {
        ReplaySource::Wal(WalRows { from, to, .. }) => format!(" of {from} to {to}"),
        ReplaySource::Table(_) => String::new(),
    };
    let what = match &job.request.destination {
        Destination::Topic { template, .. } => {
            format!("publish {rows}{range} to {template}{left_out}")
        }
        Destination::InPlace => {
            let keys = counts.as_ref().map_or(0, |counts| counts.keys.len());
            format!("publish {rows} of {keys} key(s) again{left_out}")
        }
    };
    Ok((what, counts))
}

pub(super) async fn refuse_missing_topic(
    client: &SqlClient,
    settings: &Settings,
    destination: &Destination,
) -> Result<(), Error> {
    match destination {
        Destination::Topic { template, .. } => {
            Ok(routes::refuse_missing(client, settings, template).await?)
        }
        Destination::InPlace => Ok(()),
    }
}

pub(super) async fn run_job(
    client: &mut SqlClient,
    env: ReplayEnv<'_>,
    job: ReplayJob,
) -> Result<Option<ReplayResult>, Error> {
    match Box::pin(job.run(client, env)).await {
        Ok(done) => Ok(Some(ReplayResult::Done { job, done })),
        Err(error) => {
            if !matches!(error, ReplayError::Stopped { .. } | ReplayError::BehindDeadRow { .. }) {
                let command = as_given(&format!("walrelay replay resume {}", job.id));
                tracing::warn!("to resume it: {command}");
            }
            Err(error.into())
        }
    }
}

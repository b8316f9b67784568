//! `walrelay replay`: publishes rows again, from the WAL or the outbox table, beside the running
//! relay.

mod progress;

use std::io::{self, IsTerminal as _};

use crate::config::{
    ChangeMode, ReplayAction, ReplayConfig, ReplayRecordAction, ReplayRecordConfig,
};
use crate::error::Error;
use crate::replay::{self as report, ReplayCancelJson, ReplayJson, ReplayResult, ReplayResultJson};
use walrelay_outbox_admin::protocols::{
    position_of_time, refuse_other_shards, refuse_unfinished, routes,
};
use walrelay_outbox_replay::replay::{
    CancellableReplay, DeadRows, Destination, OrderedSource, ReplayCounts, ReplayEnv, ReplayError,
    ReplayJob, ReplayOrder, ReplaySource, ReplayStep, RestInPlace, WalRows, read_replay,
    read_replays,
};
use walrelay_pg_client::{SqlClient, connect_outbox};
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;

use self::progress::StepPrinter;
use super::shared::cancellable::run_until_shutdown;
use super::shared::operator::Terminal;
use crate::output::print_result;

/// Starts or resumes a replay, and runs it to its end or until it is interrupted.
///
/// # Errors
///
/// The anchor, table or replay does not exist, a row cannot be published, or the replay was
/// interrupted. After an interruption the error names the command that resumes the replay.
pub(crate) async fn execute(config: ReplayConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ReplayConfig { settings, action, options } = config;
    let terminal = Terminal::new(options, shutdown);
    let mut client = connect_outbox(&settings.connect).await?;
    let steps = StepPrinter::default();
    let env = ReplayEnv { settings: &settings, steps: &steps, shutdown };
    let done = async {
        match action {
            ReplayAction::Start(order) => start(&mut client, env, order, terminal).await,
            ReplayAction::Resume { id, dead_rows } => {
                let mut job = ReplayJob::load(&client, &settings, &id).await?;
                if dead_rows == Some(DeadRows::LeaveOut) {
                    job.request.dead_rows = DeadRows::LeaveOut;
                }
                resume(&mut client, env, job, terminal).await
            }
        }
    };
    let done = Box::pin(done).await;
    // The session must stay open until here: its lock keeps other processes from running the same
    // replay.
    client.close().await;
    terminal.print_result(done?.as_ref(), report::result_text, ReplayResultJson::new)
}

/// Returns `None` after a dry run.
async fn start(
    client: &mut SqlClient,
    env: ReplayEnv<'_>,
    mut order: ReplayOrder,
    terminal: Terminal<'_>,
) -> Result<Option<ReplayResult>, Error> {
    let outbox = &env.settings.relay.outbox;
    let to_topic_from_table = matches!(order.source, OrderedSource::Table(_))
        && matches!(order.destination, Destination::Topic { .. });
    if !to_topic_from_table {
        refuse_other_shards(client, outbox).await?;
    }
    if let OrderedSource::Wal(wal) = &mut order.source
        && let (None, Some(time)) = (wal.from, wal.since)
    {
        wal.from = Some(position_of_time(client, &outbox.slot, time).await?);
    }
    let mode = terminal.options.mode;
    let mut job = ReplayJob::plan(client, env.settings, order).await?;
    if mode != ChangeMode::DryRun {
        refuse_missing_topic(client, env.settings, &job.request.destination).await?;
    }
    let (what, counts) = described(client, env, &job, mode).await?;
    if !terminal.ask(what).await? {
        return Ok(None);
    }
    let keys = counts.as_ref().map_or(&[][..], |counts| &counts.keys);
    if job.request.destination == Destination::InPlace {
        if keys.is_empty() {
            let left_out = counts.as_ref().map_or(0, |counts| counts.left_out);
            return Ok(Some(ReplayResult::Nothing { job, left_out }));
        }
        refuse_unfinished(client, &job.slot).await?;
        job.refuse_without_slot(client).await?;
    }
    job.begin(client, env.settings, keys, env.steps).await?;
    run(client, env, job).await
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
    run(client, env, job).await
}

/// Describes the rows that the replay publishes. Their number is not known where nobody asks for it
/// and counting means to read the WAL. A replay in place needs the keys of its rows in any case.
async fn described(
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

async fn refuse_missing_topic(
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

async fn run(
    client: &mut SqlClient,
    env: ReplayEnv<'_>,
    job: ReplayJob,
) -> Result<Option<ReplayResult>, Error> {
    match Box::pin(job.run(client, env)).await {
        Ok(done) => Ok(Some(ReplayResult::Done { job, done })),
        Err(error) => {
            if !matches!(error, ReplayError::Stopped { .. } | ReplayError::BehindDeadRow { .. }) {
                tracing::warn!("to resume it: walrelay replay resume {}", job.id);
            }
            Err(error.into())
        }
    }
}

/// Prints replays, or cancels one.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, there is no such replay, or the user did not agree.
pub(crate) async fn execute_on_record(
    config: ReplayRecordConfig,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let mut client = connect_outbox(&config.database.connect).await?;
    let work = act_on_record(&mut client, &config, shutdown);
    let done = run_until_shutdown(work, shutdown).await;
    client.close().await;
    done
}

async fn act_on_record(
    client: &mut SqlClient,
    config: &ReplayRecordConfig,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let outbox = &config.database.outbox;
    let slots = [outbox.base_slot().to_owned(), outbox.slot.clone()];
    match &config.action {
        ReplayRecordAction::List(format) => {
            let jobs = read_replays(client, &slots).await?;
            let json: Vec<_> = jobs.iter().map(ReplayJson::of).collect();
            print_result(*format, &json, || report::table(&jobs))
        }
        ReplayRecordAction::Show { id, format } => {
            let job = read_replay(client, id).await?.filter(|job| slots.contains(&job.slot));
            let (id, slot) = (id.clone(), outbox.slot.clone());
            let job = job.ok_or(ReplayError::Missing { id, slot })?;
            print_result(*format, &ReplayJson::of(&job), || report::page(&job))
        }
        ReplayRecordAction::Cancel { id, options } => {
            let terminal = Terminal::new(*options, shutdown);
            let replay = CancellableReplay::find(client, outbox, id).await?;
            let rows = replay.rows(client).await?;
            if !terminal.ask(format!("cancel replay {id}: {}", report::to_cancel(&rows))).await? {
                return Ok(());
            }
            let cancelled = replay.cancel(client).await?;
            let text = |it: &_| format!("replay {id} is cancelled: {}\n", report::cancelled(it));
            terminal.print_result(Some(&cancelled), text, |it| ReplayCancelJson::new(id, it))
        }
    }
}

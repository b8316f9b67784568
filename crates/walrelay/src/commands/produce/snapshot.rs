//! `walrelay snapshot`: writes one event for each existing row of a business table.
//!
//! The SQL function `app_outbox_snapshot` does each step in one transaction, and records its
//! progress there. So an interrupted command continues when it is run again.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::types::Type;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{
    ConnectConfig, SCHEMA, SqlClient, backend_pid, connect_outbox, quote_identifier, sql,
};
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::cancellable::run_cancellable_in;
use super::super::shared::operator::Terminal;
use super::progress::SnapshotProgress;
use super::step::{SnapshotRequest, SnapshotStart, Step, refused, step};
use crate::config::{ChangeMode, Checks, OutputFormat};
use crate::error::Error;
use crate::options::{ARGUMENTS, ChangeArgs, ConnectionOptions};
use crate::output::json::json_text;
use crate::output::{print, print_result};
use crate::plan::Plan;

/// Rows of one transaction. In a test with writers, 50 rows delayed the slowest hundredth of their
/// transactions by 0.6 ms, and 5,000 rows by 250 ms.
const BATCH_ROWS: i32 = 100;

/// Batches per second under `--rate`, so that the rate is even.
const BATCHES_PER_SECOND: u32 = 10;

/// Write one event for each existing row of a business table.
///
/// Calls the function app_outbox_snapshot until it has read the table, in the order of the id column, while the
/// application keeps writing. Rows whose aggregate has events already are skipped. If the command is interrupted,
/// run it again: it continues.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
        walrelay snapshot customers --aggregate-type customer --aggregate-id id --dry-run\n  \
        walrelay snapshot customers --aggregate-type customer --aggregate-id id --columns name --rate 2000 --yes"
)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    request: SnapshotRequest,
    /// Begin again with the first row, even if this snapshot is finished or was interrupted.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Snapshot {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| Box::pin(self.run(&connect, shutdown)).await))
    }

    /// Writes the events.
    ///
    /// # Errors
    ///
    /// The table cannot be read as a snapshot, Postgres refuses, or a signal came. The next run
    /// continues after the last committed batch.
    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        let client = connect_outbox(connect).await?;
        let pid = backend_pid(&client).await?;
        let work = snapshot(&client, self, shutdown);
        let done = run_cancellable_in(connect, pid, work, shutdown).await;
        client.close().await;
        match done {
            Err(Error::Interrupted) => Err(Error::stopped(
                format!("the snapshot of {} was interrupted", self.request.table),
                "run the same command again, without --restart: it continues",
            )),
            done => done,
        }
    }
}

async fn snapshot(
    client: &SqlClient,
    command: &Snapshot,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let (request, options) = (&command.request, command.change.options());
    let survey = survey(client, request).await?;
    let rows = count(client, request, &survey).await?;
    let what = rows.describe(request);
    let counted = SnapshotJson {
        rows: rows.all,
        would_write_at_most: rows.to_write,
        events: None,
        written: 0,
        skipped: None,
    };
    if options.mode == ChangeMode::DryRun && options.format == OutputFormat::Json {
        return print(&json_text(&counted)?);
    }
    if !Terminal::new(options, shutdown).ask(what).await? {
        return Ok(());
    }
    let Step { events, written, skipped, .. } = write(client, command, rows.all).await?;
    let (all, skips) = (Some(events), Some(skipped));
    let result = SnapshotJson { events: all, written, skipped: skips, ..counted };
    print_result(options.format, &result, || {
        format!(
            "finished: {written} event(s) written by this run, {events} in all, {skipped} row(s) skipped\n"
        )
    })
}

#[derive(Debug, Serialize)]
struct SnapshotJson {
    rows: u64,
    would_write_at_most: u64,
    /// Events of all runs. None after a dry run.
    events: Option<u64>,
    written: u64,
    /// None after a dry run.
    skipped: Option<u64>,
}

/// The facts about the table before the first step.
struct Survey {
    /// Name of the table, quoted for SQL.
    source: String,
    /// Whether the role may read the versions of all aggregates.
    shows_versions: bool,
}

async fn survey(client: &SqlClient, request: &SnapshotRequest) -> Result<Survey, Error> {
    let row = client
        .query_typed_one(sql!("snapshot.sql", "survey"), &[(&request.table, Type::TEXT)])
        .await
        .map_err(AdminError::sql(format!("look for table {}", request.table)))?;
    if !row.get::<_, bool>("has_function") {
        return Err(Error::unfit(
            format!("the database has no function {SCHEMA}.app_outbox_snapshot"),
            "run `walrelay init`; it creates the function beside the outbox if the outbox has the \
                   columns that `walrelay init` would give it",
        ));
    }
    let Some(source) = row.get("source") else {
        return Err(Error::unfit(
            format!("table {:?} does not exist", request.table),
            "name the table with its schema, and quote it as in SQL if it has capitals",
        ));
    };
    Ok(Survey { source, shows_versions: row.get("shows_versions") })
}

struct RowCount {
    all: u64,
    /// Rows for which an event would be written, at most.
    to_write: u64,
}

impl RowCount {
    fn describe(&self, request: &SnapshotRequest) -> String {
        let Self { all, to_write } = self;
        format!(
            "write at most {to_write} event(s) for the {all} row(s) of {}; {} row(s) have events already",
            request.table,
            all - to_write
        )
    }
}

async fn count(
    client: &SqlClient,
    request: &SnapshotRequest,
    survey: &Survey,
) -> Result<RowCount, Error> {
    let (source, condition) = (&survey.source, &request.condition);
    let skips = !request.include_versioned && survey.shows_versions;
    let row = if skips {
        let id = quote_identifier(&request.aggregate_id);
        // spliced: the table, its id column and the condition.
        let sql = format!(
            "SELECT count(*) AS rows, count(*) FILTER (WHERE coalesce(a.version, 0) = 0) AS to_write
               FROM (SELECT to_jsonb({id}) #>> '{{}}' AS aggregateid FROM {source} WHERE ({condition}\n)) AS t
               LEFT JOIN {SCHEMA}.app_outbox_aggregate AS a
                 ON a.aggregatetype = $1 AND a.aggregateid = t.aggregateid"
        );
        client.query_typed_one(&sql, &[(&request.aggregate_type, Type::TEXT)]).await
    } else {
        // spliced: the table and the condition.
        let sql = format!(
            "SELECT count(*) AS rows, count(*) AS to_write FROM {source} WHERE ({condition}\n)"
        );
        client.query_typed_one(&sql, &[]).await
    };
    let row = row.map_err(|error| refused(error, request, "count the rows"))?;
    let number = |column| row.get::<_, i64>(column).unsigned_abs();
    Ok(RowCount { all: number("rows"), to_write: number("to_write") })
}

/// Writes the events. Returns the last step, with the events that all steps of this run have
/// written.
async fn write(client: &SqlClient, command: &Snapshot, rows: u64) -> Result<Step, Error> {
    let batch_rows = batch_rows(command.request.rate);
    let mut start = match command.restart {
        true => SnapshotStart::FirstRow,
        false => SnapshotStart::Resumed,
    };
    let mut progress: Option<SnapshotProgress> = None;
    let (mut turn, mut written) = (Instant::now(), 0);
    loop {
        let before = progress.as_ref().map_or(0, SnapshotProgress::events);
        let step = step(client, &command.request, batch_rows, start).await?;
        start = SnapshotStart::Resumed;
        written += step.written;
        let shown = progress.get_or_insert_with(|| SnapshotProgress::new(rows, &step));
        shown.update(&step);
        if step.is_done {
            return Ok(Step { written, ..step });
        }
        if let Some(rate) = command.request.rate {
            let paced =
                step.events.saturating_sub(before).min(u64::from(batch_rows.unsigned_abs()));
            turn += Duration::from_secs_f64(paced as f64 / f64::from(rate));
            sleep_until(turn).await;
            // A slow step is not caught up with.
            turn = turn.max(Instant::now());
        }
    }
}

/// Returns the rows of one transaction, so that several transactions share a second.
fn batch_rows(rate: Option<u32>) -> i32 {
    let most = rate.and_then(|rate| i32::try_from(rate / BATCHES_PER_SECOND).ok());
    most.unwrap_or(BATCH_ROWS).clamp(1, BATCH_ROWS)
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_of_a_run_and_of_its_dry_run_is_documented() {
        let result = SnapshotJson {
            rows: 3,
            would_write_at_most: 2,
            events: Some(2),
            written: 2,
            skipped: Some(1),
        };
        assert_documented("snapshot", &result);
    }
}

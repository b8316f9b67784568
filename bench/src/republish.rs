//! Measures how fast rows are published again: by a replay from an anchor, by a backfill from
//! the table, and by a slot reset. Each result is shown next to the live drain of the
//! same rows in the same run.

use std::time::Duration;

use serde::Serialize;
use walrelay_testkit::process::clean_command;

use crate::database::{Database, Rows, Server};
use crate::drain::{start_relay, wait_stored};
use crate::failure::Failure;
use crate::process::{Measured, Output, Process};
use crate::sink::{AGAIN, Sink, SinkOptions};

pub(crate) const REPLAY: &str = "again-replay";
pub(crate) const BACKFILL: &str = "again-backfill";
pub(crate) const RESET: &str = "again-reset";

/// The anchor's name. The anchor is created at the slot's position before the first row.
const ANCHOR: &str = "before";

/// The time limit for one measurement, far above any expected duration.
const LIMIT: Duration = Duration::from_mins(5);

/// The result of publishing the rows again in one way.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Again {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    /// The live drain of the same rows from the slot. A reset makes the same relay drain the rows
    /// again.
    pub(crate) live: Measured,
    /// The time from the start of the command to the last message stored. The measured process is
    /// the publishing process: the command itself or, for a reset, the relay. After a reset, the
    /// relay's peak memory covers its whole life.
    pub(crate) again: Measured,
    pub(crate) duplicates: u64,
}

pub(crate) async fn run(
    server: &Server,
    rows: Rows,
    arguments: &[String],
) -> Result<Vec<Again>, Failure> {
    let mut database = server.create("again").await?;
    database.load(rows).await?;
    let slot = database.copy_slot().await?;
    let mut sink = Sink::start(SinkOptions::default()).await?;
    let rows = rows.count;
    let anchored = command(server, &database, &slot, &sink, &["anchor", "create", ANCHOR])?;
    anchored.finish(LIMIT).await?;

    let mut relay = start_relay(server.relay(), &database, &slot, &sink, arguments)?;
    wait_stored(&mut sink, std::slice::from_ref(&relay), rows).await?;
    let drained = relay.started().elapsed();
    let before = relay.usage()?;
    let live = Measured::new(rows, drained, before);

    let mut all = Vec::new();
    let mut stored = sink.counts().await?.messages_stored;
    let to_another_topic: [(_, &[&str]); 2] = [
        (REPLAY, &["replay", "start", "--yes", "--from-anchor", ANCHOR, "--to-topic", AGAIN]),
        (BACKFILL, &["replay", "start", "--yes", "--source", "table", "--to-topic", AGAIN]),
    ];
    for (name, words) in to_another_topic {
        let (elapsed, usage) =
            command(server, &database, &slot, &sink, words)?.finish(LIMIT).await?;
        let again = Measured::new(rows, elapsed, usage);
        let duplicates = beyond(rows, &mut stored, &mut sink).await?;
        all.push(Again { name, rows, live, again, duplicates });
    }

    let used = relay.usage()?;
    let words = ["slot", "reset", "--yes", "--to-anchor", ANCHOR];
    let reset = command(server, &database, &slot, &sink, &words)?;
    let begun = reset.started();
    let goal = u32::try_from(stored)? + rows;
    wait_stored(&mut sink, std::slice::from_ref(&relay), goal).await?;
    let again = Measured::new(rows, begun.elapsed(), relay.usage()?.since(used));
    reset.finish(LIMIT).await?;
    relay.terminate().await?;
    let duplicates = beyond(rows, &mut stored, &mut sink).await?;
    all.push(Again { name: RESET, rows, live, again, duplicates });
    server.remove(database).await?;
    Ok(all)
}

/// Returns how many messages beyond `rows` were stored since the previous call.
async fn beyond(rows: u32, stored: &mut u64, sink: &mut Sink) -> Result<u64, Failure> {
    let now = sink.counts().await?.messages_stored;
    let since = now - std::mem::replace(stored, now);
    since.checked_sub(u64::from(rows)).ok_or_else(|| format!("only {since} of {rows} came").into())
}

/// Starts a `walrelay` command for this slot.
fn command(
    server: &Server,
    database: &Database,
    slot: &str,
    sink: &Sink,
    words: &[&str],
) -> Result<Process, Failure> {
    let mut command = clean_command(server.relay());
    command.args(words).args(["--database-url", database.url(), "--slot", slot]);
    // An environment variable, because some commands have no `--project` option.
    command.env("PUBSUB_PROJECT_ID", "bench").envs(sink.environment());
    Process::start(&format!("walrelay {}", words[0]), command, Output::Log)
}

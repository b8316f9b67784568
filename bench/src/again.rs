//! The same rows again: replayed from an anchor and from the table to another topic, and by a reset of the
//! slot, beside what their live drain took in the same run.

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

/// The anchor stands where the slot stood before the first row.
const ANCHOR: &str = "before";

/// Nothing here takes as long.
const LIMIT: Duration = Duration::from_mins(5);

/// One way of publishing the rows again.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Again {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    /// Their drain from the slot, by the relay that a reset makes do it again.
    pub(crate) live: Measured,
    /// From the start of the command to the last message stored. The process is the one that publishes:
    /// the command, or for a reset the relay, whose peak is that of its whole life.
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
    let anchored = command(server, &database, (&slot, &sink), &["anchor", "create", ANCHOR])?;
    anchored.finish(LIMIT).await?;

    let mut relay = start_relay(server.relay(), &database, (&slot, &sink), arguments)?;
    wait_stored(&mut sink, std::slice::from_ref(&relay), rows).await?;
    let drained = relay.started().elapsed();
    let before = relay.usage()?;
    let live = Measured::new(rows, drained, before);

    let mut all = Vec::new();
    let mut stored = sink.counts().await?.messages_stored;
    let to_another_topic: [(_, &[&str]); 2] = [
        (REPLAY, &["replay", "--from-anchor", ANCHOR, "--to-topic", AGAIN]),
        (BACKFILL, &["backfill", "--to-topic", AGAIN]),
    ];
    for (name, words) in to_another_topic {
        let (elapsed, usage) =
            command(server, &database, (&slot, &sink), words)?.finish(LIMIT).await?;
        let again = Measured::new(rows, elapsed, usage);
        let duplicates = beyond(rows, &mut stored, &mut sink).await?;
        all.push(Again { name, rows, live, again, duplicates });
    }

    let used = relay.usage()?;
    let words = ["slot", "reset", "--to-anchor", ANCHOR];
    let reset = command(server, &database, (&slot, &sink), &words)?;
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

/// Messages stored since the last look beyond these rows.
async fn beyond(rows: u32, stored: &mut u64, sink: &mut Sink) -> Result<u64, Failure> {
    let now = sink.counts().await?.messages_stored;
    let since = now - std::mem::replace(stored, now);
    since.checked_sub(u64::from(rows)).ok_or_else(|| format!("only {since} of {rows} came").into())
}

/// A command of the relay's binary about this slot.
fn command(
    server: &Server,
    database: &Database,
    (slot, sink): (&str, &Sink),
    words: &[&str],
) -> Result<Process, Failure> {
    let mut command = clean_command(server.relay());
    command.args(words).args(["--database-url", database.url(), "--slot", slot]);
    // Not every command has an option for it.
    command.env("PUBSUB_PROJECT_ID", "bench").envs(sink.environment());
    Process::start(&format!("walrelay {}", words[0]), command, Output::Log)
}

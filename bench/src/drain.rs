//! Measures how fast a backlog is drained: by the relay, and by `pg_recvlogical` on another copy of
//! the same slot.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;
use walrelay_testkit::process::clean_command;

use crate::database::{Database, Rows, Server};
use crate::failure::Failure;
use crate::process::{self, Measured, Output, Process, Usage};
use crate::sink::{Counts, Sink, SinkOptions};

/// The interval at which the sink is asked for its counts.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A backlog and the way it is drained.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drain {
    pub(crate) name: &'static str,
    pub(crate) rows: Rows,
    pub(crate) sink: SinkOptions,
    pub(crate) rounds: u32,
}

/// One run of the relay, with the sink's counts.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct RelayRound {
    pub(crate) measured: Measured,
    pub(crate) sink: Usage,
    pub(crate) requests_per_row: f64,
    pub(crate) duplicates: u64,
}

impl RelayRound {
    /// Returns the CPU time of the relay.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.measured.usage.cpu_seconds()
    }
}

/// The relay and its baseline, run one after the other so that outside load is likely to affect
/// both.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Round {
    pub(crate) relay: RelayRound,
    /// `None` when there is no `pg_recvlogical`.
    pub(crate) recvlogical: Option<Measured>,
}

/// A workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DrainResult {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    pub(crate) rounds: Vec<Round>,
}

/// Loads the backlog once and drains it once per round.
pub(crate) async fn run(
    server: &Server,
    drain: Drain,
    relay_arguments: &[String],
) -> Result<DrainResult, Failure> {
    let mut database = server.create(&drain.name.replace('-', "_")).await?;
    database.load(drain.rows).await?;
    let rows = drain.rows.count;
    let mut rounds = Vec::new();
    for _ in 0..drain.rounds {
        let recvlogical = recvlogical(server, &mut database, rows).await?;
        let relay = relay(server, &mut database, drain, relay_arguments).await?;
        rounds.push(Round { relay, recvlogical });
    }
    server.remove(database).await?;
    Ok(DrainResult { name: drain.name, rows, rounds })
}

/// Starts a relay on `slot` that publishes to `sink`.
pub(crate) fn start_relay(
    relay: &Path,
    database: &Database,
    slot: &str,
    sink: &Sink,
    arguments: &[String],
) -> Result<Process, Failure> {
    start_relay_in(RelayStart { relay, database, slot, sink, arguments, variables: &[] })
}

/// A relay to start.
#[derive(Clone, Copy)]
pub(crate) struct RelayStart<'a> {
    pub(crate) relay: &'a Path,
    pub(crate) database: &'a Database,
    pub(crate) slot: &'a str,
    pub(crate) sink: &'a Sink,
    pub(crate) arguments: &'a [String],
    pub(crate) variables: &'a [(&'a str, String)],
}

/// As [`start_relay`], with environment variables in addition to the arguments.
pub(crate) fn start_relay_in(start: RelayStart<'_>) -> Result<Process, Failure> {
    let RelayStart { relay, database, slot, sink, arguments, variables } = start;
    let mut command = clean_command(relay);
    command.args(["run", "--project", "bench", "--log-format", "text"]);
    command.args(["--database-url", database.url(), "--slot", slot]);
    // Each round has its own slot, but all rounds share the publication that `init` created.
    command.args(arguments).envs(sink.environment()).envs(variables.iter().cloned());
    Process::start("walrelay run", command, Output::Log)
}

/// Drains the backlog once.
pub(crate) async fn relay(
    server: &Server,
    database: &mut Database,
    drain: Drain,
    arguments: &[String],
) -> Result<RelayRound, Failure> {
    let rows = drain.rows.count;
    let slot = database.copy_slot().await?;
    let mut sink = Sink::start(drain.sink).await?;
    let relay = start_relay(server.relay(), database, &slot, &sink, arguments)?;
    let round = by(&mut sink, vec![relay], rows).await?;
    database.drop_slots(&slot).await?;
    Ok(round)
}

/// Waits until these relays have drained all rows. The time runs from the start of the first relay,
/// and the usage is their sum.
pub(crate) async fn by(
    sink: &mut Sink,
    mut relays: Vec<Process>,
    rows: u32,
) -> Result<RelayRound, Failure> {
    let started = relays.first().ok_or("no relay")?.started();
    wait_stored(sink, &relays, rows).await?;
    let elapsed = started.elapsed();
    let mut usage = Usage::default();
    for relay in &mut relays {
        usage = usage.with(relay.usage()?);
    }
    let sink_usage = sink.usage()?;
    for relay in relays {
        relay.terminate().await?;
    }
    // The counts are read again after the relays ended, because a duplicate may be stored last.
    let Counts { publish_requests, messages_stored, in_flight_per_key_max, .. } =
        sink.counts().await?;
    if in_flight_per_key_max > 1 {
        return Err(format!("{in_flight_per_key_max} requests of one key were out at once").into());
    }
    let requests = f64::from(u32::try_from(publish_requests)?);
    Ok(RelayRound {
        measured: Measured::new(rows, elapsed, usage),
        sink: sink_usage,
        requests_per_row: requests / f64::from(rows),
        duplicates: messages_stored.saturating_sub(u64::from(rows)),
    })
}

/// Waits until the sink holds `rows` messages. Fails when the count stops growing.
pub(crate) async fn wait_stored(
    sink: &mut Sink,
    relays: &[Process],
    rows: u32,
) -> Result<(), Failure> {
    let (mut seen, mut seen_at) = (0, Instant::now());
    loop {
        let stored = sink.counts().await?.messages_stored;
        if stored >= u64::from(rows) {
            return Ok(());
        }
        if stored > seen {
            (seen, seen_at) = (stored, Instant::now());
        }
        relays.iter().try_for_each(Process::check_alive)?;
        if seen_at.elapsed() > Duration::from_secs(60) {
            return Err(format!("{stored} of {rows} rows arrived, and then none for 60 s").into());
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn recvlogical(
    server: &Server,
    database: &mut Database,
    rows: u32,
) -> Result<Option<Measured>, Failure> {
    let Some(program) = process::program("pg_recvlogical", &[server.bin_dir()]) else {
        return Ok(None);
    };
    let end = database.wal_end().await?;
    let slot = database.copy_slot().await?;
    let mut command = clean_command(program);
    command.args(["--start", "--no-loop", "--file=/dev/null", "--dbname", database.url()]);
    command.args(["--slot", &slot, "--endpos", &end]);
    command.args(["--option=proto_version=1", "--option=publication_names=walrelay"]);
    let reader = Process::start("pg_recvlogical", command, Output::Log)?;
    let (elapsed, usage) = reader.finish(Duration::from_mins(10)).await?;
    database.drop_slots(&slot).await?;
    Ok(Some(Measured::new(rows, elapsed, usage)))
}

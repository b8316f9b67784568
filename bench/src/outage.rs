//! Measures a Pub/Sub outage: the relay spills a backlog, starts again with all rows in dispatch
//! state, and redelivers them.
//!
//! The server limits retained WAL with `max_slot_wal_keep_size`, and foreign WAL follows the rows.
//! Both are needed: the relay does not spill when outbox rows make up most of the WAL.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;
use walrelay_testkit::http_get;

use crate::database::{Database, Rows, Server};
use crate::drain::{self, Drain, start_relay, wait_stored};
use crate::failure::Failure;
use crate::process::{Process, Usage};
use crate::sink::{Sink, SinkOptions};

/// The interval at which the relay's state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The time limit for one measurement, far above any expected duration.
const LIMIT: Duration = Duration::from_mins(5);

/// Writes one mebibyte of foreign WAL.
const FOREIGN: &str = "SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))";

/// The amount of foreign WAL in mebibytes. It exceeds `--wal-budget` until the last row is
/// recorded.
const FOREIGN_MEBIBYTES: usize = 32;

const WAL_BUDGET: &str = "--wal-budget=16MiB";

/// Rows that are spilled and redelivered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) name: &'static str,
    pub(crate) rows: Rows,
}

/// A workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OutageResult {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    pub(crate) keys: u32,
    /// The rate of the same rows without an outage.
    pub(crate) live_rows_per_second: f64,
    /// The rate from the first recorded row to the last.
    pub(crate) spilled_rows_per_second: f64,
    /// The relay's resource usage until the last row was recorded.
    pub(crate) spilling: Usage,
    /// The time from the start of the process, with all rows in dispatch state, until `/readyz`
    /// returns 200.
    pub(crate) ready_seconds: f64,
    /// The rate from the first stored message to the last.
    pub(crate) redelivered_rows_per_second: f64,
    /// The resource usage of the relay that redelivered the rows.
    pub(crate) redelivering: Usage,
    pub(crate) duplicates: u64,
}

pub(crate) async fn run(
    server: &Server,
    outage: Outage,
    arguments: &[String],
) -> Result<OutageResult, Failure> {
    let Outage { name, rows } = outage;
    let mut database = server.create(&name.replace('-', "_")).await?;
    database.load(rows).await?;
    let live = Drain { name, rows, sink: SinkOptions::default(), rounds: 1 };
    let live = drain::relay(server, &mut database, live, arguments).await?;

    let slot = database.copy_slot().await?;
    for _ in 0..FOREIGN_MEBIBYTES {
        database.client().execute(FOREIGN, &[]).await?;
    }
    let mut sink = Sink::start(SinkOptions::default()).await?;
    sink.refuse_all().await?;
    let options = [arguments, &[WAL_BUDGET.to_owned()]].concat();
    let (refused, refused_at) = start(server, &database, &slot, &sink, &options)?;
    let (spilled_rows_per_second, spilling) =
        spill(&database, refused, &refused_at, rows.count).await?;

    sink.heal().await?;
    let (mut relay, address) = start(server, &database, &slot, &sink, &options)?;
    let relays = std::slice::from_ref(&relay);
    // Redelivery starts before the relay reports ready, so both events are awaited at once.
    let (ready, first) =
        tokio::try_join!(wait_ready(&relay, &address), wait_first(&mut sink, relays))?;
    wait_stored(&mut sink, relays, rows.count).await?;
    let redelivered = first.elapsed();
    let redelivering = relay.usage()?;
    relay.terminate().await?;
    let stored = sink.counts().await?.messages_stored;
    server.remove(database).await?;
    Ok(OutageResult {
        name,
        rows: rows.count,
        keys: rows.aggregates,
        live_rows_per_second: live.measured.rows_per_second,
        spilled_rows_per_second,
        spilling,
        ready_seconds: ready.as_secs_f64(),
        redelivered_rows_per_second: f64::from(rows.count) / redelivered.as_secs_f64(),
        redelivering,
        duplicates: stored.saturating_sub(u64::from(rows.count)),
    })
}

/// Returns the time from the relay's start until it reports ready.
async fn wait_ready(relay: &Process, address: &str) -> Result<Duration, Failure> {
    while http_get(address, "/readyz").await.map_or(0, |(code, _)| code) != 200 {
        check(relay)?;
        sleep(POLL_INTERVAL).await;
    }
    Ok(relay.started().elapsed())
}

/// Returns the time when the first row is stored.
async fn wait_first(sink: &mut Sink, relays: &[Process]) -> Result<Instant, Failure> {
    wait_stored(sink, relays, 1).await?;
    Ok(Instant::now())
}

/// Stops the relay once every row is recorded. Returns the rate and the resource usage.
async fn spill(
    database: &Database,
    mut relay: Process,
    address: &str,
    rows: u32,
) -> Result<(f64, Usage), Failure> {
    let mut begun: Option<(Instant, i64)> = None;
    let rate = loop {
        check(&relay)?;
        let recorded = recorded(database, address, rows).await;
        match begun {
            None if recorded > 0 => begun = Some((Instant::now(), recorded)),
            Some((since, first)) if recorded >= i64::from(rows) => {
                let counted = u32::try_from(recorded - first)?.max(1);
                break f64::from(counted) / since.elapsed().as_secs_f64();
            }
            None | Some(_) => {}
        }
        sleep(POLL_INTERVAL).await;
    };
    let usage = relay.usage()?;
    relay.terminate().await?;
    Ok((rate, usage))
}

/// Returns the number of recorded rows. Reads the relay's counter until it reports all rows, then
/// counts in the table.
async fn recorded(database: &Database, address: &str, rows: u32) -> i64 {
    let metrics = http_get(address, "/metrics").await.map(|(_, body)| body).unwrap_or_default();
    let told = metrics.lines().find_map(|line| line.strip_prefix("walrelay_spilled_total "));
    let told = told.and_then(|count| count.trim().parse::<i64>().ok()).unwrap_or(0);
    if told < i64::from(rows) {
        return told;
    }
    // The counter includes rows of transactions that are not committed yet. Only committed rows are
    // recorded.
    let count = "SELECT count(*) FROM app_outbox_dispatch";
    let counted = database.client().query_one(count, &[]).await.and_then(|row| row.try_get(0));
    counted.unwrap_or(0)
}

fn start(
    server: &Server,
    database: &Database,
    slot: &str,
    sink: &Sink,
    options: &[String],
) -> Result<(Process, String), Failure> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let options = [options, &[format!("--http={address}")]].concat();
    let relay = start_relay(server.relay(), database, slot, sink, &options)?;
    Ok((relay, address))
}

fn check(relay: &Process) -> Result<(), Failure> {
    relay.check_alive()?;
    match relay.started().elapsed() > LIMIT {
        true => Err("the rows of an outage are not through after five minutes".into()),
        false => Ok(()),
    }
}

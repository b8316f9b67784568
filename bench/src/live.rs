//! Measures rows that are published while they are inserted: at a steady rate, and in a burst after
//! a silence.
//!
//! The latency runs from the insert's `occurred_at` to the sink's time when it stored the message.
//! Both processes use this machine's clock. The latency includes the insert and its commit, but not
//! the reply's way back to the relay.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::Client;

use crate::database::{Database, Rows, Server};
use crate::drain::{start_relay, wait_stored};
use crate::failure::Failure;
use crate::process::{Process, Usage};
use crate::sink::{Keeping, Sink, SinkOptions, Stored};
use crate::statistics::percentile;

/// Inserts one row in its own transaction, as a service would.
const INSERT: &str = "INSERT INTO app_outbox
    (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
  VALUES ('bench', 'order-' || $1::bigint, 'OrderPlaced', $1::bigint,
          jsonb_build_object('text', repeat('x', 188)), clock_timestamp())";

/// The number of producers, each with its own connection.
const PRODUCERS: u32 = 2;

/// Rows awaited before the measurement, which prove that the relay is streaming.
const WARM_UP_ROWS: u32 = 1;

/// Rows inserted at a steady rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteadyWorkload {
    pub(crate) name: &'static str,
    pub(crate) rows_per_second: u32,
    pub(crate) seconds: u32,
    pub(crate) delay_millis: u64,
}

/// Many rows inserted at once after a silence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BurstWorkload {
    pub(crate) name: &'static str,
    pub(crate) rows: Rows,
    pub(crate) idle: Duration,
}

/// A live workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Live {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    /// The rate from the first insert to the last message stored.
    pub(crate) rows_per_second: f64,
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    pub(crate) p999_millis: f64,
    /// The CPU time of these rows alone, and the peak memory of the relay's whole life.
    pub(crate) usage: Usage,
    pub(crate) requests_per_row: f64,
    pub(crate) duplicates: u64,
}

/// The beginning of a measurement.
struct Begin {
    at: Instant,
    /// The relay's usage so far.
    usage: Usage,
}

/// A relay that has published its first row.
struct Running {
    database: Database,
    sink: Sink,
    relay: Process,
}

impl Running {
    async fn start(
        server: &Server,
        name: &str,
        delay_millis: u64,
        arguments: &[String],
    ) -> Result<Self, Failure> {
        let mut database = server.create(&name.replace('-', "_")).await?;
        let slot = database.copy_slot().await?;
        let mut sink =
            Sink::start(SinkOptions { delay_millis, keeping: Keeping::Log, tls: false }).await?;
        let relay = start_relay(server.relay(), &database, &slot, &sink, arguments)?;
        database.client().execute(INSERT, &[&-1_i64]).await?;
        wait_stored(&mut sink, std::slice::from_ref(&relay), WARM_UP_ROWS).await?;
        Ok(Self { database, sink, relay })
    }

    /// Begins the measurement, before the first row.
    fn begin(&mut self) -> Result<Begin, Failure> {
        Ok(Begin { usage: self.relay.usage()?, at: Instant::now() })
    }

    /// Ends the measurement.
    async fn finish(
        mut self,
        server: &Server,
        name: &'static str,
        rows: u32,
        begin: Begin,
    ) -> Result<Live, Failure> {
        wait_stored(&mut self.sink, std::slice::from_ref(&self.relay), rows + WARM_UP_ROWS).await?;
        let seconds = begin.at.elapsed().as_secs_f64();
        let after = self.relay.usage()?;
        self.relay.terminate().await?;
        let requests = u32::try_from(self.sink.counts().await?.publish_requests)?;
        let stored = self.sink.published().await?;
        let messages = u64::try_from(stored.len())? - u64::from(WARM_UP_ROWS);
        server.remove(self.database).await?;

        let seen: BTreeSet<&str> = stored
            .iter()
            .filter_map(|it| it.attributes.get("event_id"))
            .map(AsRef::as_ref)
            .collect();
        let distinct = u64::try_from(seen.len())? - u64::from(WARM_UP_ROWS);
        if distinct != u64::from(rows) {
            return Err(format!("{distinct} events arrived, {rows} were committed").into());
        }
        let latencies = latencies(&stored[1..])?;
        Ok(Live {
            name,
            rows,
            rows_per_second: f64::from(rows) / seconds,
            p50_millis: percentile(&latencies, 0.5),
            p99_millis: percentile(&latencies, 0.99),
            p999_millis: percentile(&latencies, 0.999),
            usage: Usage {
                user_seconds: after.user_seconds - begin.usage.user_seconds,
                system_seconds: after.system_seconds - begin.usage.system_seconds,
                peak_bytes: after.peak_bytes,
            },
            requests_per_row: f64::from(requests - WARM_UP_ROWS) / f64::from(rows),
            duplicates: messages - distinct,
        })
    }
}

pub(crate) async fn steady(
    server: &Server,
    steady: SteadyWorkload,
    arguments: &[String],
) -> Result<Live, Failure> {
    let mut running = Running::start(server, steady.name, steady.delay_millis, arguments).await?;
    let begin = running.begin()?;
    let rows = insert_steadily(&running.database, steady).await?;
    running.finish(server, steady.name, rows, begin).await
}

/// Inserts the rows over several connections. Returns the number of rows.
pub(crate) async fn insert_steadily(
    database: &Database,
    steady: SteadyWorkload,
) -> Result<u32, Failure> {
    let per_producer = steady.rows_per_second * steady.seconds / PRODUCERS;
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let client = database.connect().await?;
        let first = i64::from(producer * per_producer);
        let pause = Duration::from_secs(1) * PRODUCERS / steady.rows_per_second;
        producers.spawn(async move {
            let done = produce(&client, first..first + i64::from(per_producer), pause).await;
            drop(client);
            done
        });
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    Ok(per_producer * PRODUCERS)
}

/// Inserts one row after the other, each at its due time. A late row is inserted at once.
async fn produce(
    client: &Client,
    numbers: std::ops::Range<i64>,
    pause: Duration,
) -> Result<(), Failure> {
    let insert = client.prepare(INSERT).await?;
    let mut due = interval(pause);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in numbers {
        due.tick().await;
        client.execute(&insert, &[&number]).await?;
    }
    Ok(())
}

pub(crate) async fn burst(
    server: &Server,
    burst: BurstWorkload,
    arguments: &[String],
) -> Result<Live, Failure> {
    let mut running = Running::start(server, burst.name, 0, arguments).await?;
    sleep(burst.idle).await;
    let begin = running.begin()?;
    let Rows { count, per_transaction, aggregates, payload_bytes } = burst.rows;
    let call = format!("CALL load({count}, {per_transaction}, {aggregates}, {payload_bytes})");
    running.database.client().batch_execute(&call).await?;
    running.finish(server, burst.name, count, begin).await
}

/// Returns the sorted latencies in milliseconds.
fn latencies(stored: &[Stored]) -> Result<Vec<f64>, Failure> {
    let millis = |message: &Stored| {
        let text = message.attributes.get("occurred_at").ok_or("a message without a time")?;
        let occurred = unix_seconds(text).ok_or_else(|| format!("{text:?} is not a time"))?;
        Ok((message.published_at - occurred) * 1e3)
    };
    let mut all = stored.iter().map(millis).collect::<Result<Vec<f64>, Failure>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// Parses an RFC 3339 time, as in the relay's `occurred_at`.
fn unix_seconds(text: &str) -> Option<f64> {
    let prost_types::Timestamp { seconds, nanos } = text.parse().ok()?;
    Some(seconds as f64 + f64::from(nanos) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_relay_writes_them() {
        assert_eq!(unix_seconds("1970-01-01T00:00:00.000000Z"), Some(0.0));
        assert_eq!(unix_seconds("2000-02-29T12:00:00.500000Z"), Some(951_825_600.5));
        assert_eq!(unix_seconds("2026-11-21T02:43:58.000000Z"), Some(1_795_229_038.0));
        assert_eq!(unix_seconds("yesterday"), None);
    }
}

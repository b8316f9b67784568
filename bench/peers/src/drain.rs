//! Measures how fast a peer publishes a backlog.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use crate::description::{Peer, Variant};
use crate::extent::Extent;
use crate::samples::Samples;
use crate::workplace::Workplace;
use walrelay_bench::database::Server;
use walrelay_bench::failure::Failure;
use walrelay_bench::process::Process;
use walrelay_bench::sink::Keeping;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A backlog's shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// 0 means one transaction for all rows.
    per_transaction: u32,
    /// 0 means one key per row.
    keys: u32,
}

pub(crate) const SHAPES: [Shape; 4] = [
    Shape { name: "1,000 keys, 10 rows a transaction", per_transaction: 10, keys: 1_000 },
    Shape { name: "all keys distinct, 10 rows a transaction", per_transaction: 10, keys: 0 },
    Shape { name: "1,000 keys, one row a transaction", per_transaction: 1, keys: 1_000 },
    Shape { name: "1,000 keys, one transaction", per_transaction: 0, keys: 1_000 },
];

impl Shape {
    fn rows(self, extent: Extent) -> u32 {
        if self.per_transaction == 0 { extent.transaction_rows } else { extent.backlog_rows }
    }
}

/// The size of a payload in bytes.
pub(crate) const PAYLOAD_BYTES: i32 = 200;

/// The figures of one backlog.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DrainFigures {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    pub(crate) rounds: Vec<DrainRound>,
}

/// One round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct DrainRound {
    /// The messages stored until the backlog ended or the time limit was reached.
    pub(crate) stored: u32,
    /// From the start of the process.
    pub(crate) rows_per_second: f64,
    /// From the time when half of `stored` was there.
    pub(crate) second_half_rows_per_second: f64,
    pub(crate) first_message_seconds: f64,
    pub(crate) cpu_seconds_per_million: f64,
    pub(crate) peak_mebibytes: f64,
}

pub(crate) async fn run(
    server: &Server,
    peer: &Peer,
    variant: &Variant,
    shape: Shape,
    extent: Extent,
) -> Result<DrainFigures, Failure> {
    let mut rounds = Vec::new();
    for _ in 0..extent.rounds {
        let mut place = Workplace::create(server, peer, variant, Keeping::Nothing).await?;
        let rows = shape.rows(extent);
        load(&place, shape, rows).await?;
        let process = place.start()?;
        let round = drain(&mut place, process, rows, extent.drain_limit).await;
        place.remove(Some(server)).await?;
        rounds.push(round?);
    }
    Ok(DrainFigures { name: shape.name, rows: shape.rows(extent), rounds })
}

async fn load(place: &Workplace, shape: Shape, rows: u32) -> Result<(), Failure> {
    let per = if shape.per_transaction == 0 { rows } else { shape.per_transaction };
    let call = format!("CALL peer_load({rows}, {per}, {}, {PAYLOAD_BYTES})", shape.keys);
    let client = place.database.client();
    client.batch_execute("SET synchronous_commit = off").await?;
    client.batch_execute(&call).await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

async fn drain(
    place: &mut Workplace,
    mut process: Process,
    rows: u32,
    limit: Duration,
) -> Result<DrainRound, Failure> {
    let mut samples = Samples::default();
    let started = process.started();
    let wanted = u64::from(rows);
    loop {
        let stored = place.sink.counts().await?.messages_stored;
        samples.note(started.elapsed().as_secs_f64(), u32::try_from(stored)?);
        if stored >= wanted || started.elapsed() > limit {
            break;
        }
        process.check_alive()?;
        sleep(POLL_INTERVAL).await;
    }
    let rates = samples.rates(process.usage()?)?;
    Ok(DrainRound {
        stored: rates.count,
        rows_per_second: rates.per_second,
        second_half_rows_per_second: rates.second_half_per_second,
        first_message_seconds: rates.first_seconds,
        cpu_seconds_per_million: rates.cpu_seconds_per_million,
        peak_mebibytes: rates.peak_mebibytes,
    })
}

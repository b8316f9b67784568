//! Measures how fast a peer publishes a backlog.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

use crate::database::Server;
use crate::failure::Failure;
use crate::peers::description::{Peer, Variant};
use crate::peers::extent::Extent;
use crate::peers::workplace::Workplace;
use crate::process::{Process, Usage};
use crate::sink::Keeping;

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
    // (time since the start, messages stored), one entry per change
    let mut samples: Vec<(f64, u64)> = Vec::new();
    let started = process.started();
    let wanted = u64::from(rows);
    loop {
        let stored = place.sink.counts().await?.messages_stored;
        if samples.last().map_or(stored > 0, |last| stored > last.1) {
            samples.push((started.elapsed().as_secs_f64(), stored));
        }
        if stored >= wanted || started.elapsed() > limit {
            break;
        }
        process.check_alive()?;
        sleep(POLL_INTERVAL).await;
    }
    let usage = process.usage()?;
    drop(process);
    round(&samples, usage, started)
}

fn round(samples: &[(f64, u64)], usage: Usage, started: Instant) -> Result<DrainRound, Failure> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        let waited = started.elapsed().as_secs();
        return Err(format!("nothing was published within {waited} s").into());
    };
    let stored = u32::try_from(last.1)?;
    let count = f64::from(stored);
    let half = samples.iter().find(|sample| sample.1 >= last.1 / 2).unwrap_or(first);
    let rest = f64::from(u32::try_from(last.1 - half.1)?);
    Ok(DrainRound {
        stored,
        rows_per_second: count / last.0,
        second_half_rows_per_second: rest / (last.0 - half.0),
        first_message_seconds: first.0,
        cpu_seconds_per_million: (usage.user_seconds + usage.system_seconds) * 1e6 / count,
        peak_mebibytes: f64::from(u32::try_from(usage.peak_bytes / 1024)?) / 1024.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_counted_from_the_middle() {
        let samples = [(1.0, 10), (2.0, 500), (3.0, 1_000)];
        let usage = Usage { user_seconds: 1.5, system_seconds: 0.5, peak_bytes: 3 << 20 };
        let round = round(&samples, usage, Instant::now()).unwrap();
        assert_eq!(round.rows_per_second, 1_000.0 / 3.0);
        assert_eq!(round.second_half_rows_per_second, 500.0);
        assert_eq!(round.first_message_seconds, 1.0);
        assert_eq!(round.cpu_seconds_per_million, 2_000.0);
        assert_eq!(round.peak_mebibytes, 3.0);
    }

    #[test]
    fn a_peer_that_publishes_nothing_has_no_rate() {
        assert!(round(&[], Usage::default(), Instant::now()).is_err());
    }
}

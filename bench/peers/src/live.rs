//! Measures the time from an insert to its stored message, at a steady rate.

use std::time::Duration;

use serde::Serialize;

use crate::check::{self, Arrival};
use crate::description::{Peer, Variant};
use crate::extent::{Extent, Patience};
use crate::producer::{Stream, produce};
use crate::supervisor::{Supervisor, arrivals, wait_quiet};
use crate::workplace::Workplace;
use walrelay_bench::database::Server;
use walrelay_bench::failure::Failure;
use walrelay_bench::sink::Keeping;
use walrelay_bench::statistics::percentile;

pub(crate) const RATES: [u32; 2] = [500, 2_000];

const KEYS: u64 = 1_000;

/// Rows that prove that the peer is streaming. They are not measured.
const WARM_UP_ROWS: u64 = 20;

/// The time in which a peer must have published its first row.
pub(super) const START_LIMIT: Duration = Duration::from_secs(60);

/// The figures of one rate.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LiveFigures {
    pub(crate) rows_per_second: u32,
    pub(crate) rows: u64,
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    pub(crate) max_millis: f64,
    pub(crate) verdict: check::Verdict,
}

pub(crate) async fn run(
    server: &Server,
    peer: &Peer,
    variant: &Variant,
    rows_per_second: u32,
    extent: Extent,
) -> Result<LiveFigures, Failure> {
    let mut place = Workplace::create(server, peer, variant, Keeping::Log).await?;
    let done = measure(&mut place, rows_per_second, extent).await;
    place.remove(Some(server)).await?;
    done
}

async fn measure(
    place: &mut Workplace,
    rows_per_second: u32,
    extent: Extent,
) -> Result<LiveFigures, Failure> {
    let mut supervisor = Supervisor::start(place)?;
    let stream = |rows| Stream { rows, rows_per_second, keys: KEYS };
    produce(place.database.url(), stream(0..WARM_UP_ROWS)).await?;
    let starting = Patience { stall: START_LIMIT, limit: START_LIMIT };
    wait_quiet(place, &mut supervisor, WARM_UP_ROWS, starting).await?;
    let last = WARM_UP_ROWS + u64::from(rows_per_second * extent.live_seconds);
    produce(place.database.url(), stream(WARM_UP_ROWS..last)).await?;
    wait_quiet(place, &mut supervisor, last, extent.patience()).await?;
    drop(supervisor);
    let arrivals = arrivals(&mut place.sink).await?;
    let verdict = check::judge(0..last, &arrivals, |row| row % KEYS);
    let mut millis: Vec<f64> = arrivals
        .iter()
        .filter(|it| it.row >= WARM_UP_ROWS)
        .map(|Arrival { inserted_at, stored_at, .. }| (stored_at - inserted_at) * 1e3)
        .collect();
    millis.sort_by(f64::total_cmp);
    Ok(LiveFigures {
        rows_per_second,
        rows: last - WARM_UP_ROWS,
        p50_millis: percentile(&millis, 0.5),
        p99_millis: percentile(&millis, 0.99),
        max_millis: percentile(&millis, 1.0),
        verdict,
    })
}

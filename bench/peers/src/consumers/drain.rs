//! Measures how fast a consumer applies a backlog.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use crate::consumers::extent::ConsumerExtent;
use crate::consumers::place::Place;
use crate::description::{Peer, Variant};
use crate::samples::Samples;
use walrelay_bench::database::Server;
use walrelay_bench::failure::Failure;
use walrelay_bench::process::Process;

const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The figures at one distance from the database.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ConsumerDrain {
    /// The delay of each round trip to the database.
    pub(super) database_millis: u64,
    pub(super) events: u32,
    pub(super) rounds: Vec<ConsumerRound>,
}

/// One round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct ConsumerRound {
    /// The events applied until the backlog ended or the time limit was reached.
    pub(super) applied: u32,
    /// From the start of the process.
    pub(super) events_per_second: f64,
    /// From the time when half of `applied` was there.
    pub(super) second_half_events_per_second: f64,
    pub(super) cpu_seconds_per_million: f64,
    pub(super) peak_mebibytes: f64,
}

pub(super) async fn run(
    server: &Server,
    variant: &Variant,
    consumer: &Peer,
    extent: ConsumerExtent,
    database_millis: u64,
) -> Result<ConsumerDrain, Failure> {
    let mut rounds = Vec::new();
    for _ in 0..extent.rounds {
        let place = Place::create(server, extent.events, database_millis).await?;
        let process = place.start(consumer, variant)?;
        let round = drain(&place, process, extent).await;
        place.remove(server).await?;
        rounds.push(round?);
    }
    Ok(ConsumerDrain { database_millis, events: extent.events, rounds })
}

async fn drain(
    place: &Place,
    mut process: Process,
    extent: ConsumerExtent,
) -> Result<ConsumerRound, Failure> {
    let started = process.started();
    let limit = Duration::from_secs(extent.drain_seconds.into());
    let mut samples = Samples::default();
    loop {
        let applied = place.applied().await?;
        samples.note(started.elapsed().as_secs_f64(), applied);
        if applied >= extent.events || started.elapsed() > limit {
            break;
        }
        process.check_alive()?;
        sleep(POLL_INTERVAL).await;
    }
    let rates = samples.rates(process.usage()?)?;
    Ok(ConsumerRound {
        applied: rates.count,
        events_per_second: rates.per_second,
        second_half_events_per_second: rates.second_half_per_second,
        cpu_seconds_per_million: rates.cpu_seconds_per_million,
        peak_mebibytes: rates.peak_mebibytes,
    })
}

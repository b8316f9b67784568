//! Measures how fast a consumer applies a backlog.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use crate::database::Server;
use crate::failure::Failure;
use crate::peers::consumers_extent::ConsumerExtent;
use crate::peers::consumers_place::{Consumer, Place};
use crate::peers::description::Variant;
use crate::process::{Process, Usage};

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
    consumer: &Consumer,
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

/// The number of events that were applied at a time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Seconds since the start of the process.
    at: f64,
    applied: u32,
}

async fn drain(
    place: &Place,
    mut process: Process,
    extent: ConsumerExtent,
) -> Result<ConsumerRound, Failure> {
    let started = process.started();
    let limit = Duration::from_secs(extent.drain_seconds.into());
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        let applied = place.applied().await?;
        let before = samples.last().map_or(0, |last| last.applied);
        if applied > before {
            samples.push(Sample { at: started.elapsed().as_secs_f64(), applied });
        }
        if applied >= extent.events || started.elapsed() > limit {
            break;
        }
        process.check_alive()?;
        sleep(POLL_INTERVAL).await;
    }
    round(&samples, process.usage()?)
}

fn round(samples: &[Sample], usage: Usage) -> Result<ConsumerRound, Failure> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Err("no event was applied in time".into());
    };
    let half = samples.iter().find(|sample| sample.applied >= last.applied / 2).unwrap_or(first);
    let count = f64::from(last.applied);
    Ok(ConsumerRound {
        applied: last.applied,
        events_per_second: count / last.at,
        second_half_events_per_second: f64::from(last.applied - half.applied) / (last.at - half.at),
        cpu_seconds_per_million: (usage.user_seconds + usage.system_seconds) * 1e6 / count,
        peak_mebibytes: f64::from(u32::try_from(usage.peak_bytes / 1024)?) / 1024.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counted_from_the_start_and_from_the_middle() {
        let sample = |at, applied| Sample { at, applied };
        let samples = [sample(2.0, 10), sample(3.0, 500), sample(4.0, 1_000)];
        let usage = Usage { user_seconds: 1.5, system_seconds: 0.5, peak_bytes: 3 << 20 };
        let round = round(&samples, usage).unwrap();
        assert_eq!((round.applied, round.events_per_second), (1_000, 250.0));
        assert_eq!(round.second_half_events_per_second, 500.0);
        assert_eq!(round.cpu_seconds_per_million, 2_000.0);
        assert_eq!(round.peak_mebibytes, 3.0);
    }
}

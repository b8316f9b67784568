//! Measures the latency of events applied at a steady rate, from Pub/Sub's publish time to the
//! commit.
//!
//! The consumer reports this latency in a histogram of its `/metrics`, which ends at the reply to
//! COMMIT. The targets are bucket bounds of that histogram, so the verdicts come from counts and
//! need no interpolation.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;
use walrelay_testkit::http_get;

use crate::consume::{set_up, start_consumer};
use crate::database::Server;
use crate::drain::start_relay;
use crate::failure::Failure;
use crate::live::{SteadyWorkload, insert_steadily};
use crate::process::{Process, Usage};
use crate::sink::{Keeping, Sink, SinkOptions};

const HISTOGRAM: &str = "walrelay_inbox_stored_to_commit_seconds";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A run fails when the consumer is not ready, or applies nothing, for this long.
const STALL: Duration = Duration::from_secs(60);

/// A workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LiveConsumeResult {
    pub(crate) name: &'static str,
    pub(crate) events: u32,
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    pub(crate) usage: Usage,
}

/// Inserts rows at a steady pace, with the relay and a consumer at work.
pub(crate) async fn run(
    server: &Server,
    steady: SteadyWorkload,
) -> Result<LiveConsumeResult, Failure> {
    let mut database = server.create(&steady.name.replace('-', "_")).await?;
    let slot = database.copy_slot().await?;
    let keeping = SinkOptions { keeping: Keeping::Subscription, ..SinkOptions::default() };
    let sink = Sink::start(keeping).await?;
    set_up(server, &database, 0, &sink).await?;
    let relay = start_relay(server.relay(), &database, &slot, &sink, &[])?;
    let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let mut consumer = start_consumer(server, database.url(), &sink, &["--http", &http])?;
    wait(&[&relay, &consumer], async || {
        Ok(matches!(http_get(&http, "/readyz").await, Ok((200, _))).then_some(()))
    })
    .await?;

    let events = insert_steadily(&database, steady).await?;
    let histogram = wait(&[&relay, &consumer], async || {
        let (_, text) = http_get(&http, "/metrics").await?;
        let histogram = Histogram::of(&text)?;
        Ok((histogram.count() >= f64::from(events)).then_some(histogram))
    })
    .await?;
    let usage = consumer.usage()?;
    consumer.terminate().await?;
    relay.terminate().await?;
    server.remove(database).await?;
    let millis = |share| histogram.quantile(share) * 1e3;
    let (p50_millis, p99_millis) = (millis(0.5), millis(0.99));
    Ok(LiveConsumeResult { name: steady.name, events, p50_millis, p99_millis, usage })
}

async fn wait<T>(
    processes: &[&Process],
    condition: impl AsyncFn() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let since = Instant::now();
    loop {
        if let Some(found) = condition().await? {
            return Ok(found);
        }
        processes.iter().try_for_each(|process| process.check_alive())?;
        if since.elapsed() > STALL {
            return Err(format!("waited {} s in vain", STALL.as_secs()).into());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Upper bounds in seconds, each with the number of observations at or below the bound.
#[derive(Debug, PartialEq)]
struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// Parses the histogram from the text of `/metrics`.
    fn of(text: &str) -> Result<Self, Failure> {
        let prefix = format!("{HISTOGRAM}_bucket{{");
        let mut buckets = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(&prefix)) {
            let (_, line) = line.split_once("le=\"").ok_or("a bucket without a bound")?;
            let (bound, count) = line.split_once("\"} ").ok_or("a bucket without a count")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse()? };
            buckets.push((bound, count.parse()?));
        }
        Ok(Self(buckets))
    }

    fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns the latency that `share` of the observations do not exceed. Interpolates linearly
    /// within a bucket.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = self.count() * share;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= wanted && *count > below {
                // For the infinite bucket the result is infinite, because no upper bound is known.
                let width = bound - low;
                return low + width * (wanted - below) / (count - below);
            }
            (low, below) = (*bound, *count);
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_from_the_buckets() {
        let text = format!(
            "{HISTOGRAM}_sum 1\n{HISTOGRAM}_bucket{{consumer=\"c\",le=\"0.0025\"}} 50\n\
             {HISTOGRAM}_bucket{{consumer=\"c\",le=\"0.005\"}} 90\n\
             {HISTOGRAM}_bucket{{consumer=\"c\",le=\"+Inf\"}} 100\n"
        );
        let histogram = Histogram::of(&text).expect("a histogram");
        assert_eq!(histogram.count(), 100.0);
        assert_eq!(histogram.quantile(0.5), 0.0025);
        assert!((histogram.quantile(0.7) - 0.00375).abs() < 1e-9);
        assert_eq!(histogram.quantile(0.99), f64::INFINITY);
        assert!(Histogram(Vec::new()).quantile(0.5).is_nan());
    }
}

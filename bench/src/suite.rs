//! What is measured, in which size, and in which order.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::clients::{self, Client, PublishOptions, Published};
use crate::database::{Rows, Server};
use crate::drain::{self, Drain, Drained};
use crate::live::{self, Burst, Live, Steady};
use crate::machine::{self, Machine};
use crate::targets::{self, Verdict};
use crate::{Failure, SuiteOptions, report};

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Size {
    /// What is published.
    Full,
    /// Under two minutes.
    Quick,
    /// Seconds, in the normal tests: so that the suite does not rot.
    Tiny,
}

impl Size {
    /// Rows for a workload that has `full` of them.
    fn rows(self, full: u32) -> u32 {
        match self {
            Self::Full => full,
            Self::Quick => (full / 10).max(500),
            Self::Tiny => (full / 1_000).clamp(50, 1_000),
        }
    }

    fn rounds(self) -> u32 {
        match self {
            Self::Full => 3,
            Self::Quick | Self::Tiny => 1,
        }
    }

    fn steady_seconds(self) -> u32 {
        match self {
            Self::Full => 30,
            Self::Quick => 8,
            Self::Tiny => 1,
        }
    }

    fn idle(self) -> Duration {
        match self {
            Self::Full => Duration::from_secs(10),
            Self::Quick => Duration::from_secs(3),
            Self::Tiny => Duration::from_millis(100),
        }
    }
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) size: Size,
    pub(crate) relay_arguments: Vec<String>,
    pub(crate) note: Option<String>,
    /// Of the last minute: what else kept the machine busy, at the beginning.
    pub(crate) load_before: f64,
    pub(crate) drains: Vec<Drained>,
    pub(crate) lives: Vec<Live>,
    pub(crate) publishers: Vec<Published>,
    pub(crate) targets: Vec<Verdict>,
}

pub(crate) const HOT_KEYS: &str = "hot-keys";
pub(crate) const MANY_KEYS: &str = "many-keys";
pub(crate) const SINGLE_KEY: &str = "single-key";
pub(crate) const ONE_TRANSACTION: &str = "one-transaction";
pub(crate) const FAR_AWAY: &str = "many-keys-50ms";
pub(crate) const STEADY: &str = "steady-2000";
pub(crate) const BARE: [&str; 3] = ["bare-1", "bare-1-more", "bare-1-threads"];
pub(crate) const OFFICIAL: &str = "official-many-keys";

fn drains(size: Size) -> Vec<Drain> {
    let drain = |name, count, per_transaction, aggregates, payload_bytes| Drain {
        name,
        rows: Rows { count: size.rows(count), per_transaction, aggregates, payload_bytes },
        delay_millis: 0,
        rounds: size.rounds(),
    };
    vec![
        drain(HOT_KEYS, 1_000_000, 10, 1_000, 200),
        drain(MANY_KEYS, 1_000_000, 10, 0, 200),
        drain(SINGLE_KEY, 1_000_000, 10, 1, 200),
        drain("small-transactions", 300_000, 1, 1_000, 200),
        drain(ONE_TRANSACTION, 1_000_000, 1_000_000, 1_000, 200),
        drain("payload-2kb", 300_000, 10, 1_000, 2_000),
        drain("payload-100kb", 10_000, 10, 1_000, 100_000),
        Drain { delay_millis: 50, ..drain(FAR_AWAY, 300_000, 10, 0, 200) },
        Drain { delay_millis: 50, ..drain("hot-keys-50ms", 300_000, 10, 1_000, 200) },
    ]
}

fn publishers(size: Size) -> Vec<(&'static str, PublishOptions)> {
    let publisher = |name, client, full, batch, outstanding| {
        let options = PublishOptions {
            client,
            messages: size.rows(full),
            batch,
            outstanding,
            keys: 0,
            threads: 1,
            payload_bytes: 200,
            port: 0,
        };
        (name, options)
    };
    let threads = |(name, options)| (name, PublishOptions { threads: 2, ..options });
    let keys = |keys, (name, options)| (name, PublishOptions { keys, ..options });
    vec![
        publisher(BARE[0], Client::Tonic, 300_000, 1, 100),
        publisher(BARE[1], Client::Tonic, 300_000, 1, 400),
        threads(publisher(BARE[2], Client::Tonic, 300_000, 1, 400)),
        publisher("bare-10", Client::Tonic, 1_000_000, 10, 100),
        publisher("bare-100", Client::Tonic, 1_000_000, 100, 100),
        publisher("own-1", Client::Own, 300_000, 1, 256),
        publisher("own-10", Client::Own, 1_000_000, 10, 100),
        publisher("own-100", Client::Own, 1_000_000, 100, 100),
        threads(publisher(OFFICIAL, Client::Official, 100_000, 1, 1_000)),
        keys(1_000, threads(publisher("official-hot-keys", Client::Official, 300_000, 1, 20_000))),
        keys(1, threads(publisher("official-single-key", Client::Official, 300_000, 1, 20_000))),
    ]
}

/// Runs the suite.
pub(crate) fn execute(options: &SuiteOptions) -> Result<(), Failure> {
    let relay = match &options.relay {
        Some(relay) => relay.clone(),
        None => beside_us()?,
    };
    // Before the runtime: starting a server blocks.
    let server = Server::start(relay)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let results = runtime.block_on(measure(&server, options))?;
    report::write(&results, &options.results)?;
    report::say(&report::markdown(&results));
    Ok(())
}

fn beside_us() -> Result<PathBuf, Failure> {
    let relay = std::env::current_exe()?.with_file_name("walrelay");
    if relay.is_file() {
        return Ok(relay);
    }
    Err(format!("{} does not exist: build it, or give --relay", relay.display()).into())
}

async fn measure(server: &Server, options: &SuiteOptions) -> Result<Results, Failure> {
    let size = options.size;
    let arguments = &options.relay_arg;
    let is_wanted =
        |name: &str| options.only.is_empty() || options.only.iter().any(|text| name.contains(text));
    let mut results = Results {
        machine: Machine::here(server),
        size,
        relay_arguments: arguments.clone(),
        note: options.note.clone(),
        load_before: machine::load(),
        drains: Vec::new(),
        lives: Vec::new(),
        publishers: Vec::new(),
        targets: Vec::new(),
    };
    for (name, publisher) in publishers(size).into_iter().filter(|(name, _)| is_wanted(name)) {
        report::progress(name);
        let mut rounds = Vec::new();
        for _ in 0..size.rounds() {
            rounds.push(clients::measure(publisher).await?);
        }
        results.publishers.push(Published { name, options: publisher, rounds });
    }
    let seconds = size.steady_seconds();
    for (name, delay_millis) in [(STEADY, 0), ("steady-2000-50ms", 50)] {
        if is_wanted(name) {
            report::progress(name);
            let steady = Steady { name, rows_per_second: 2_000, seconds, delay_millis };
            results.lives.push(live::steady(server, steady, arguments).await?);
        }
    }
    if is_wanted("burst") {
        report::progress("burst");
        let count = size.rows(100_000);
        let rows = Rows { count, per_transaction: 10, aggregates: 1_000, payload_bytes: 200 };
        let burst = Burst { name: "burst", rows, idle: size.idle() };
        results.lives.push(live::burst(server, burst, arguments).await?);
    }
    for drain in drains(size).into_iter().filter(|drain| is_wanted(drain.name)) {
        report::progress(drain.name);
        results.drains.push(drain::run(server, drain, arguments).await?);
    }
    results.targets = targets::judge(&results);
    Ok(results)
}

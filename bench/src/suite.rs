//! The workloads of the suite, in their sizes and their order.

use std::path::PathBuf;

use clap::Args;

use crate::clients::{self, Client, PublishOptions, Published, Publishing};
use crate::consume::{self, ConsumeResult, ConsumeWorkload, Reader};
use crate::consume_live;
use crate::database::{CommitDurability, Rows, Server};
use crate::drain::{self, Drain};
use crate::failure::Failure;
use crate::live::{self, BurstWorkload, Live, SteadyWorkload};
use crate::machine::{self, Machine};
use crate::outage::{self, Outage};
use crate::republish::{self, BACKFILL, REPLAY, RESET};
use crate::results::{
    BARE, CONSUME_DURABLE, CONSUME_DURABLE_OFFICIAL, CONSUME_FAR, CONSUME_FAR_OFFICIAL,
    CONSUME_HOT, CONSUME_MANY, CONSUME_OFFICIAL, CONSUME_POISON, CONSUME_REMOTE, CONSUME_STEADY,
    CONSUME_TWO, FAR_AWAY, FAR_TLS, HOT_KEYS, MANY_KEYS, OFFICIAL, ONE_TRANSACTION, OUTAGE,
    OUTAGE_MANY, Results, SINGLE_KEY, STEADY,
};
use crate::shards::{self, Shards};
use crate::sink::{Keeping, SinkOptions};
use crate::size::Size;
use crate::traced::{self, Traced};
use crate::{report, targets, terminal};

/// What to run, and where the parts are.
#[derive(Debug, Args)]
pub struct SuiteOptions {
    /// How much is measured.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) size: Size,
    /// Only workloads whose name contains this; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// The relay's binary [default: walrelay beside this program].
    #[arg(long, value_name = "FILE")]
    pub(crate) relay: Option<PathBuf>,
    /// An argument for `walrelay run`; may be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) relay_arg: Vec<String>,
    /// The folder the JSON file is written to.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    pub(crate) results: PathBuf,
    /// Says in the result what else kept the machine busy.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

fn drains(size: Size) -> Vec<Drain> {
    let drain = |name, count, per_transaction, aggregates, payload_bytes| Drain {
        name,
        rows: Rows { count: size.rows(count), per_transaction, aggregates, payload_bytes },
        sink: SinkOptions::default(),
        rounds: size.rounds(),
    };
    let far = SinkOptions { delay_millis: 50, ..SinkOptions::default() };
    vec![
        drain(HOT_KEYS, 1_000_000, 10, 1_000, 200),
        drain(MANY_KEYS, 1_000_000, 10, 0, 200),
        drain(SINGLE_KEY, 1_000_000, 10, 1, 200),
        drain("small-transactions", 300_000, 1, 1_000, 200),
        drain(ONE_TRANSACTION, 1_000_000, 1_000_000, 1_000, 200),
        drain("payload-2kb", 300_000, 10, 1_000, 2_000),
        drain("payload-100kb", 10_000, 10, 1_000, 100_000),
        Drain { sink: far, ..drain(FAR_AWAY, 300_000, 10, 0, 200) },
        Drain { sink: SinkOptions { tls: true, ..far }, ..drain(FAR_TLS, 300_000, 10, 0, 200) },
        Drain { sink: far, ..drain("hot-keys-50ms", 300_000, 10, 1_000, 200) },
    ]
}

/// Returns drains of the same rows with one relay per shard, for several shard counts.
fn divisions(size: Size) -> [Shards; 3] {
    let rows = Rows {
        count: size.rows(1_000_000),
        per_transaction: 10,
        aggregates: 1_000,
        payload_bytes: 200,
    };
    let divided = |name, count| Shards { name, count, rows, rounds: size.rounds() };
    [divided("shards-1", 1), divided("shards-2", 2), divided("shards-4", 4)]
}

fn traced(size: Size) -> [Traced; 2] {
    let backlog = |name, aggregates| {
        let count = size.rows(1_000_000);
        let rows = Rows { count, per_transaction: 10, aggregates, payload_bytes: 200 };
        Traced { name, rows, rounds: size.rounds() + 2 }
    };
    [backlog("traced-hot-keys", 1_000), backlog("traced-many-keys", 0)]
}

fn outages(size: Size) -> [Outage; 2] {
    let outage = |name, count, aggregates| {
        let rows = Rows { count, per_transaction: 10, aggregates, payload_bytes: 200 };
        Outage { name, rows }
    };
    let many = size.rows(1_000_000);
    [outage(OUTAGE, size.rows(300_000), 1_000), outage(OUTAGE_MANY, many, many / 10)]
}

fn consumers(size: Size) -> Vec<ConsumeWorkload> {
    let consume = |name, count, aggregates| ConsumeWorkload {
        name,
        reader: Reader::Walrelay,
        rows: Rows { count: size.rows(count), per_transaction: 10, aggregates, payload_bytes: 200 },
        poison_every: 0,
        database_millis: 0,
        commits: CommitDurability::Cached,
        instances: 1,
        rounds: size.rounds(),
    };
    let far =
        |name, millis| ConsumeWorkload { database_millis: millis, ..consume(name, 300_000, 1_000) };
    let durable = |it| ConsumeWorkload { commits: CommitDurability::Durable, ..it };
    vec![
        consume(CONSUME_HOT, 500_000, 1_000),
        consume(CONSUME_MANY, 1_000_000, 0),
        far(CONSUME_FAR, 3),
        // A distance at which the CPUs idle, so that the gain from a second instance is visible.
        far(CONSUME_REMOTE, 30),
        ConsumeWorkload { instances: 2, ..far(CONSUME_TWO, 30) },
        ConsumeWorkload { poison_every: 100, ..consume(CONSUME_POISON, 300_000, 1_000) },
        ConsumeWorkload { reader: Reader::Official, ..consume(CONSUME_OFFICIAL, 100_000, 1_000) },
        // Few events, because each transaction takes as long as its round trips.
        ConsumeWorkload {
            reader: Reader::Official,
            database_millis: 3,
            ..consume(CONSUME_FAR_OFFICIAL, 10_000, 1_000)
        },
        durable(consume(CONSUME_DURABLE, 500_000, 1_000)),
        ConsumeWorkload {
            reader: Reader::Official,
            ..durable(consume(CONSUME_DURABLE_OFFICIAL, 100_000, 1_000))
        },
    ]
}

fn publishers(size: Size) -> Vec<Publishing> {
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
        Publishing { name, options, keeping: Keeping::Nothing }
    };
    let threads = |it: Publishing| {
        let options = PublishOptions { threads: 2, ..it.options };
        Publishing { options, ..it }
    };
    let keys = |keys, it: Publishing| {
        let options = PublishOptions { keys, ..it.options };
        Publishing { options, ..it }
    };
    let subscribed = |it| Publishing { keeping: Keeping::Subscription, ..it };
    vec![
        publisher(BARE[0], Client::Tonic, 300_000, 1, 100),
        publisher(BARE[1], Client::Tonic, 300_000, 1, 400),
        threads(publisher(BARE[2], Client::Tonic, 300_000, 1, 400)),
        publisher("bare-10", Client::Tonic, 1_000_000, 10, 100),
        publisher("bare-100", Client::Tonic, 1_000_000, 100, 100),
        publisher("raw-1", Client::Raw, 300_000, 1, 400),
        publisher("raw-100", Client::Raw, 1_000_000, 100, 100),
        subscribed(publisher("raw-100-subscribed", Client::Raw, 1_000_000, 100, 100)),
        publisher("own-1", Client::Own, 300_000, 1, 256),
        publisher("own-10", Client::Own, 1_000_000, 10, 100),
        publisher("own-100", Client::Own, 1_000_000, 100, 100),
        threads(publisher(OFFICIAL, Client::Official, 100_000, 1, 1_000)),
        keys(1_000, threads(publisher("official-hot-keys", Client::Official, 300_000, 1, 20_000))),
        keys(1, threads(publisher("official-single-key", Client::Official, 300_000, 1, 20_000))),
    ]
}

/// Runs the suite.
pub fn execute(options: &SuiteOptions) -> Result<(), Failure> {
    let relay = match &options.relay {
        Some(relay) => relay.clone(),
        None => default_binary()?,
    };
    // The server starts before the runtime, because starting a server blocks.
    let server = Server::start(relay.clone(), CommitDurability::Cached)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut results = runtime.block_on(measure(&server, options))?;
    drop(server);
    let is_durable = |it: &ConsumeWorkload| {
        it.commits == CommitDurability::Durable && is_wanted(options, it.name)
    };
    let durable: Vec<ConsumeWorkload> =
        consumers(options.size).into_iter().filter(is_durable).collect();
    if !durable.is_empty() {
        let flushing = Server::start(relay, CommitDurability::Durable)?;
        results.consumers.extend(runtime.block_on(consumed(&flushing, durable))?);
    }
    results.targets = targets::judge(&results);
    report::write(&results, &options.results)?;
    terminal::say(&report::markdown(&results));
    Ok(())
}

fn is_wanted(options: &SuiteOptions, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|text| name.contains(text))
}

async fn consumed(
    server: &Server,
    consumers: Vec<ConsumeWorkload>,
) -> Result<Vec<ConsumeResult>, Failure> {
    let mut all = Vec::new();
    for consumer in consumers {
        terminal::progress(consumer.name);
        all.push(consume::run(server, consumer).await?);
    }
    Ok(all)
}

/// Returns the relay beside this program.
pub fn default_binary() -> Result<PathBuf, Failure> {
    let relay = std::env::current_exe()?.with_file_name("walrelay");
    if relay.is_file() {
        return Ok(relay);
    }
    Err(format!("{} does not exist: build it, or give --relay", relay.display()).into())
}

async fn measure(server: &Server, options: &SuiteOptions) -> Result<Results, Failure> {
    let size = options.size;
    let arguments = &options.relay_arg;
    let is_wanted = |name: &str| is_wanted(options, name);
    let mut results = Results {
        machine: Machine::here(server),
        size,
        relay_arguments: arguments.clone(),
        note: options.note.clone(),
        load_before: machine::load(),
        drains: Vec::new(),
        lives: Vec::new(),
        sharded: Vec::new(),
        traced: Vec::new(),
        outages: Vec::new(),
        again: Vec::new(),
        publishers: Vec::new(),
        consumers: Vec::new(),
        applied_live: Vec::new(),
        targets: Vec::new(),
    };
    for publishing in publishers(size).into_iter().filter(|it| is_wanted(it.name)) {
        terminal::progress(publishing.name);
        let mut rounds = Vec::new();
        for _ in 0..size.rounds() {
            rounds.push(clients::measure(publishing).await?);
        }
        results.publishers.push(Published { publishing, rounds });
    }
    results.lives = lives(server, size, is_wanted, arguments).await?;
    for drain in drains(size).into_iter().filter(|drain| is_wanted(drain.name)) {
        terminal::progress(drain.name);
        results.drains.push(drain::run(server, drain, arguments).await?);
    }
    for divided in divisions(size).into_iter().filter(|it| is_wanted(it.name)) {
        terminal::progress(divided.name);
        results.sharded.push(shards::run(server, divided, arguments).await?);
    }
    for backlog in traced(size).into_iter().filter(|it| is_wanted(it.name)) {
        terminal::progress(backlog.name);
        results.traced.push(traced::run(server, backlog, arguments).await?);
    }
    for outage in outages(size).into_iter().filter(|outage| is_wanted(outage.name)) {
        terminal::progress(outage.name);
        results.outages.push(outage::run(server, outage, arguments).await?);
    }
    if [REPLAY, BACKFILL, RESET].into_iter().any(is_wanted) {
        terminal::progress("again");
        let count = size.rows(1_000_000);
        let rows = Rows { count, per_transaction: 10, aggregates: 1_000, payload_bytes: 200 };
        results.again = republish::run(server, rows, arguments).await?;
    }
    let is_cached =
        |it: &ConsumeWorkload| it.commits == CommitDurability::Cached && is_wanted(it.name);
    let cached = consumers(size).into_iter().filter(is_cached).collect();
    results.consumers = consumed(server, cached).await?;
    if is_wanted(CONSUME_STEADY) {
        terminal::progress(CONSUME_STEADY);
        let seconds = size.steady_seconds();
        let steady = SteadyWorkload {
            name: CONSUME_STEADY,
            rows_per_second: 1_000,
            seconds,
            delay_millis: 0,
        };
        results.applied_live.push(consume_live::run(server, steady).await?);
    }
    Ok(results)
}

/// Measures rows that are published while they are inserted.
async fn lives(
    server: &Server,
    size: Size,
    is_wanted: impl Fn(&str) -> bool,
    arguments: &[String],
) -> Result<Vec<Live>, Failure> {
    let (seconds, mut measured) = (size.steady_seconds(), Vec::new());
    for (name, delay_millis) in [(STEADY, 0), ("steady-2000-50ms", 50)] {
        if is_wanted(name) {
            terminal::progress(name);
            let steady = SteadyWorkload { name, rows_per_second: 2_000, seconds, delay_millis };
            measured.push(live::steady(server, steady, arguments).await?);
        }
    }
    if is_wanted("burst") {
        terminal::progress("burst");
        let count = size.rows(100_000);
        let rows = Rows { count, per_transaction: 10, aggregates: 1_000, payload_bytes: 200 };
        let burst = BurstWorkload { name: "burst", rows, idle: size.idle() };
        measured.push(live::burst(server, burst, arguments).await?);
    }
    Ok(measured)
}

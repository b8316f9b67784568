//! Measures how fast a subscription's events are applied: by the consumer, and by a loop on
//! Google's subscriber that runs one transaction per message.
//!
//! The relay fills the subscription, so the messages are the same as in production. The time runs
//! from the start of the process to the last commit.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::Subscriber;
use google_cloud_pubsub::model::Message;
use google_cloud_pubsub::subscriber::handler::Handler;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::Client;
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::process::clean_command;
use walrelay_testkit::proxy::{Network, Proxy};

use crate::database::{CommitDurability, Database, Rows, Server};
use crate::drain::{start_relay, wait_stored};
use crate::failure::Failure;
use crate::process::{Measured, Output, Process, Usage};
use crate::sink::{Keeping, SUBSCRIPTION, Sink, SinkOptions};
use crate::terminal;

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A run fails when no event is applied for this long.
const STALL: Duration = Duration::from_secs(60);
/// The number of concurrent transactions, for both readers.
const WORKERS: usize = 4;

/// A batch handler that keeps the newest state of each key, as a projection does. `events` counts
/// applied events, so an event applied twice is noticed.
const HANDLER: &str = "
CREATE TABLE bench_state (id text PRIMARY KEY, version bigint NOT NULL, events bigint NOT NULL, text text);
CREATE TABLE bench_seen (event_id text PRIMARY KEY);
CREATE FUNCTION bench_apply(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(events) AS e WHERE e.version % poison_every() = poison_every() - 1) THEN
    RAISE EXCEPTION 'poison' USING ERRCODE = '22000';
  END IF;
  INSERT INTO bench_state AS s (id, version, events, text)
  SELECT e.aggregate_id, max(e.version), count(*), max(e.payload ->> 'text')
    FROM unnest(events) AS e GROUP BY e.aggregate_id ORDER BY e.aggregate_id
  ON CONFLICT (id) DO UPDATE
     SET version = excluded.version, events = s.events + excluded.events, text = excluded.text;
END $$;";

/// Computes the average number of events per transaction. Each reader inserts one row per event, so
/// all rows of one transaction share an `xmin`.
const EVENTS_PER_TRANSACTION: &str = "
  SELECT (count(*) / count(DISTINCT x)::numeric)::float8
    FROM (SELECT xmin::text AS x FROM app_inbox UNION ALL SELECT xmin::text FROM bench_seen) AS seen";

/// A backlog of events and the reader that applies them.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ConsumeWorkload {
    pub(crate) name: &'static str,
    pub(crate) reader: Reader,
    #[serde(skip)]
    pub(crate) rows: Rows,
    /// One event in this many fails. 0 means that no event fails.
    pub(crate) poison_every: u32,
    /// The delay added to each round trip to the database, in milliseconds.
    pub(crate) database_millis: u64,
    /// Selects the server that has the database.
    #[serde(skip)]
    pub(crate) commits: CommitDurability,
    /// The number of processes that share the subscription.
    pub(crate) instances: u32,
    pub(crate) rounds: u32,
}

/// The program that reads the subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reader {
    Walrelay,
    /// Google's subscriber, with one transaction per message.
    Official,
}

/// A workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConsumeResult {
    #[serde(flatten)]
    pub(crate) consume: ConsumeWorkload,
    pub(crate) events: u32,
    /// The commit settings and the commit time that the server reports.
    pub(crate) server: String,
    pub(crate) rounds_measured: Vec<Measured>,
    /// The average number of events in a transaction, one value per round.
    pub(crate) events_per_transaction: Vec<f64>,
}

/// Fills a subscription and applies it, once per round.
pub(crate) async fn run(
    server: &Server,
    consume: ConsumeWorkload,
) -> Result<ConsumeResult, Failure> {
    let (mut rounds_measured, mut events_per_transaction) = (Vec::new(), Vec::new());
    let mut commits = String::new();
    for _ in 0..consume.rounds {
        let mut database = server.create(&consume.name.replace('-', "_")).await?;
        commits = database.commits().await?;
        database.load(consume.rows).await?;
        rounds_measured.push(round(server, &mut database, consume).await?);
        let row = database.client().query_one(EVENTS_PER_TRANSACTION, &[]).await?;
        events_per_transaction.push(row.try_get(0)?);
        server.remove(database).await?;
    }
    let events = consume.rows.count;
    Ok(ConsumeResult { consume, events, server: commits, rounds_measured, events_per_transaction })
}

async fn round(
    server: &Server,
    database: &mut Database,
    consume: ConsumeWorkload,
) -> Result<Measured, Failure> {
    let events = consume.rows.count;
    let sink = fill(server, database, events).await?;
    set_up(server, database, consume.poison_every, &sink).await?;
    // The checkpoint writes the loaded data now, so that this work does not fall into the measured
    // time.
    database.client().batch_execute("CHECKPOINT").await?;

    let proxy = Proxy::start(&database.address()?).await;
    proxy.set(Network::Delayed(Duration::from_millis(consume.database_millis) / 2));
    let url = match consume.database_millis {
        0 => database.url().to_owned(),
        _ => database.url_at(&proxy.address().to_string())?,
    };
    let mut readers = Vec::new();
    for _ in 0..consume.instances {
        readers.push(match consume.reader {
            Reader::Walrelay => start_consumer(server, &url, &sink, &[])?,
            Reader::Official => start_official(&url, &sink, events)?,
        });
    }
    let elapsed = wait_applied(database.client(), &readers, consume).await?;
    let mut usage = Usage::default();
    for mut reader in readers {
        usage = usage.with(reader.usage()?);
        reader.terminate().await?;
    }
    drop(proxy);
    Ok(Measured::new(events, elapsed, usage))
}

/// Starts a sink with a subscription. The relay publishes the loaded rows into it.
pub async fn fill(server: &Server, database: &mut Database, events: u32) -> Result<Sink, Failure> {
    let slot = database.copy_slot().await?;
    let keeping = SinkOptions { keeping: Keeping::Subscription, ..SinkOptions::default() };
    let mut sink = Sink::start(keeping).await?;
    let relay = start_relay(server.relay(), database, &slot, &sink, &[])?;
    wait_stored(&mut sink, std::slice::from_ref(&relay), events).await?;
    relay.terminate().await?;
    Ok(sink)
}

/// Creates the consumer with a handler that fails on one event in `poison_every`. With 0 the
/// handler never fails.
pub async fn set_up(
    server: &Server,
    database: &Database,
    poison_every: u32,
    sink: &Sink,
) -> Result<(), Failure> {
    let mut init = clean_command(server.relay());
    init.args(["consumer", "init", "bench", "--subscription", SUBSCRIPTION]);
    init.args(["--database-url", database.url()]).env("PUBSUB_EMULATOR_HOST", sink.address());
    let init = Process::start("walrelay consumer init", init, Output::Log)?;
    init.finish(Duration::from_secs(60)).await?;
    let every = if poison_every == 0 { i64::MAX } else { poison_every.into() };
    let poison = format!(
        "CREATE FUNCTION poison_every() RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT {every}'"
    );
    database.client().batch_execute(&poison).await?;
    Ok(database.client().batch_execute(HANDLER).await?)
}

pub(crate) fn start_consumer(
    server: &Server,
    url: &str,
    sink: &Sink,
    options: &[&str],
) -> Result<Process, Failure> {
    let mut command = clean_command(server.relay());
    command.args(["consumer", "run", "bench", "--handler", "bench_apply", "--log-format", "text"]);
    // A failing event is dead after one attempt and does not block its key. The run measures the
    // cost of failures, not the back-off.
    command.args(["--max-attempts", "1", "--on-dead", "continue", "--database-url", url]);
    command.args(options).env("PUBSUB_EMULATOR_HOST", sink.address());
    Process::start("walrelay consumer run", command, Output::Log)
}

fn start_official(url: &str, sink: &Sink, events: u32) -> Result<Process, Failure> {
    let mut command = clean_command(std::env::current_exe()?);
    command.args(["subscribe", "--url", url, "--sink", &sink.address()]);
    command.args(["--events", &events.to_string(), "--deduplicate"]);
    Process::start("the subscriber", command, Output::Log)
}

/// Waits until every event was applied exactly once.
async fn wait_applied(
    client: &Client,
    readers: &[Process],
    consume: ConsumeWorkload,
) -> Result<Duration, Failure> {
    let first = readers.first().ok_or("somebody has to read")?;
    let poison = match consume.poison_every {
        0 => 0,
        every => (0..consume.rows.count).filter(|version| version % every == every - 1).count(),
    };
    let wanted = i64::from(consume.rows.count) - i64::try_from(poison)?;
    // A sequence is cheap to read but advances before the commit. The exact count is therefore
    // queried only when the sequence has reached the goal.
    let nearly = match consume.reader {
        Reader::Walrelay => "SELECT last_value FROM app_inbox_arrival_seq",
        Reader::Official => "SELECT coalesce(sum(events), 0)::bigint FROM bench_state",
    };
    let exactly = "SELECT coalesce(sum(events), 0)::bigint FROM bench_state";
    let (mut seen, mut seen_at) = (0, Instant::now());
    loop {
        let mut applied: i64 = client.query_one(nearly, &[]).await?.get(0);
        if applied >= i64::from(consume.rows.count) {
            applied = client.query_one(exactly, &[]).await?.get(0);
            if applied >= wanted {
                return match applied == wanted {
                    true => Ok(first.started().elapsed()),
                    false => Err(format!("{applied} effects of {wanted} events").into()),
                };
            }
        }
        if applied != seen {
            (seen, seen_at) = (applied, Instant::now());
        }
        readers.iter().try_for_each(Process::check_alive)?;
        if seen_at.elapsed() > STALL {
            return Err(format!("{applied} of {wanted} events were applied, and then none").into());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The loop that the consumer is compared with.
#[derive(Debug, Clone, Args)]
pub struct SubscribeOptions {
    /// The database.
    #[arg(long)]
    url: String,
    /// Where the sink is.
    #[arg(long)]
    sink: String,
    /// Events to apply [default: no end].
    #[arg(long)]
    events: Option<u32>,
    /// Apply an event only if its id is not in a table yet.
    #[arg(long)]
    deduplicate: bool,
}

/// Applies each message in its own transaction, and the messages of a key one after the other.
pub fn execute(options: &SubscribeOptions) -> Result<(), Failure> {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::abort();
    });
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    runtime.block_on(subscribe(options))
}

async fn subscribe(options: &SubscribeOptions) -> Result<(), Failure> {
    walrelay_pubsub::install_crypto_provider();
    let applied = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    let mut queues = Vec::new();
    for _ in 0..WORKERS {
        let (queue, receiver) = mpsc::channel(1_000);
        queues.push(queue);
        workers.spawn(work(options.clone(), receiver, Arc::clone(&applied)));
    }
    let subscriber = Subscriber::builder()
        .with_endpoint(format!("http://{}", options.sink))
        .with_credentials(anonymous::Builder::new().build())
        .build()
        .await?;
    let mut stream = subscriber.subscribe(SUBSCRIPTION).build();
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    let events = options.events.unwrap_or(u32::MAX);
    while applied.load(Ordering::Relaxed) < events {
        let Some(received) = stream.next().await else { break };
        let (message, handler) = received?;
        let number = hash.hash_one(&message.ordering_key) % u64::try_from(WORKERS)?;
        let queue = queues.get(usize::try_from(number)?).ok_or("a worker for each remainder")?;
        queue.send((message, handler)).await?;
    }
    drop(queues);
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    terminal::say("done");
    std::future::pending().await
}

const SEEN: &str = "INSERT INTO bench_seen VALUES ($1) ON CONFLICT DO NOTHING";
const APPLY: &str = "
  INSERT INTO bench_state AS s VALUES ($1, $2, 1, $3)
  ON CONFLICT (id) DO UPDATE
     SET version = excluded.version, events = s.events + 1, text = excluded.text";

async fn work(
    options: SubscribeOptions,
    mut queue: mpsc::Receiver<(Message, Handler)>,
    applied: Arc<AtomicU32>,
) -> Result<(), Failure> {
    let mut client = TestClient::try_connect(&options.url).await?;
    let (seen, apply) = (client.prepare(SEEN).await?, client.prepare(APPLY).await?);
    while let Some((message, handler)) = queue.recv().await {
        let attributes: BTreeMap<&str, &str> = message
            .attributes
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let of = |name| attributes.get(name).copied().unwrap_or_default();
        let version: i64 = of("version").parse()?;
        let payload: serde_json::Value = serde_json::from_slice(&message.data)?;
        let transaction = client.transaction().await?;
        let is_new =
            !options.deduplicate || transaction.execute(&seen, &[&of("event_id")]).await? == 1;
        if is_new {
            let text = payload["text"].as_str();
            transaction.execute(&apply, &[&of("aggregate_id"), &version, &text]).await?;
        }
        transaction.commit().await?;
        handler.ack();
        applied.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

//! `walrelay demo`: the whole pipeline, from a business table to a read model, around the real
//! relay.
//!
//! ```text
//! producer ──▶ orders, outbox ──▶ the relay ──▶ embedded Pub/Sub ──▶ inbox ──▶ read model
//!    │             │                                   └──▶ subscriber            │
//!    └─ committed rows ────────────────────────────────────▶ compared ◀───────────┘
//! ```
//!
//! The relay is `walrelay run`, a process of its own. The outbox and the read model are in two databases
//! of one private Postgres.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use walrelay_emulator::{Emulator, Options, SubscriptionOptions};
use walrelay_errors::{Chain, Code};
use walrelay_outbox_admin::InitOptions;
use walrelay_outbox_store::{Outbox, Shard};
use walrelay_pg_client::{ConnectConfig, PgEnv, SqlClient, connect_sql, own_table};
use walrelay_private_postgres::{Installation, PrivatePostgres};
use walrelay_pubsub::Endpoint;
use walrelay_relay::shutdown::Shutdown;

use crate::config::Checks;
use crate::demo::{
    CREATE_ORDERS, Comparison, DEAD, DemoOutput, Ledger, ProducedRows, ReadModel, RelayProcess,
    Sum, produce, strike, subscribe,
};
use crate::error::Error;
use crate::options::choices::Verbosity;
use crate::output::print;
use crate::plan::Plan;

const PROJECT: &str = "demo";
const TOPIC: &str = "projects/demo/topics/orders.events";
const SUBSCRIPTION: &str = "projects/demo/subscriptions/demo";
const INBOX_SUBSCRIPTION: &str = "projects/demo/subscriptions/order_state";

/// Longest time to wait for rows after the producer stops. Rows that arrive later count as lost.
const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// Run everything embedded, with a kill, an outage and a bad row.
///
/// Starts Postgres, Pub/Sub, a producer, the relay, a consumer and a checker. The relay is killed, Pub/Sub is away for ten seconds, and one row can never be published. Prints what arrives and
/// checks order and completeness; ends with a summary, and with 0 only when nothing was lost and nothing was out of
/// order.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Demo",
    after_help = "Examples:\n  walrelay demo --quiet\n  walrelay demo --calm --rows 100000 --rate 5000"
)]
pub(crate) struct Demo {
    #[command(flatten)]
    rows: ProducedRows,
    /// Let nothing go wrong.
    #[arg(long)]
    calm: bool,
}

impl Demo {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let output = match checks.verbosity {
            Verbosity::Quiet => DemoOutput::Summary,
            Verbosity::Normal | Verbosity::Verbose => DemoOutput::Messages,
        };
        Some(Plan::new(async move |shutdown| Box::pin(demo(&self, output, shutdown)).await))
    }
}

/// Runs until `shutdown` is requested, or the requested number of rows has arrived and everything has
/// gone wrong that shall. Prints the result.
///
/// # Errors
///
/// Something could not be started, or a row was lost or out of order.
async fn demo(demo: &Demo, output: DemoOutput, shutdown: &Shutdown) -> Result<(), Error> {
    // Starting a server blocks this thread, but nothing else runs yet.
    let installation = Installation::newest(&[]).map_err(|error| Error::Refused {
        code: Code::DemoFailed,
        what: Chain(&error).to_string(),
        fix: Some(
            "install a Postgres server, or run `make demo` in a clone, which fetches one".into(),
        ),
    })?;
    let postgres = PrivatePostgres::start(&installation, &[]).map_err(demo_error)?;
    let url = postgres.url("postgres");
    let mut servers = JoinSet::new();
    let (emulator, pubsub) = embedded_pubsub(&mut servers).await?;
    let database = prepare(&url).await?;
    print(&format!(
        "Postgres {} at {url}\nPub/Sub at PUBSUB_EMULATOR_HOST={pubsub}\n",
        installation.version
    ))?;

    let ledger = Arc::new(Ledger::default());
    let stop = Shutdown::new();
    let mut relay = RelayProcess::new(url.clone(), pubsub.to_string(), PROJECT);
    relay.start().map_err(relay_error)?;
    let endpoint = Endpoint::emulator(&pubsub.to_string()).map_err(demo_error)?;
    let read_model =
        ReadModel::create(|name| postgres.url(name), INBOX_SUBSCRIPTION, endpoint).await?;
    let mut consumer = JoinSet::new();
    consumer.spawn(read_model.keep(stop.clone()));
    servers.spawn({
        let (ledger, host) = (Arc::clone(&ledger), format!("http://{pubsub}"));
        async move {
            if let Err(error) = subscribe(&host, SUBSCRIPTION, &ledger, output).await {
                tracing::error!(%error, "the subscriber stopped");
            }
        }
    });

    let began = Instant::now();
    let faults = async {
        match demo.calm {
            true => Ok(()),
            false => strike(&mut relay, &emulator, &database, &ledger).await,
        }
    };
    tokio::select! {
        done = async { tokio::try_join!(produce(&url, &demo.rows, &ledger), faults) } => drop(done?),
        () = shutdown.requested() => {}
    }
    let produced_in = began.elapsed();
    // A stop may have come while things went wrong.
    emulator.clear_faults();
    relay.start().map_err(relay_error)?;
    arrival(&ledger).await;
    let comparison = read_model.compare(ARRIVAL_MAX).await?;
    let dead = database.query_one(&*DEAD, &[]).await.map_err(demo_error)?.get(0);
    database.close().await;
    read_model.close().await;
    stop.request();
    for ended in consumer.join_all().await {
        ended.map_err(Error::Inbox)?;
    }
    let result = DemoResult { sum: ledger.sum(), produced_in, comparison, dead };
    print(&result.text())?;
    match result.is_as_promised() {
        true => Ok(()),
        false => Err(Error::refused(Code::DemoFailed, "the promise was broken".to_owned())),
    }
}

/// Starts Pub/Sub with a topic, and with the subscriptions of the subscriber and the consumer.
async fn embedded_pubsub(servers: &mut JoinSet<()>) -> Result<(Emulator, SocketAddr), Error> {
    let io = |source| Error::Io { action: "listen on 127.0.0.1".into(), source };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
    let address = listener.local_addr().map_err(io)?;
    let emulator = Emulator::new(Options::default());
    emulator.create_topic(TOPIC).map_err(refused)?;
    for subscription in [SUBSCRIPTION, INBOX_SUBSCRIPTION] {
        let options = SubscriptionOptions::default();
        emulator.create_subscription(subscription, TOPIC, options).map_err(refused)?;
    }
    let served = emulator.clone();
    servers.spawn(async move { served.serve(listener, std::future::pending()).await });
    Ok((emulator, address))
}

/// Creates tables, publication and slot, as `walrelay init` does, and a business table.
/// Returns the connection.
async fn prepare(url: &str) -> Result<SqlClient, Error> {
    let connect = ConnectConfig::parse(url, &PgEnv::default()).map_err(|_| unfit("the URL"))?;
    let client = connect_sql(&connect).await?;
    let outbox = Outbox {
        slot: "walrelay".into(),
        publication: "walrelay".into(),
        tables: vec![own_table("app_outbox")],
        shard: Shard::WHOLE,
    };
    walrelay_outbox_admin::init(&client, &InitOptions::new(outbox)).await?;
    client.batch_execute(&CREATE_ORDERS).await.map_err(demo_error)?;
    Ok(client)
}

/// Waits until everything committed has arrived.
async fn arrival(ledger: &Ledger) {
    let began = Instant::now();
    while !ledger.is_complete() && began.elapsed() < ARRIVAL_MAX {
        sleep(Duration::from_millis(20)).await;
    }
}

struct DemoResult {
    sum: Sum,
    /// How long the producer wrote.
    produced_in: Duration,
    comparison: Comparison,
    /// Rows in dispatch state that cannot be published.
    dead: i64,
}

impl DemoResult {
    fn is_as_promised(&self) -> bool {
        self.sum.lost() == 0 && self.sum.out_of_order == 0 && self.comparison.is_equal()
    }

    fn text(&self) -> String {
        let Self { sum, produced_in, comparison, dead } = self;
        let Comparison { orders, different, applied, missing, repeated } = comparison;
        let dead = match dead {
            0 => String::new(),
            dead => format!(
                "dead       {dead} row that no topic can take, on record and in nobody's way\n"
            ),
        };
        format!(
            "\ncommitted  {} rows in {:.1} s, and {} more were rolled back\n\
             delivered  {} of them: lost {}, out of order {}, delivered twice {}\n\
             applied    {applied} events: not applied {missing}, applied twice {repeated}; {} of {orders} orders are as \
             in the source\n{dead}",
            sum.committed,
            produced_in.as_secs_f64(),
            sum.rolled_back,
            sum.delivered,
            sum.lost(),
            sum.out_of_order,
            sum.duplicates,
            orders - different
        )
    }
}

fn relay_error(source: io::Error) -> Error {
    Error::Io { action: "start the relay".into(), source }
}

fn demo_error(error: impl std::error::Error + 'static) -> Error {
    Error::refused(Code::DemoFailed, Chain(&error).to_string())
}

fn refused(status: impl std::fmt::Display) -> Error {
    Error::refused(Code::DemoFailed, status.to_string())
}

fn unfit(what: &str) -> Error {
    Error::refused(Code::DemoFailed, format!("{what} of the demo cannot be read"))
}

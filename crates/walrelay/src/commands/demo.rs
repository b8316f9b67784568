//! `walrelay demo`: the whole pipeline, from a business table to a read model, around the real
//! relay.
//!
//! ```text
//! producer ──▶ orders, outbox ──▶ the relay ──▶ embedded Pub/Sub ──▶ inbox ──▶ read model
//!    │             │                                   └──▶ subscriber            │
//!    └─ committed rows ────────────────────────────────────▶ compared ◀───────────┘
//! ```
//!
//! The demo starts the relay as `walrelay run` does, from an equivalent configuration. The outbox
//! and the read model are in two databases of one private Postgres.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, FromArgMatches as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use walrelay_emulator::{Emulator, Options, SubscriptionOptions};
use walrelay_errors::{Chain, Code};
use walrelay_outbox_admin::InitOptions;
use walrelay_outbox_store::{Outbox, Shard};
use walrelay_pg_client::{ConnectConfig, PgEnv, connect_sql, own_table};
use walrelay_private_postgres::{Installation, PrivatePostgres};
use walrelay_pubsub::Endpoint;
use walrelay_relay::shutdown::Shutdown;

use super::run::{Run, RunConfig, relay};
use crate::config::{Checks, Environment, Program};
use crate::demo::{
    CREATE_ORDERS, Comparison, DemoOutput, Ledger, ProducedRows, ReadModel, produce, subscribe,
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

/// Run everything embedded: Postgres, Pub/Sub, a producer, the relay, a checker.
///
/// Prints what arrives and checks order and completeness; ends with a summary, and with 0 only
/// when nothing was lost and nothing was out of order.
#[derive(Debug, Args)]
#[command(next_help_heading = "Demo", after_help = "Example:\n  walrelay demo --rows 1000")]
pub(crate) struct Demo {
    #[command(flatten)]
    rows: ProducedRows,
}

impl Demo {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let output = match checks.verbosity {
            Verbosity::Quiet => DemoOutput::Summary,
            Verbosity::Normal | Verbosity::Verbose => DemoOutput::Messages,
        };
        let program = checks.program;
        Some(Plan::new(async move |shutdown| {
            Box::pin(demo(&self.rows, output, program, shutdown)).await
        }))
    }
}

/// Runs until `shutdown` is requested or the requested number of rows has arrived, and prints the
/// result.
///
/// # Errors
///
/// Something could not be started, or a row was lost or out of order.
async fn demo(
    rows: &ProducedRows,
    output: DemoOutput,
    program: Program,
    shutdown: &Shutdown,
) -> Result<(), Error> {
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
    let io = |source| Error::Io { action: "listen on 127.0.0.1".into(), source };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
    let pubsub = listener.local_addr().map_err(io)?;

    let emulator = Emulator::new(Options::default());
    emulator.create_topic(TOPIC).map_err(refused)?;
    for subscription in [SUBSCRIPTION, INBOX_SUBSCRIPTION] {
        let options = SubscriptionOptions::default();
        emulator.create_subscription(subscription, TOPIC, options).map_err(refused)?;
    }
    let mut servers = JoinSet::new();
    servers.spawn({
        let emulator = emulator.clone();
        async move { emulator.serve(listener, std::future::pending()).await }
    });
    prepare(&url).await?;
    print(&format!(
        "Postgres {} at {url}\nPub/Sub at PUBSUB_EMULATOR_HOST={pubsub}\n",
        installation.version
    ))?;

    let ledger = Arc::new(Ledger::default());
    let stop = Shutdown::new();
    let mut services = JoinSet::new();
    let relay_config = relay_config(program, &url, &pubsub.to_string())?;
    services.spawn({
        let stop = stop.clone();
        async move { Box::pin(relay(relay_config, &stop)).await }
    });
    let endpoint = Endpoint::emulator(&pubsub.to_string()).map_err(demo_error)?;
    let read_model =
        ReadModel::create(|database| postgres.url(database), INBOX_SUBSCRIPTION, endpoint).await?;
    let kept = read_model.keep(stop.clone());
    services.spawn(async move { kept.await.map_err(Error::Inbox) });
    servers.spawn({
        let (ledger, host) = (Arc::clone(&ledger), format!("http://{pubsub}"));
        async move {
            if let Err(error) = subscribe(&host, SUBSCRIPTION, &ledger, output).await {
                tracing::error!(%error, "the subscriber stopped");
            }
        }
    });

    let began = Instant::now();
    let producing = produce(&url, rows, &ledger);
    tokio::select! {
        produced = producing => produced?,
        () = shutdown.requested() => {}
        Some(ended) = services.join_next() => return service_ended(ended),
    }
    let (produced_in, arrived_after) = (began.elapsed(), arrival(&ledger).await);
    let comparison = read_model.compare(ARRIVAL_MAX).await?;
    read_model.close().await;
    stop.request();
    while let Some(ended) = services.join_next().await {
        service_ended(ended)?;
    }
    report(&ledger, DemoTimes { produced_in, arrived_after }, comparison)
}

/// Creates tables, publication and slot, as `walrelay init` does, and a business table.
async fn prepare(url: &str) -> Result<(), Error> {
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
    client.close().await;
    Ok(())
}

fn relay_config(program: Program, url: &str, pubsub: &str) -> Result<RunConfig, Error> {
    let variables = [("PUBSUB_EMULATOR_HOST", pubsub), ("PUBSUB_PROJECT_ID", PROJECT)];
    let environment = Environment::new(variables);
    let arguments = ["walrelay", "run", "--database-url", url, "--project", PROJECT];
    let matches = (program.command)().try_get_matches_from(arguments);
    let matches = matches.map_err(|_| unfit("the options"))?;
    let matches = matches.subcommand_matches("run").ok_or_else(|| unfit("the command"))?;
    let run = Run::from_arg_matches(matches).map_err(|_| unfit("the options"))?;
    let mut checks = Checks::new(&environment, program);
    let config = run.config(&mut checks);
    config.ok_or(Error::Config(checks.problems))
}

/// Waits until everything committed has arrived. Returns the waiting time.
async fn arrival(ledger: &Ledger) -> Duration {
    let began = Instant::now();
    while !ledger.is_complete() && began.elapsed() < ARRIVAL_MAX {
        sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

/// The times of a demo.
struct DemoTimes {
    /// How long the producer wrote.
    produced_in: Duration,
    /// How long the last row took after its commit.
    arrived_after: Duration,
}

fn report(
    ledger: &Ledger,
    DemoTimes { produced_in, arrived_after }: DemoTimes,
    comparison: Comparison,
) -> Result<(), Error> {
    let sum = ledger.sum();
    print(&format!(
        "committed {} rows (and rolled {} back) in {:.1} s, delivered {}, lost {}, \
         out of order {}, duplicates {}; the last arrived {:.0} ms after its commit\n",
        sum.committed,
        sum.rolled_back,
        produced_in.as_secs_f64(),
        sum.delivered,
        sum.lost(),
        sum.out_of_order,
        sum.duplicates,
        arrived_after.as_secs_f64() * 1_000.0,
    ))?;
    let Comparison { orders, different, applied, missing, repeated } = comparison;
    print(&format!(
        "applied {applied} events to the read model, not applied {missing}, applied twice {repeated}; \
         {} of {orders} orders are as in the source\n",
        orders - different
    ))?;
    match (sum.lost(), sum.out_of_order, comparison.is_equal()) {
        (0, 0, true) => Ok(()),
        _ => Err(Error::refused(Code::DemoFailed, "the promise was broken".to_owned())),
    }
}

fn service_ended(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    match ended {
        Ok(ended) => ended,
        Err(error) => Err(demo_error(error)),
    }
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

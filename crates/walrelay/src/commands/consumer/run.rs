//! `walrelay consumer run`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep};
use walrelay_core::{Backoff, Random};
use walrelay_errors::{Action, Chain, Code, Coded, ErrorContext};
use walrelay_inbox::{
    Consumer, Dedupe, Health, IdleKeys, InboxError, InboxRetention, Metrics, OnGap, Settings, Until,
};
use walrelay_otlp::Spans;
use walrelay_relay::lifecycle::WaitLog;
use walrelay_relay::seed::random_seed;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::activity::Activity;
use crate::commands::shared::telemetry_export::with_telemetry;
use crate::config::{Checks, ResourceKind};
use crate::error::{Error, explain};
use crate::http::{self, Observed};
use crate::options::values::consumer_name;
use crate::options::{
    ARGUMENTS, ConnectionOptions, ConsumerOptions, EndpointOptions, ProjectOption, PruneKeysOption,
    RetentionOptions, UntilOption,
};
use crate::plan::{CommandEnd, Plan, Service};
use crate::request_spans::TransactionTracer;

/// Delays between attempts to start: the same values that the relay uses between sessions.
const START_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(200), cap: Duration::from_secs(2) };

/// The time in which the database and Pub/Sub must answer first.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Apply a subscription's events to a database, each once, in order per key.
///
/// Calls a SQL function of yours for every batch. Its changes and the record of the event commit together, and only
/// then the message is acknowledged. A service gets each event at least once, in a request of its own. An event that is redelivered is found in the inbox and skipped. If a connection
/// is lost, the consumer reconnects. SIGTERM and SIGINT finish the batches in flight and exit with 0. More instances
/// give more throughput. The database may be behind a pooler.
///
/// With OTEL_EXPORTER_OTLP_ENDPOINT set, traces and metrics are sent to that OpenTelemetry collector.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay consumer run billing --handler shop.apply --database-url postgresql://app@db.example:6543/app\n  \
    walrelay consumer run mails --handler https://mails.example/events --handler-secrets /run/secrets/mails\n  \
    PUBSUB_EMULATOR_HOST=localhost:8085 walrelay consumer run billing --handler shop.apply --until-caught-up"
)]
pub(crate) struct Run {
    /// Name of the consumer, as `consumer init` was given it.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    #[command(flatten)]
    until: UntilOption,
    #[command(flatten)]
    retention: RetentionOptions,
    #[command(flatten)]
    keys: PruneKeysOption,
    #[command(flatten)]
    own: ConsumerOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

pub(crate) struct ConsumerConfig {
    pub(crate) settings: Settings,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) otlp: Option<walrelay_otlp::Settings>,
}

impl Run {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let config = self.config(checks)?;
        let (http, drain_timeout) = (config.http, config.settings.drain_timeout);
        let plan = Plan::new(async move |shutdown| Box::pin(run(config, shutdown)).await);
        Some(plan.ended(CommandEnd::Stopped(Some(Service { http, drain_timeout }))))
    }

    pub(crate) fn config(&self, checks: &mut Checks<'_>) -> Option<ConsumerConfig> {
        let own = &self.own;
        let retention = self.inbox_retention(checks);
        let given = own.subscription.subscription.as_ref().filter(|given| !given.is_empty());
        let kind = ResourceKind::Subscription;
        let subscription =
            given.and_then(|given| checks.full_name("subscription", given, &self.project, kind));
        let effect = checks.effect(&own.handler);
        let connect = checks.connect(&self.connection);
        let endpoint = checks.endpoint(&self.endpoint);
        let http = checks.http(&own.http);
        let otlp = checks.otlp();
        let (effect, handler_timeout) = effect?;
        let settings = Settings {
            consumer: self.name.clone(),
            subscription,
            effect,
            connect: connect?,
            endpoint,
            handler_timeout,
            batch: own.batch,
            workers: own.workers,
            max_lease: own.max_lease,
            max_attempts: own.max_attempts,
            on_dead: own.on_dead,
            on_gap: own.on_gap,
            dedupe: own.dedupe,
            max_in_flight_bytes: own.in_flight.max_in_flight_bytes.0,
            drain_timeout: own.in_flight.drain_timeout,
            until: match self.until.until_caught_up {
                true => Until::CaughtUp { quiet_for: own.quiet_for },
                false => Until::Stopped,
            },
            retention,
        };
        Some(ConsumerConfig { settings, http, otlp })
    }

    fn inbox_retention(&self, checks: &mut Checks<'_>) -> Option<InboxRetention> {
        let (prune_keys, options, own) = (self.keys.prune_keys, &self.retention, &self.own);
        if prune_keys && options.prune_older_than.0.is_none() {
            checks.wrong_or_missing("prune-older-than", "needed by --prune-keys");
        }
        if prune_keys && (own.dedupe == Dedupe::Position || own.on_gap == OnGap::Hold) {
            let allowed =
                "not with --dedupe position or --on-gap hold, which need the positions of all keys";
            checks.wrong_or_missing("prune-keys", allowed);
        }
        let idle_keys = if prune_keys { IdleKeys::Delete } else { IdleKeys::Keep };
        let every = options.prune_interval;
        options.prune_older_than.0.map(|older_than| InboxRetention { older_than, every, idle_keys })
    }
}

/// Runs until `shutdown` is requested, or until the consumer has caught up if the configuration
/// asks for that.
async fn run(mut config: ConsumerConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let consumer = &config.settings.consumer;
    let (metrics, health) = (Metrics::new(consumer), Health::new(consumer));
    let observed = Observed::of_consumer(health.clone(), metrics.clone());
    let (otlp, exported) = (config.otlp.take(), observed.clone());
    let spans_dropped = metrics.spans_dropped.clone();
    let process = ConsumerProcess { config: &config, health, shutdown };
    let work = |spans| process.run(observed, metrics, spans);
    Box::pin(with_telemetry(otlp, exported, spans_dropped, work)).await
}

struct ConsumerProcess<'a> {
    config: &'a ConsumerConfig,
    health: Health,
    shutdown: &'a Shutdown,
}

impl ConsumerProcess<'_> {
    async fn run(
        &self,
        served: Observed,
        metrics: Metrics,
        spans: Option<Spans>,
    ) -> Result<(), Error> {
        log_start(&self.config.settings, self.config.http);
        let _endpoints = http::start(self.config.http, served.clone()).await?;
        let _activity = Activity::CONSUMER.report(served);
        let consumer = tokio::select! {
            biased;
            () = self.shutdown.requested() => return Ok(()),
            prepared = prepare(&self.config.settings, &self.health) => prepared?,
        };
        let consumer = match spans {
            Some(spans) => consumer.traced(Arc::new(TransactionTracer(spans))),
            None => consumer,
        };
        let stop = self.shutdown.requested();
        let running = consumer.run(stop, metrics, self.health.clone());
        Box::pin(running).await.map_err(Error::Inbox)
    }
}

fn log_start(settings: &Settings, http: Option<SocketAddr>) {
    let Settings { consumer, subscription, endpoint, .. } = settings;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        consumer,
        subscription,
        pubsub = %endpoint,
        http = http.map(|it| it.to_string()),
        "the consumer starts"
    );
}

/// Prepares the consumer. Retries temporary errors, and reports the instance as not ready
/// meanwhile.
async fn prepare(settings: &Settings, health: &Health) -> Result<Consumer, Error> {
    let mut random = Random::new(random_seed());
    let (mut failures, mut log) = (0, WaitLog::default());
    let patient_until = Instant::now() + FIRST_ANSWER_TIMEOUT;
    loop {
        let error = match Consumer::prepare(settings.clone()).await {
            Ok(consumer) => {
                health.set_start_problem(None);
                return Ok(consumer);
            }
            Err(error) => error,
        };
        let may_be_early = is_unreachable(&error) && Instant::now() < patient_until;
        if !passes(&error) && !may_be_early {
            return Err(Error::Inbox(error));
        }
        failures += 1;
        let delay = START_BACKOFF.delay(failures, random.next_u32());
        let (error_code, fix) = (error.code().name(), explain::fix(error.code()));
        let cause = Chain(&error);
        if log.is_due(error.code(), Instant::now()) {
            tracing::warn!(error_code, error = %cause, fix, delay_ms = delay.as_millis(), "cannot start yet; trying again");
        }
        health.set_start_problem(Some(Chain(&error).to_string()));
        sleep(delay).await;
    }
}

/// Returns whether the database, Pub/Sub or the source of tokens did not answer. A new machine may have no
/// network yet.
fn is_unreachable(error: &InboxError) -> bool {
    let is_pubsub = matches!(error, InboxError::PubSub(failed) if failed.is_unanswered());
    is_pubsub || error.code() == Code::PostgresUnreachable
}

fn passes(error: &InboxError) -> bool {
    match error.code().action(ErrorContext::FirstStart) {
        Action::Reconnect | Action::StandBy | Action::Wait => true,
        Action::Stop(_) => false,
    }
}

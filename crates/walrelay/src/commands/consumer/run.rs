//! `walrelay consumer run`.

use std::sync::Arc;
use std::time::Duration;

use crate::config::ConsumeConfig;
use crate::error::Error;
use crate::error::explain;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use walrelay_core::{Backoff, Random};
use walrelay_errors::{Action, Chain, Code, Coded, ErrorContext};
use walrelay_inbox::{Consumer, Health, InboxError, Metrics, Settings};
use walrelay_otlp::Spans;
use walrelay_relay::seed::random_seed;
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::telemetry_export::with_telemetry;
use crate::http::{self, Observed};
use crate::request_spans::TransactionTracer;

/// Delays between attempts to start: the same values that the relay uses between sessions.
const START_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(200), cap: Duration::from_secs(2) };

/// The time in which the database and Pub/Sub must answer first.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs until `shutdown` is requested, or until the consumer has caught up if the configuration
/// asks for that.
///
/// # Errors
///
/// Returns the error that ended the consumer.
pub(crate) async fn execute(mut config: ConsumeConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let consumer = &config.settings.consumer;
    let (metrics, health) = (Metrics::new(consumer), Health::new(consumer));
    let observed = Observed::of_consumer(health.clone(), metrics.clone());
    let (otlp, exported) = (config.otlp.take(), observed.clone());
    let spans_dropped = metrics.spans_dropped.clone();
    let process = ConsumerProcess { config: &config, health, shutdown };
    let work = |spans| process.run(observed, metrics, spans);
    Box::pin(with_telemetry(otlp, exported, spans_dropped, work)).await
}

/// The consumer of this process, with its HTTP endpoints.
struct ConsumerProcess<'a> {
    config: &'a ConsumeConfig,
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
        // The tasks end with this function.
        let mut tasks = JoinSet::new();
        if let Some(address) = self.config.http {
            let io = |source| Error::Io { action: format!("listen on {address}"), source };
            let listener = http::listen(address).await.map_err(io)?;
            tasks.spawn(http::serve(listener, served));
        }
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

/// Prepares the consumer. Retries temporary errors, and reports the instance as not ready
/// meanwhile.
async fn prepare(settings: &Settings, health: &Health) -> Result<Consumer, Error> {
    let mut random = Random::new(random_seed());
    let mut failures = 0;
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
        tracing::warn!(error_code, error = %cause, fix, ?delay, "cannot start yet; trying again");
        health.set_start_problem(Some(Chain(&error).to_string()));
        sleep(delay).await;
    }
}

/// Returns whether the database or Pub/Sub did not answer. A new machine may have no network yet.
fn is_unreachable(error: &InboxError) -> bool {
    matches!(error.code(), Code::PostgresUnreachable | Code::PubsubUnreachable)
}

fn passes(error: &InboxError) -> bool {
    match error.code().action(ErrorContext::FirstStart) {
        Action::Reconnect | Action::StandBy | Action::Wait => true,
        Action::Stop(_) => false,
    }
}

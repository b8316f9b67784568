//! `walrelay run`: the relay, with its HTTP endpoints beside it.

use tokio::task::JoinSet;
use walrelay_core::Random;
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::server::Postgres;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;

use crate::config::RunConfig;
use crate::error::Error;
use crate::http;

/// Runs until `shutdown` is requested, or everything is caught up when that was asked for.
///
/// # Errors
///
/// The error that ended it.
pub async fn execute(config: RunConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let (metrics, health) = (Metrics::new(), Health::new());
    // Dropping the set at the end of this function ends its tasks.
    let mut tasks = JoinSet::new();
    if let Some(address) = config.http {
        let io = |source| Error::Listen { address, source };
        let listener = http::listen(address).await.map_err(io)?;
        let observed = http::Observed::of_relay(health.clone(), metrics.clone());
        tasks.spawn(http::serve(listener, observed));
    }
    let publisher =
        GrpcPublisher::connect(&config.settings.pubsub.publisher).map_err(Error::PubSub)?;
    tokio::select! {
        biased;
        () = shutdown.requested() => return Ok(()),
        token = publisher.authenticate() => token.map_err(Error::PubSub)?,
    }
    let Settings { relay, pubsub, until, .. } = &config.settings;
    let settings = SessionSettings::of(relay, pubsub.max_outstanding_requests, *until);
    let server = Postgres::new(&config.settings);
    let random = Random::new(random_seed());
    let supervisor = Supervisor { settings: &settings, server, publisher, metrics, health, random };
    Box::pin(supervisor.run(shutdown)).await.map(drop).map_err(Error::Relay)
}

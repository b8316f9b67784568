//! `walrelay run`.

use tokio::task::JoinSet;
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::shutdown::Shutdown;

use crate::config::RunConfig;
use crate::error::Error;
use crate::http;

/// Runs until `shutdown` is requested, or everything is caught up when that was asked for.
///
/// # Errors
///
/// Whatever ended it otherwise.
pub async fn execute(config: RunConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let (metrics, health) = (Metrics::new(), Health::new());
    // Its tasks end with this function.
    let mut tasks = JoinSet::new();
    if let Some(address) = config.http {
        let io = |source| Error::Io { action: format!("listen on {address}"), source };
        let listener = http::listen(address).await.map_err(io)?;
        let observed = http::Observed { health: health.clone(), metrics: metrics.clone() };
        tasks.spawn(http::serve(listener, observed));
    }
    let publisher =
        GrpcPublisher::connect(&config.settings.pubsub.publisher).map_err(Error::PubSub)?;
    let supervisor = Supervisor { config: &config.settings, publisher, metrics, health };
    supervisor.run(shutdown).await.map_err(Error::Relay)
}

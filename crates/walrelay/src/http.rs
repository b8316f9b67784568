//! `/livez`, `/readyz`, `/metrics` and `/status` for probes, Prometheus and people.
//!
//! Answers only from memory: no request makes the relay query Postgres or Pub/Sub. `connections`
//! bounds the number and the lifetime of connections. Hence a client can neither exhaust memory nor
//! delay the answer to a probe.

mod connections;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use walrelay_core::Heartbeat;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;

use self::connections::{BoundedListener, spare_descriptor};
use crate::error::Error;
use crate::error::explain::DOCUMENTATION;

/// The service that the handlers report on.
#[derive(Debug, Clone)]
pub struct Observed(Arc<dyn Observe>);

trait Observe: std::fmt::Debug + Send + Sync {
    /// Returns the time since the loop's last heartbeat.
    fn silence(&self) -> Duration;
    /// Returns the phase, and the reasons why the service is not ready.
    fn readiness(&self) -> (&'static str, Vec<String>);
    /// Updates the figures that are computed from the state.
    fn update_metrics(&self);
    /// Returns the metrics in Prometheus' format.
    fn metrics_text(&self) -> Result<String, std::fmt::Error>;
    fn registry(&self) -> Arc<Registry>;
    /// Returns the body of `/status`.
    fn status(&self) -> Value;
}

#[derive(Debug)]
struct RelayService(Health, Metrics);

impl Observe for RelayService {
    fn silence(&self) -> Duration {
        self.0.silence()
    }

    fn readiness(&self) -> (&'static str, Vec<String>) {
        let reasons = self.0.reasons_not_ready();
        (self.0.phase().name(), reasons.iter().map(ToString::to_string).collect())
    }

    fn update_metrics(&self) {
        self.1.seconds_since_progress.set(self.0.since_progress().as_secs_f64());
        self.1.set_phase(&self.0.phase());
    }

    fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        self.1.encode()
    }

    fn registry(&self) -> Arc<Registry> {
        self.1.registry()
    }

    fn status(&self) -> Value {
        json!(self.0.status())
    }
}

#[derive(Debug)]
struct ConsumerService(walrelay_inbox::Health, walrelay_inbox::Metrics);

impl Observe for ConsumerService {
    fn silence(&self) -> Duration {
        self.0.silence()
    }

    fn readiness(&self) -> (&'static str, Vec<String>) {
        (self.0.phase().name(), self.0.reasons_not_ready())
    }

    fn update_metrics(&self) {
        self.1.observe(self.0.phase(), self.0.since_progress().as_secs_f64());
    }

    fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        self.1.encode()
    }

    fn registry(&self) -> Arc<Registry> {
        self.1.registry()
    }

    fn status(&self) -> Value {
        self.0.status()
    }
}

impl Observed {
    /// Updates the metrics and returns them in Prometheus' format.
    pub(crate) fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        self.0.update_metrics();
        self.0.metrics_text()
    }

    /// Returns the reasons why the service is not ready.
    pub(crate) fn reasons_not_ready(&self) -> Vec<String> {
        self.0.readiness().1
    }

    /// Updates the metrics and returns their registry.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.update_metrics();
        self.0.registry()
    }

    #[must_use]
    pub fn of_relay(health: Health, metrics: Metrics) -> Self {
        Self(Arc::new(RelayService(health, metrics)))
    }

    #[must_use]
    pub fn of_consumer(health: walrelay_inbox::Health, metrics: walrelay_inbox::Metrics) -> Self {
        Self(Arc::new(ConsumerService(health, metrics)))
    }
}

/// Opens the socket, so that an address in use is reported before anything starts.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Starts the task that serves, if there is an address. Dropping the set stops the task.
pub(crate) async fn start(
    address: Option<SocketAddr>,
    observed: Observed,
) -> Result<JoinSet<io::Result<()>>, Error> {
    let mut tasks = JoinSet::new();
    if let Some(address) = address {
        let io = |source| Error::Listen { address, source };
        tasks.spawn(serve(listen(address).await.map_err(io)?, observed));
    }
    Ok(tasks)
}

/// Serves until it is dropped.
///
/// # Errors
///
/// Accepting connections fails for good.
pub async fn serve(listener: TcpListener, observed: Observed) -> io::Result<()> {
    axum::serve(BoundedListener::new(listener), router(observed)).await
}

/// The served paths. A test compares the deployment manifests with them.
pub const PATHS: [&str; 4] = ["/livez", "/readyz", "/metrics", "/status"];

/// The answer to a person who opens the address.
const INDEX: &str = "\
walrelay

/livez    whether the process works
/readyz   whether it does its job, and what keeps it from it
/metrics  for Prometheus
/status   what it does now, as JSON

";

fn router(observed: Observed) -> Router {
    let [live, ready, counted, status_path] = PATHS;
    Router::new()
        .route("/", get(async || format!("{INDEX}{DOCUMENTATION}\n")))
        .route(live, get(livez))
        .route(ready, get(readyz))
        .route(counted, get(metrics))
        .route(status_path, get(status))
        .with_state(observed)
}

async fn livez(State(observed): State<Observed>) -> Response {
    let silence = observed.0.silence();
    let live = silence <= Heartbeat::SILENCE_MAX;
    let code = if live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(code, &json!({ "live": live, "silent_seconds": silence.as_secs_f64() }))
}

async fn readyz(State(observed): State<Observed>) -> Response {
    let (phase, mut reasons) = observed.0.readiness();
    reasons.extend(descriptors_exhausted());
    let ready = reasons.is_empty();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(code, &json!({ "ready": ready, "phase": phase, "reasons": reasons }))
}

/// Returns why no further connection can be opened. A process without free file descriptors neither
/// connects again nor ends.
fn descriptors_exhausted() -> Option<String> {
    let error = spare_descriptor().err()?;
    Some(format!(
        "this process has no free file descriptor ({error}); raise its limit, for example with ulimit -n 1024"
    ))
}

async fn metrics(State(observed): State<Observed>) -> Response {
    match observed.metrics_text() {
        Ok(text) => {
            let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, form)], text).into_response()
        }
        Err(error) => {
            answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error.to_string() }))
        }
    }
}

async fn status(State(observed): State<Observed>) -> Response {
    answer(StatusCode::OK, &observed.0.status())
}

fn answer(code: StatusCode, body: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

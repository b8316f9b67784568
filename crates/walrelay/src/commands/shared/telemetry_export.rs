//! Sends telemetry while a command runs.

use crate::config::Problem;
use crate::error::Error;
use prometheus_client::metrics::counter::Counter;
use walrelay_errors::Code;
use walrelay_otlp::{Exporter, Figures, Settings, Spans, StartError};

use crate::http::Observed;

/// Runs `work` with a source of spans, and sends the remaining spans and the metrics at the end.
/// Without settings it only runs `work`.
pub(in crate::commands) async fn with_telemetry<F>(
    settings: Option<Settings>,
    observed: Observed,
    spans_dropped: Counter,
    work: impl FnOnce(Option<Spans>) -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let Some(settings) = settings else { return work(None).await };
    // Updates the figures of `/metrics`, and returns their registry.
    let figures: Figures = Box::new(move || observed.registry());
    let started = Exporter::start(settings, figures, spans_dropped);
    let exporter = started.map_err(|error| refused(&error))?;
    let done = work(exporter.spans().cloned()).await;
    exporter.finish().await;
    done
}

fn refused(error: &StartError) -> Error {
    Error::Config(vec![Problem {
        option: "OTEL_EXPORTER_OTLP_…".to_owned(),
        value: None,
        origin: None,
        allowed: error.to_string(),
        code: Code::ConfigurationInvalid,
    }])
}

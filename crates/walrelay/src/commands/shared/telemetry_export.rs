//! Sends telemetry while a command runs.

use walrelay_command_line::config::Problem;
use walrelay_errors::Code;
use walrelay_otlp::{Exporter, Figures, Spans, StartError};

use crate::error::Error;
use crate::http::Observed;

/// Returns a function that updates the figures of `/metrics` and returns their registry.
pub(in crate::commands) fn figures(observed: Observed) -> Figures {
    Box::new(move || observed.registry())
}

/// Runs `work` with a source of spans, and sends the remaining spans and the metrics at the end.
/// Without an exporter it only runs `work`.
///
/// # Errors
///
/// Returns the errors of `work`, or that the exporter could not be started.
pub(in crate::commands) async fn with_telemetry<F>(
    started: Option<Result<Exporter, StartError>>,
    work: impl FnOnce(Option<Spans>) -> F,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let Some(started) = started else { return work(None).await };
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

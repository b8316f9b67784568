//! Tests whether a collector accepts telemetry, for a check before the start.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Code, Status};

use crate::collector::Collector;
use crate::settings::Settings;

/// The reason why a collector would accept nothing. It omits the collector's own text, which may
/// quote a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectorCheckError {
    /// The settings are invalid.
    #[error("cannot be used: {0}")]
    Settings(String),
    /// No server answers, or the server does not speak OTLP over gRPC.
    #[error("does not answer ({0})")]
    Away(&'static str),
    /// The collector requires credentials or permissions.
    #[error("refuses ({0})")]
    Refused(&'static str),
}

/// Sends an empty request, which leaves no trace, and waits at most `patience` for the answer.
pub async fn try_out(settings: Settings, patience: Duration) -> Result<(), CollectorCheckError> {
    let collector = Collector::new(settings);
    let collector = collector.map_err(|error| CollectorCheckError::Settings(error.to_string()))?;
    match timeout(patience, collector.try_out()).await {
        Ok(answer) => answer.map_err(|status| CollectorCheckError::of(&status)),
        Err(_) => Err(CollectorCheckError::Away("in time")),
    }
}

impl CollectorCheckError {
    fn of(status: &Status) -> Self {
        match status.code() {
            Code::Unauthenticated => Self::Refused("UNAUTHENTICATED"),
            Code::PermissionDenied => Self::Refused("PERMISSION_DENIED"),
            Code::Unimplemented => Self::Away("nothing of OTLP over gRPC is there"),
            Code::Unavailable => Self::Away("no connection"),
            Code::Cancelled | Code::DeadlineExceeded => Self::Away("in time"),
            Code::Ok
            | Code::Unknown
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Internal
            | Code::DataLoss => Self::Away("not as a collector does"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collector_says_is_not_repeated() {
        for (code, what) in [
            (Code::Unauthenticated, "refuses (UNAUTHENTICATED)"),
            (Code::Unavailable, "does not answer (no connection)"),
            (Code::Unimplemented, "does not answer (nothing of OTLP over gRPC is there)"),
            (Code::Internal, "does not answer (not as a collector does)"),
        ] {
            let unfit = CollectorCheckError::of(&Status::new(code, "no such token: hunter2"));
            assert_eq!(unfit.to_string(), what);
        }
    }
}

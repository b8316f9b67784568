//! Selects the requests that get a span.

use std::str::FromStr;

use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample as _};

/// The sampling rule for requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Whether the traces of the rows decide, if rows have traces.
    follows_rows: bool,
    root: RootSampler,
}

/// The rule for requests without traces in their rows.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the standard's names")]
pub enum RootSampler {
    AlwaysOn,
    AlwaysOff,
    /// A share of all requests, from 0 to 1.
    TraceIdRatio(f64),
}

/// The name or argument of a sampler is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    #[error(
        "one of parentbased_always_on, parentbased_always_off, parentbased_traceidratio, always_on, \
         always_off, traceidratio"
    )]
    Name,
    #[error("a share from 0 to 1, as in 0.1")]
    Share,
}

impl Sampling {
    /// Parses `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`, with the standard's defaults.
    pub fn of(name: Option<&str>, share: Option<&str>) -> Result<Self, SamplingError> {
        let name = name.unwrap_or("parentbased_always_on");
        let (follows_rows, root) = match name.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, name),
        };
        let root = match root {
            "always_on" => RootSampler::AlwaysOn,
            "always_off" => RootSampler::AlwaysOff,
            "traceidratio" => RootSampler::TraceIdRatio(share.map_or(Ok(1.0), read_share)?),
            _ => return Err(SamplingError::Name),
        };
        Ok(Self { follows_rows, root })
    }

    /// Whether no request ever gets a span.
    pub(crate) fn is_never(&self) -> bool {
        !self.follows_rows && self.root == RootSampler::AlwaysOff
    }

    /// Whether a request with these rows gets a span. The rows are the only parents of a request,
    /// so their producers decide. One recorded trace is enough.
    pub(crate) fn wants(&self, rows: RowTraces, trace_id: TraceId) -> bool {
        match rows {
            RowTraces::Sampled if self.follows_rows => true,
            RowTraces::Unsampled if self.follows_rows => false,
            RowTraces::None | RowTraces::Sampled | RowTraces::Unsampled => {
                self.root.wants(trace_id)
            }
        }
    }
}

/// The traces of a request's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowTraces {
    /// No row has a trace.
    None,
    /// Some rows have a trace, and none is recorded.
    Unsampled,
    /// At least one row has a recorded trace.
    Sampled,
}

impl RootSampler {
    fn wants(&self, trace_id: TraceId) -> bool {
        match self {
            Self::AlwaysOn => true,
            Self::AlwaysOff => false,
            Self::TraceIdRatio(share) => {
                let sampler = Sampler::TraceIdRatioBased(*share);
                let result =
                    sampler.should_sample(None, trace_id, "", &SpanKind::Producer, &[], &[]);
                result.decision == SamplingDecision::RecordAndSample
            }
        }
    }
}

fn read_share(text: &str) -> Result<f64, SamplingError> {
    let share = f64::from_str(text.trim()).ok();
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or(SamplingError::Share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TraceId = TraceId::from_bytes([0x7F; 16]);

    fn wants(name: Option<&str>, share: Option<&str>) -> [bool; 3] {
        let sampling = Sampling::of(name, share).unwrap();
        [RowTraces::None, RowTraces::Unsampled, RowTraces::Sampled]
            .map(|rows| sampling.wants(rows, ID))
    }

    #[test]
    fn rows_decide_for_their_request_and_a_request_without_traces_for_itself() {
        assert_eq!(wants(None, None), [true, false, true]);
        assert_eq!(wants(Some("parentbased_always_off"), None), [false, false, true]);
        assert_eq!(wants(Some("parentbased_traceidratio"), Some("0")), [false, false, true]);
    }

    #[test]
    fn other_samplers_do_not_look_at_rows() {
        assert_eq!(wants(Some("always_on"), None), [true; 3]);
        assert_eq!(wants(Some("always_off"), None), [false; 3]);
        assert!(Sampling::of(Some("always_off"), None).unwrap().is_never());
        assert_eq!(wants(Some("traceidratio"), None), [true; 3]);
        assert_eq!(wants(Some("traceidratio"), Some("0")), [false; 3]);
    }

    #[test]
    fn a_share_of_trace_ids_is_taken() {
        let sampling = Sampling::of(Some("traceidratio"), Some("0.25")).unwrap();
        let ids = (0..=255).map(|byte| TraceId::from_bytes([byte; 16]));
        let taken = ids.filter(|id| sampling.wants(RowTraces::None, *id)).count();
        assert!((50..80).contains(&taken), "{taken} of 256");
    }

    #[test]
    fn what_means_nothing_is_refused() {
        assert_eq!(Sampling::of(Some("sometimes"), None), Err(SamplingError::Name));
        for share in ["", "-0.1", "1.1", "NaN", "a tenth"] {
            let refused = Sampling::of(Some("traceidratio"), Some(share));
            assert_eq!(refused, Err(SamplingError::Share), "{share}");
        }
    }
}

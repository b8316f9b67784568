//! Sends spans and metrics to an OpenTelemetry collector over OTLP. The spans cover Publish
//! requests and consumers' transactions.
//!
//! One task talks to the collector, so a slow or missing collector does not delay rows. The queue
//! to the task is bounded and holds encoded spans. Spans that do not fit are dropped and counted.
//! The crate knows no variables or flags: the caller passes [`Settings`].
//!
//! ```text
//! a Publish call ── Spans::send ────┐
//! a transaction ─── Spans::process ─┴ … OpenSpan::end ──▶ queue ─┐
//!                                                                ├─▶ the exporter's task ──▶ collector
//! the registry of /metrics ──────── read at its interval ────────┘
//! ```

mod codec;
mod collector;
mod collector_check;
mod endpoint;
mod exporter;
mod metrics;
mod pairs;
mod sampling;
mod settings;
mod spans;
mod trace_parent;
mod wire;

pub use collector_check::{CollectorCheckError, try_out};
pub use endpoint::{Endpoint, EndpointError};
pub use exporter::{Exporter, Figures, StartError};
pub use pairs::{PairsError, pairs};
pub use sampling::{RootSampler, Sampling, SamplingError};
pub use settings::{Headers, HeadersError, Settings};
pub use spans::{Failed, OpenSpan, Spans};

//! Spans of Publish requests and of consumers' transactions, and metrics, sent to an OpenTelemetry collector
//! over OTLP.
//!
//! One task does everything that talks to the collector, so that neither a slow nor a missing one is felt
//! where rows flow: what is handed over is bounded and encoded already, and what does not fit is dropped
//! and counted. Knows nothing of variables or flags: whoever starts it hands over [`Settings`].
//!
//! ```text
//! a Publish call ── Spans::send ────┐
//! a transaction ─── Spans::process ─┴ … OpenSpan::end ──▶ queue ─┐
//!                                                                ├─▶ the exporter's task ──▶ collector
//! the text of /metrics ──────────── asked for at its interval ───┘
//! ```

mod codec;
mod collector;
mod endpoint;
mod exporter;
mod figures;
mod pairs;
mod sampling;
mod settings;
mod spans;
mod trace_parent;
mod trial;
mod wire;

pub use endpoint::{Endpoint, EndpointError};
pub use exporter::{Exporter, Figures, StartError};
pub use pairs::{NotPairs, pairs};
pub use sampling::{Root, Sampling, SamplingError};
pub use settings::{Headers, HeadersError, Settings};
pub use spans::{Failed, OpenSpan, Spans};
pub use trial::{Unfit, try_out};

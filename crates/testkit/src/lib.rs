//! What tests and benchmarks share: servers, processes, faults, the checker. Never a dependency of
//! what is released.
//!
//! Owns everything a test needs besides walrelay itself, and takes it all away again: databases,
//! slots, processes. Fails by panicking with what was missing, because its callers are tests; what benchmarks use
//! returns errors. Knows
//! nothing of walrelay's code: what it says about the relay, it has seen from outside.

pub mod background;
pub mod checker;
pub mod collector;
pub mod emulator;
mod environment;
mod http;
pub mod inbox;
pub mod metadata;
pub mod outbox;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod relay;
pub mod seed;
pub mod skip;
pub mod tls;
mod waiting;
pub mod walsender;

pub use environment::random_name;
pub use http::http_get;
pub use skip::skip;
pub use waiting::wait_until;

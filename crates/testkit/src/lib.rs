//! Shared helpers of tests and benchmarks: servers, processes, faults and the checker. Released
//! code never depends on this crate.
//!
//! Owns everything that a test needs apart from walrelay itself, and removes it afterwards:
//! databases, slots and processes. Helpers for tests panic and name the missing part. Helpers for
//! benchmarks return errors.
//!
//! The testkit uses no code of the relay: its statements about the relay come from outside
//! observation.

pub mod background_server;
pub mod checker;
pub mod collector;
pub mod emulator;
mod environment;
mod http;
pub mod inbox_model;
pub mod json_page;
pub mod metadata;
pub mod outbox;
pub mod pooler;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod relay;
pub mod seed;
pub mod skip;
pub mod tls;
mod waiting;
pub mod walsender;

pub use environment::{random_name, variable};
pub use http::http_get;
pub use skip::{long_run_or_skip, skip};
pub use waiting::wait_until;

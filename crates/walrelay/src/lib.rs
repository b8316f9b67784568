//! The program around the relay: commands, HTTP, logs, the demo.

pub mod commands;
pub mod demo;
pub mod http;
mod output;
pub mod request_spans;
pub mod telemetry;

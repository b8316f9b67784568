//! The program around the relay: commands, HTTP, logs, the demo.

pub mod commands;
pub mod demo;
pub mod error;
#[cfg(test)]
mod error_table;
pub mod explain;
mod fix_names;
pub mod http;
mod json_output;
mod output;
mod protocol_fix;
mod rebuild_fix;
mod relay_fix;
pub mod request_spans;
pub mod telemetry;

//! The program around the relay: command line, configuration, commands, HTTP, logs, the demo.

pub mod cli;
pub mod commands;
pub mod config;
pub mod demo;
pub mod error;
#[cfg(test)]
mod error_table;
pub mod explain;
pub mod http;
mod json_output;
pub mod options;
mod output;
mod protocol_fix;
mod rebuild_fix;
pub mod reference;
mod relay_fix;
pub mod request_spans;
pub mod telemetry;

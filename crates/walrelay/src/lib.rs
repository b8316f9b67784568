//! The parts of walrelay put together: command line, configuration, commands, the relay itself.

pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
pub mod health;
pub mod http;
pub mod metrics;
pub mod shutdown;
pub mod telemetry;

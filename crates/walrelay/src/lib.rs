//! The parts of walrelay put together: command line, configuration, commands, the relay itself.

pub mod cli;
pub mod commands;
pub mod config;
pub mod demo;
pub mod dispatch_state;
pub mod error;
pub mod failpoint;
pub mod health;
pub mod http;
pub mod metrics;
pub mod observer;
pub mod pipeline;
pub mod preflight;
pub mod publishes;
pub mod recorded_rows;
pub mod recorder;
pub mod relay_error;
pub mod seams;
pub mod session;
pub mod shutdown;
pub mod supervise;
pub mod telemetry;

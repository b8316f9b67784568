//! The program around the relay: the command line, the commands, HTTP, logs, the demo.
//!
//! ```text
//! options   groups of options, and the parsers of their values
//! config    layers of defaults, and the checks of values that depend on each other
//! commands  what each command does
//! error, output, status …   what a command prints
//! process   parses the command line, starts telemetry, runs the command
//! ```

mod check;
mod cli;
mod commands;
pub mod config;
mod demo;
mod error;
mod failed_events;
pub mod http;
mod options;
mod output;
pub mod process;
pub mod reference;
mod replay;
mod request_spans;
mod status;
mod steps;
mod telemetry;
mod topics;

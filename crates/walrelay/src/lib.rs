//! The program around the relay: the command line, the commands, HTTP, logs, the demo.
//!
//! ```text
//! process   parses the command line, starts telemetry, runs the command
//! cli       the tree of commands
//! commands  one file per command: declaration, checks, work, text, JSON, tests
//! options   groups of options that commands share, and the parsers of their values
//! config    layers of defaults, and the checks of values that depend on each other
//! error, output, status, steps   what commands print
//! ```

pub mod cli;
mod commands;
pub mod config;
mod demo;
mod error;
pub mod http;
mod options;
mod output;
mod plan;
pub mod process;
pub mod reference;
mod request_spans;
mod status;
mod steps;
mod telemetry;
mod topics;

//! The command line of walrelay: commands, options, and the checked configuration of each command.
//!
//! [`config::CommandLine`] reads arguments, environment and configuration file. [`config::Config`]
//! checks the values that depend on each other. Nothing here connects, prints or runs a command.
//!
//! ```text
//! options   groups of options, and the parsers of their values
//!   ▲
//! cli       which command takes which options and arguments
//!   ▲
//! config    layers of defaults, and the checked configuration of each command
//!   ▲
//! reference pages, example file and JSON schema, generated from the declarations
//! ```

mod cli;
pub mod config;
mod options;
pub mod reference;

pub use cli::{command, is_option};
pub use options::units;

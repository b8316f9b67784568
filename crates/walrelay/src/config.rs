//! Reads the command line with environment and file, and checks values that depend on each other.
//!
//! ```text
//! arguments, environment, file ── layers ──▶ CommandLine ── build ──▶ Config { log, plan }
//!                                                            │
//!                                                            ▼ the plan of each command calls
//!            checks     collects the problems
//!            postgres, messages, pubsub, relay, handler   groups of options, each turned into its part
//!            otlp       OpenTelemetry's variables
//! ```
//!
//! Clap parses single values, with the environment and the file as their defaults. This module
//! checks values that depend on each other. A problem has the option, its value, the origin of the
//! value and the allowed values, and never a secret. `check`, not this module, asks Postgres and
//! Pub/Sub about valid values.

mod build;
mod checks;
mod definition_place;
mod environment;
mod file;
mod guesses;
mod handler;
mod layers;
mod messages;
mod otlp;
mod postgres;
mod problem;
mod pubsub;
mod relay;
#[cfg(test)]
pub(crate) mod tests;

pub use build::Config;
pub(crate) use build::{LogConfig, LogLines, read};
pub(crate) use checks::Checks;
pub(crate) use definition_place::{DefinitionNeed, DefinitionPlace, NamedOutbox};
pub use environment::{Environment, established_variables, variable};
pub(crate) use file::{CONFIG, is_section, keys};
pub use layers::Refusal;
pub(crate) use layers::{EffectiveValue, ask_for_json, effective_values};
pub(crate) use messages::ResourceKind;
pub(crate) use postgres::{DatabaseConfig, InboxPlace};
pub use problem::Problem;
pub(crate) use pubsub::topic_settings;

pub(crate) use crate::options::choices::{
    ChangeMode, ChangeOptions, LogFormat, OnSlotLost, OutputFormat, Shell,
};
pub use crate::plan::Service;

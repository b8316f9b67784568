//! Turns text into a [`Config`], whose existence means that it is valid.
//!
//! ```text
//! arguments, environment, file ── layers ──▶ CommandLine ── build ──▶ Config { log, command }
//!                                                           │
//!            build      one function per command            │ calls
//!            settings   settings of `run` and `check`       ▼
//!            postgres, messages, pubsub   groups of options, each turned into its part
//!            otlp       OpenTelemetry's variables
//! ```
//!
//! Clap parses single values, with the environment and the file as their defaults. This module
//! checks values that depend on each other. A problem has the option, its value, the origin of the
//! value and the allowed values, and never a secret. `check`, not this module, asks Postgres and
//! Pub/Sub about valid values.

mod build;
mod builder;
mod command;
mod commands;
mod definition_place;
mod environment;
mod file;
mod layers;
mod messages;
mod otlp;
mod postgres;
mod problem;
mod pubsub;
mod relay;
#[cfg(test)]
mod tests;

pub use build::{Config, Service};
pub(crate) use command::{
    AnchorAction, AnchorConfig, AuditConfig, CheckConfig, Command, ConfigAction, CreateTopics,
    DatabaseConfig, DemoConfig, DemoOutput, DispatchConfig, DispatchEdit, EmitConfig, ForgetConfig,
    InboxPlace, InitConfig, LogConfig, PruneConfig, ReplayRecordAction, ReplayRecordConfig,
    ReshardConfig, RunConfig, SlotAction, SlotConfig, StatusConfig, TailConfig, TraceConfig,
};
pub(crate) use commands::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, IamGrants, InboxConfig,
    InboxEdit, InboxPruneOrder, KeyReset, NewDeadLetters, NewSubscription, Rebuild,
    RebuildIntoConfig, Source,
};
pub(crate) use commands::event_actions::{EventAction, EventList, EventSelection, SelectedEvents};
pub(crate) use commands::replay_orders::{
    AdvanceOrder, Place, RecoverOrder, ReplayAction, ReplayConfig, ResetOrder,
};
pub(crate) use commands::snapshots::{SnapshotConfig, SnapshotStart};
pub(crate) use definition_place::DefinitionPlace;
pub use environment::{Environment, established_variables, variable};
pub(crate) use file::{is_section, keys};
pub use layers::{CommandLine, Refusal};
pub(crate) use layers::{EffectiveValue, ask_for_json};
pub use problem::Problem;

pub(crate) use crate::cli::{EditFiles, ForgottenArgs, SnapshotRequest};
pub(crate) use crate::options::choices::{
    ChangeMode, ChangeOptions, LogFormat, OnSlotLost, OutputFormat, Shell,
};
pub(crate) use crate::options::values::OrOff;
pub(crate) use crate::options::{DemoOptions, EmulatorOptions};

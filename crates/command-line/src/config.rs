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

pub use build::Config;
pub use command::{
    AnchorAction, AnchorConfig, AuditConfig, CheckConfig, Command, ConfigAction, CreateTopics,
    DatabaseConfig, DemoConfig, DemoOutput, DispatchConfig, DispatchEdit, EmitConfig, ForgetConfig,
    InboxPlace, InitConfig, LogConfig, PruneConfig, ReplayRecordAction, ReplayRecordConfig,
    ReshardConfig, RunConfig, SlotAction, SlotConfig, StatusConfig, TailConfig, TraceConfig,
};
pub use commands::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, IamGrants, InboxConfig,
    InboxEdit, InboxPruneOrder, KeyReset, NewDeadLetters, NewSubscription, Rebuild,
    RebuildIntoConfig, Source,
};
pub use commands::event_actions::{EventAction, EventList, EventSelection, SelectedEvents};
pub use commands::replay_orders::{
    AdvanceOrder, Place, RecoverOrder, ReplayAction, ReplayConfig, ResetOrder,
};
pub use commands::snapshots::{SnapshotConfig, SnapshotStart};
pub use definition_place::DefinitionPlace;
pub use environment::{Environment, established_variables, variable};
pub(crate) use file::{is_section, keys};
pub use layers::{CommandLine, EffectiveValue, Refusal, ask_for_json};
pub use problem::Problem;

pub use crate::cli::{EditFiles, EmittedEventArgs, ForgottenArgs, SnapshotRequest};
pub use crate::options::choices::{
    ChangeMode, ChangeOptions, LogFormat, OnSlotLost, OutputFormat, Shell,
};
pub use crate::options::values::{Bytes, OrOff};
pub use crate::options::{DemoOptions, EmulatorOptions};

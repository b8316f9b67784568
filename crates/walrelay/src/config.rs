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
mod command;
mod commands;
mod file;
mod layers;
mod messages;
mod otlp;
mod postgres;
mod problem;
mod pubsub;
mod settings;

pub use build::Config;
pub use command::{
    AnchorAction, AnchorConfig, AuditConfig, CheckConfig, Command, ConfigAction, Consent,
    CreateTopics, DatabaseConfig, DemoConfig, DemoOutput, DispatchAction, DispatchConfig,
    DispatchEdit, DispatchList, EmulatorConfig, ExistingRows, InboxPlace, InitConfig, LogConfig,
    LogFormat, OnSlotLost, OutputFormat, PruneConfig, PruneMode, ReshardConfig, ReshardMode,
    RowSelection, RunConfig, Shell, SlotAction, SlotConfig, SlotKind, StatusConfig, TraceConfig,
};
pub use commands::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, InboxAction, InboxConfig,
    KeyReset, NewSubscription, OutboxRowsConfig, Rebuild, RebuildIntoConfig, RebuildKeysConfig,
    Source,
};
pub use commands::replay_orders::{
    AdvanceOrder, BackfillAction, BackfillConfig, BackfillOrder, Place, RecoverOrder, ReplayAction,
    ReplayConfig, ReplayOrder, ResetOrder, SkipConsent,
};
pub(crate) use file::{is_section, keys};
pub use layers::{
    CommandLine, EffectiveValue, Environment, Refusal, established_variables, variable,
};
pub use problem::Problem;

//! Turns text into a [`Config`], whose existence means that it is valid.
//!
//! ```text
//! arguments, environment, file ── layers ──▶ CommandLine ── build ──▶ Config { log, command }
//!                                                           │
//!            build      one function per command            │ calls
//!            settings   settings of `run` and `check`       ▼
//!            postgres, messages, pubsub   groups of options, each turned into its part
//!            otlp     OpenTelemetry's variables
//!            values     one option: text to value, as declared
//! ```
//!
//! Reports all problems at once, each with the option, its value and the allowed values, and never
//! a secret. `check`, not this module, asks Postgres and Pub/Sub about valid values.

mod build;
mod builder;
mod command;
mod commands;
mod consent;
mod layers;
mod log;
mod messages;
mod names;
mod option_values;
mod otlp;
mod output_format;
mod postgres;
mod problem;
mod pubsub;
mod settings;
mod values;

pub use build::Config;
pub(crate) use build::SHELLS;
pub use command::{
    AnchorAction, AnchorConfig, AuditConfig, CheckConfig, Command, CreateTopics, DatabaseConfig,
    DemoConfig, DemoOutput, DispatchAction, DispatchConfig, DispatchEdit, DispatchList,
    EmulatorConfig, ExistingRows, InboxPlace, InitConfig, OnSlotLost, PruneConfig, PruneMode,
    ReshardConfig, ReshardMode, RowSelection, RunConfig, Shell, SlotAction, SlotConfig, SlotKind,
    StatusConfig, TraceConfig,
};
pub(crate) use commands::actions::STATES;
pub use commands::consumer_commands::{
    ConsumeConfig, ConsumerAction, ConsumerConfig, ConsumerSetUp, InboxAction, InboxConfig,
    KeyReset, NewSubscription, OutboxRowsConfig, Rebuild, RebuildIntoConfig, RebuildKeysConfig,
    Source,
};
pub use commands::replay_orders::{
    AdvanceOrder, BackfillAction, BackfillConfig, BackfillOrder, Place, RecoverOrder, ReplayAction,
    ReplayConfig, ReplayOrder, ResetOrder, SkipConsent,
};
pub use consent::Consent;
pub(crate) use layers::is_section;
pub use layers::{CommandLine, Environment, Refusal};
pub use log::{LogConfig, LogFormat};
pub use output_format::OutputFormat;
pub use problem::Problem;

//! From text to a [`Config`] whose existence means it is valid.
//!
//! Owns ranges, cross-checks and what needs what. Reports all problems at once, each with the
//! option, its value and what is allowed, and never a secret. What Postgres or Pub/Sub think of a
//! valid value is found out by `check`, not here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_core::{ColumnNames, RouterConfig};
use walrelay_emulator::Fault;
use walrelay_postgres::{ConnectConfig, DispatchFilter, OnLost, QualifiedName, RetrySelection};
use walrelay_relay::settings::{PubSubSettings, Settings};

mod actions;
mod build;
mod given;
mod layers;
mod names;
mod problem;
mod values;

pub use layers::{CommandLine, Environment, Refusal};
pub use problem::Problem;

/// A command and everything it needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// How to log.
    pub log: LogConfig,
    /// What to do.
    pub command: Command,
}

impl Config {
    /// Checks every value of a command line.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, at once.
    pub fn new(line: &CommandLine, environment: &Environment) -> Result<Self, Vec<Problem>> {
        build::config(line, environment)
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line: `severity`, `message`, `time`, `target`, and every field.
    Json,
}

/// How to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The form of a line; `None` decides by whether standard error is a terminal.
    pub format: Option<LogFormat>,
    /// A filter in the syntax of `RUST_LOG`.
    pub filter: String,
}

/// What to do, and everything it needs.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "one per command; the commands are documented in cli")]
pub enum Command {
    Init(Box<InitConfig>),
    Check(Box<CheckConfig>),
    Run(Box<RunConfig>),
    Status(StatusConfig),
    Dispatch(DispatchConfig),
    Slot(SlotConfig),
    Prune(PruneConfig),
    Emulator(EmulatorConfig),
    Demo(DemoConfig),
}

/// Where Postgres is and what to read there.
#[derive(Debug, Clone)]
pub struct DatabaseConfig {
    /// How to connect.
    pub connect: ConnectConfig,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// The outbox tables, without repetition, in the order they were given.
    pub outbox_tables: Vec<QualifiedName>,
}

/// What `run` does and with whom.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The service's own settings.
    pub settings: Settings,
    /// Where `/livez` and the others are served; `None` is nowhere.
    pub http: Option<SocketAddr>,
}

/// `init`, whole.
#[derive(Debug, Clone)]
pub struct InitConfig {
    /// How to connect; absent when only SQL is printed.
    pub connect: Option<ConnectConfig>,
    /// The slot to create.
    pub slot: String,
    /// The publication to create.
    pub publication: String,
    /// The tables it publishes.
    pub outbox_tables: Vec<QualifiedName>,
    /// What leads to topics.
    pub router: RouterConfig,
    /// Where Pub/Sub is.
    pub pubsub: PubSubSettings,
    /// Which topics to create.
    pub create_topics: CreateTopics,
    /// Whether standbys keep the slot in step.
    pub slot_kind: SlotKind,
    /// What to do when there was a slot, and it is gone or useless.
    pub on_lost: OnLost,
}

/// Which topics `init` creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateTopics {
    /// None.
    No,
    /// Those the rows in the outbox lead to, and these.
    Yes {
        /// Names besides, short or full.
        named: Vec<String>,
    },
}

/// Whether standbys keep the slot in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// It lives on this server alone.
    Plain,
    /// Postgres 17 and newer.
    Failover,
}

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `check`, whole.
#[derive(Debug, Clone)]
pub struct CheckConfig {
    /// What `run` would be given.
    pub run: RunConfig,
    /// How findings are printed.
    pub format: OutputFormat,
}

/// `status`, whole.
#[derive(Debug, Clone)]
pub struct StatusConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// How it is printed.
    pub format: OutputFormat,
}

/// `dispatch`, whole.
#[derive(Debug, Clone)]
pub struct DispatchConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// What to do.
    pub action: DispatchAction,
}

/// What to do with dispatch state.
#[derive(Debug, Clone)]
pub enum DispatchAction {
    /// Print rows.
    List {
        /// Which; the topic by its full name.
        filter: DispatchFilter,
        /// How.
        format: OutputFormat,
    },
    /// Print one row, decoded.
    Show {
        /// Its event id.
        id: String,
        /// How.
        format: OutputFormat,
    },
    /// Make rows due at once.
    Retry(RetrySelection),
    /// Replace parts of a message.
    Edit {
        /// Its event id.
        id: String,
        /// Where the new payload is.
        payload_file: Option<PathBuf>,
        /// Where the new attributes are.
        attributes_file: Option<PathBuf>,
    },
    /// Give a row up.
    Discard {
        /// Its event id.
        id: String,
        /// Why.
        reason: String,
    },
}

/// `slot`, whole.
#[derive(Debug, Clone)]
pub struct SlotConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// What to do.
    pub action: SlotAction,
}

/// What to do with the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotAction {
    /// Print it.
    Show(OutputFormat),
    /// Create it.
    Create(SlotKind),
    /// Drop it; the operator has agreed to lose so many rows that it has not confirmed.
    Drop {
        /// That many.
        discard_rows: u64,
    },
    /// Move it past a transaction; the operator has agreed to skip it.
    Advance {
        /// A position of the transaction.
        to: pgoutput_parser::Lsn,
        /// Rows of other transactions that may be skipped with it.
        discard_rows: u64,
    },
}

/// `prune`, whole.
#[derive(Debug, Clone)]
pub struct PruneConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// Which column is what.
    pub columns: ColumnNames,
    /// Age a row must have.
    pub older_than: Duration,
}

/// `emulator`, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatorConfig {
    /// Where gRPC is served.
    pub listen: SocketAddr,
    /// Where the control port is.
    pub control_listen: Option<SocketAddr>,
    /// Faults to begin with.
    pub faults: Vec<Fault>,
    /// Memory for stored messages.
    pub max_stored_bytes: usize,
}

/// `demo`, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoConfig {
    /// Stop after this many committed rows.
    pub rows: Option<u64>,
    /// Outbox rows per second.
    pub rate: u32,
    /// Aggregates the rows are spread over.
    pub aggregates: u32,
    /// What is printed.
    pub output: DemoOutput,
}

/// What the demo prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoOutput {
    /// Every message and the summary.
    Messages,
    /// The summary.
    Summary,
}

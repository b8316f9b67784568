//! The configuration of each command: plain data, checked by its constructor.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use walrelay_core::{ColumnAliases, ColumnNames, RouterConfig, WalBudgetLimit};
use walrelay_outbox_admin::InitOptions;
use walrelay_outbox_admin::archive::Archive;
use walrelay_outbox_admin::maintenance::Maintenance;
use walrelay_outbox_admin::protocols::ExistingRows;
use walrelay_outbox_store::{DispatchQuery, Outbox};
use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::{Endpoint, TopicSettings};
use walrelay_relay::settings::{PubSubSettings, Settings};

use super::commands::consumer_commands::{
    ConsumeConfig, ConsumerConfig, ConsumerSetUp, InboxConfig,
};
use super::commands::event_actions::EventAction;
use super::commands::replay_orders::{AdvanceOrder, Place, RecoverOrder, ReplayConfig, ResetOrder};
use super::commands::snapshots::SnapshotConfig;
use super::layers::EffectiveValue;
use crate::cli::{EditFiles, EmittedEventArgs, ForgottenArgs};
use crate::options::choices::{ChangeOptions, LogFormat, OnSlotLost, OutputFormat, Shell};
use crate::options::{DemoOptions, EmulatorOptions};

/// A command and its configuration.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    Init(Box<InitConfig>),
    Check(Box<CheckConfig>),
    Run(Box<RunConfig>),
    Status(StatusConfig),
    Dispatch(DispatchConfig),
    Slot(SlotConfig),
    Anchor(AnchorConfig),
    Replay(Box<ReplayConfig>),
    ReplayRecord(ReplayRecordConfig),
    Reshard(Box<ReshardConfig>),
    Prune(PruneConfig),
    Consume(Box<ConsumeConfig>),
    Consumer(Box<ConsumerConfig>),
    ConsumerSql(Box<ConsumerSetUp>),
    Inbox(InboxConfig),
    Audit(Box<AuditConfig>),
    Trace(Box<TraceConfig>),
    Emit(EmitConfig),
    /// Forget aggregates whose ids are never used again.
    Forget(ForgetConfig),
    Snapshot(Box<SnapshotConfig>),
    Tail(Box<TailConfig>),
    Emulator(EmulatorOptions),
    Demo(DemoConfig),
    Config(ConfigAction),
    Explain {
        code: Option<String>,
        format: OutputFormat,
    },
    Version(OutputFormat),
    Completions(Shell),
    Man(PathBuf),
}

impl Command {
    /// Returns whether the command also works without the definition of its outbox: it makes the
    /// definition, or reports what keeps it from being read.
    #[must_use]
    pub(crate) const fn works_without_record(&self) -> bool {
        matches!(self, Self::Init(_) | Self::Check(_) | Self::Run(_) | Self::Status(_))
    }

    /// Returns whether the command runs until a signal ends it, with nothing left to finish.
    #[must_use]
    pub(crate) const fn is_ended_by_a_signal(&self) -> bool {
        matches!(self, Self::Status(StatusConfig { watch: Some(_), .. }))
    }
}

/// An action on the configuration. All values are read already.
#[derive(Debug, Clone)]
pub(crate) enum ConfigAction {
    /// Print the effective values.
    Show {
        /// The values.
        values: Vec<EffectiveValue>,
        /// Output format.
        format: OutputFormat,
    },
    /// Print that the configuration of a command is valid.
    Check {
        /// The command with its options.
        command: String,
        /// Output format.
        format: OutputFormat,
    },
    /// Print the JSON schema of the file.
    Schema,
}

/// The logging configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// The format of a line. `None` means text on a terminal, and JSON otherwise.
    pub format: Option<LogFormat>,
    /// A filter in the syntax of `RUST_LOG`.
    pub filter: String,
}

/// The connection to Postgres, and the objects to use there.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseConfig {
    /// Connection settings.
    pub connect: ConnectConfig,
    /// The slot, publication and outbox tables.
    pub outbox: Outbox,
}

/// Configuration of `walrelay run`.
#[derive(Debug, Clone)]
pub(crate) struct RunConfig {
    /// Settings of the relay.
    pub settings: Settings,
    /// Whether the given publication, tables and columns do not differ from the record. The relay
    /// then follows changes of the record.
    pub follows_record: bool,
    /// The reaction to a lost slot.
    pub on_slot_lost: OnSlotLost,
    /// Age of the relay's own anchor. None means no anchor.
    pub anchor_keep: Option<Duration>,
    /// The maintenance of the outbox. None if the command has no options for it.
    pub maintenance: Option<Maintenance>,
    /// The address that serves `/livez`, `/readyz`, `/metrics` and `/status`, if any.
    pub http: Option<SocketAddr>,
    /// The OpenTelemetry collector for spans and metrics, if any.
    pub otlp: Option<walrelay_otlp::Settings>,
}

/// Configuration of `walrelay reshard`.
#[derive(Debug, Clone)]
pub(crate) struct ReshardConfig {
    /// Settings of a relay of the whole outbox.
    pub settings: Settings,
    /// The new number of shards.
    pub shards: u32,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// Configuration of `walrelay init`.
#[derive(Debug, Clone)]
pub(crate) struct InitConfig {
    /// Connection settings, or `None` if `init` only prints the SQL.
    pub connect: Option<ConnectConfig>,
    /// The outbox to set up: each of its shards, or the whole one.
    pub shards: Vec<InitOptions>,
    /// Settings that turn rows into messages, from which the topics to create are derived.
    pub router: RouterConfig,
    /// Settings of Pub/Sub.
    pub pubsub: PubSubSettings,
    /// The topics to create.
    pub create_topics: CreateTopics,
    /// Their settings.
    pub topic_settings: TopicSettings,
    /// The treatment of rows that are older than the slot.
    pub already_there: ExistingRows,
    /// Consent to the loss that is accepted, and output.
    pub options: ChangeOptions,
}

/// The topics that `init` creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CreateTopics {
    /// No topics.
    No,
    /// The topics that the rows in the outbox lead to, and the named ones.
    Yes {
        /// Short or full names of further topics.
        named: Vec<String>,
    },
}

/// Configuration of `walrelay check`.
#[derive(Debug, Clone)]
pub(crate) struct CheckConfig {
    /// The configuration that `run` would use.
    pub run: RunConfig,
    /// Consumers in other databases. Empty means the consumers in the outbox's own database.
    pub inboxes: Vec<InboxPlace>,
    /// Output format.
    pub format: OutputFormat,
}

/// Configuration of `walrelay status`.
#[derive(Debug, Clone)]
pub(crate) struct StatusConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// Output format.
    pub format: OutputFormat,
    /// Interval of `--watch`. None prints the report once.
    pub watch: Option<Duration>,
    /// HTTP address of the relay.
    pub relay: Option<SocketAddr>,
    /// Consumers in other databases.
    pub inboxes: Vec<InboxPlace>,
    /// The relay's `--wal-budget`.
    pub wal_budget: WalBudgetLimit,
}

/// Configuration of `walrelay dispatch`.
#[derive(Debug, Clone)]
pub(crate) struct DispatchConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The action.
    pub action: EventAction<DispatchQuery, DispatchEdit>,
}

/// The changes of `dispatch edit`.
#[derive(Debug, Clone)]
pub(crate) struct DispatchEdit {
    /// Event id of the row.
    pub id: String,
    /// Files with the new payload and the new attributes.
    pub files: EditFiles,
    /// Full name of the new topic.
    pub topic: Option<String>,
    /// The new ordering key.
    pub key: Option<String>,
}

/// Configuration of `walrelay replay list`, `show` and `cancel`.
#[derive(Debug, Clone)]
pub(crate) struct ReplayRecordConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The action.
    pub action: ReplayRecordAction,
}

/// An action on the records of replays.
#[derive(Debug, Clone)]
pub(crate) enum ReplayRecordAction {
    /// Print the replays.
    List(OutputFormat),
    /// Print one replay.
    Show {
        /// Id of the replay.
        id: String,
        /// Output format.
        format: OutputFormat,
    },
    /// Cancel an unfinished replay.
    Cancel {
        /// Id of the replay.
        id: String,
        /// Consent and output.
        options: ChangeOptions,
    },
}

/// Configuration of `walrelay slot`.
#[derive(Debug, Clone)]
pub(crate) struct SlotConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The action.
    pub action: SlotAction,
    /// Consent and output.
    pub options: ChangeOptions,
    /// The options that a printed command repeats.
    pub selection: Vec<String>,
}

/// An action on the slot.
#[derive(Debug, Clone)]
pub(crate) enum SlotAction {
    /// Drop the slot, if it has at most `discard_rows` unconfirmed rows.
    Drop {
        /// The number of rows that the user has agreed to lose.
        discard_rows: u64,
    },
    /// Move the slot past a transaction. The user has agreed to skip it.
    Advance(AdvanceOrder),
    /// Replace the slot by a copy of an anchor.
    Reset(ResetOrder),
    /// Publish everything, and drop the slot.
    Release(Box<Settings>),
    /// Create a new slot in place of a lost or released one.
    Recover(RecoverOrder),
}

/// Configuration of `walrelay anchor`.
#[derive(Debug, Clone)]
pub(crate) struct AnchorConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The action.
    pub action: AnchorAction,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// An action on anchors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnchorAction {
    /// Create an anchor at the slot's position.
    Create {
        /// Name of the anchor.
        name: String,
        /// WAL that must stay free for the relay.
        wal_budget: WalBudgetLimit,
    },
    /// Print all anchors.
    List {
        /// WAL that must stay free for the relay.
        wal_budget: WalBudgetLimit,
    },
    /// Move an anchor forward.
    Advance {
        /// Name of the anchor.
        name: String,
        /// The target. None means the slot's position.
        to: Option<Place>,
    },
    /// Drop an anchor.
    Drop {
        /// Name of the anchor.
        name: String,
    },
}

/// Configuration of `walrelay prune`.
#[derive(Debug, Clone)]
pub(crate) struct PruneConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The names of the outbox columns.
    pub columns: ColumnNames,
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// Where rows are written before they are deleted.
    pub archive: Option<Archive>,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// A consumer in a database of its own.
#[derive(Debug, Clone)]
pub(crate) struct InboxPlace {
    /// Name of the consumer.
    pub consumer: String,
    /// Connection settings.
    pub connect: ConnectConfig,
}

/// Configuration of `walrelay audit`.
#[derive(Debug, Clone)]
pub(crate) struct AuditConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// Column of the event id.
    pub id: ColumnAliases,
    /// Column of the time of the event.
    pub occurred_at: ColumnAliases,
    /// Column of the aggregate type.
    pub aggregate_type: Option<ColumnAliases>,
    /// The consumers. Empty means those in the outbox's own database.
    pub inboxes: Vec<InboxPlace>,
    /// Full name and endpoint of a subscription to compare with instead.
    pub subscription: Option<(String, Endpoint)>,
    /// Only events of this time or later.
    pub since: SystemTime,
    /// Minimum age of compared events.
    pub grace: Duration,
    /// Only events of these aggregate types. Empty means all.
    pub aggregate_types: Vec<String>,
    /// Whether to list every missing event.
    pub all: bool,
    /// Output format.
    pub format: OutputFormat,
}

/// Configuration of `walrelay trace`.
#[derive(Debug, Clone)]
pub(crate) struct TraceConfig {
    /// The database of the outbox.
    pub database: DatabaseConfig,
    /// The names of the outbox columns.
    pub columns: ColumnNames,
    /// The consumers. Empty means those in the outbox's own database.
    pub inboxes: Vec<InboxPlace>,
    /// The event id.
    pub event_id: String,
    /// Output format.
    pub format: OutputFormat,
}

/// Configuration of `walrelay forget`.
#[derive(Debug, Clone)]
pub(crate) struct ForgetConfig {
    /// The outbox's database.
    pub connect: ConnectConfig,
    /// The aggregates.
    pub aggregates: ForgottenArgs,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// Configuration of `walrelay emit`.
#[derive(Debug, Clone)]
pub(crate) struct EmitConfig {
    /// The outbox's database.
    pub connect: ConnectConfig,
    /// The event.
    pub event: EmittedEventArgs,
    /// Output format.
    pub format: OutputFormat,
}

/// Configuration of `walrelay tail`.
#[derive(Debug, Clone)]
pub(crate) struct TailConfig {
    /// Full name of the topic.
    pub topic: String,
    /// Endpoint of Pub/Sub.
    pub endpoint: Endpoint,
    /// Most messages to print. None prints until a signal.
    pub count: Option<u64>,
    /// Only messages that were published at this time or later.
    pub since: Option<SystemTime>,
    /// Only messages with this ordering key.
    pub key: Option<String>,
    /// Output format.
    pub format: OutputFormat,
}

/// Configuration of `walrelay demo`.
#[derive(Debug, Clone)]
pub(crate) struct DemoConfig {
    /// The rows to produce.
    pub options: DemoOptions,
    /// Printed output.
    pub output: DemoOutput,
}

/// The output of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DemoOutput {
    /// Every message and the summary.
    Messages,
    /// Only the summary.
    Summary,
}

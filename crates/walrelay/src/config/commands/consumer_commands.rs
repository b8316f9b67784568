//! The configuration of `consumer` and `inbox`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use walrelay_inbox_admin::event_commands::InboxQuery;
use walrelay_inbox_admin::{KeyRebuild, OutboxRows};
use walrelay_pg_client::{ConnectConfig, QualifiedName};
use walrelay_pubsub::{Endpoint, TopicSettings};

use super::event_actions::EventAction;
use crate::cli::EditFiles;
use crate::options::choices::{ChangeOptions, OutputFormat};

/// Configuration of `walrelay consumer run`.
#[derive(Debug, Clone)]
pub(crate) struct ConsumeConfig {
    /// Settings of the consumer.
    pub settings: walrelay_inbox::Settings,
    /// The address that serves `/livez` and the other endpoints, if any.
    pub http: Option<SocketAddr>,
    /// The OpenTelemetry collector for spans and metrics, if any.
    pub otlp: Option<walrelay_otlp::Settings>,
}

/// Configuration of `walrelay consumer`.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerConfig {
    /// The consumer's database.
    pub connect: ConnectConfig,
    /// The action.
    pub action: ConsumerAction,
}

/// An action on a consumer.
#[derive(Debug, Clone)]
pub(crate) enum ConsumerAction {
    /// Set up the consumer.
    Init(ConsumerSetUp),
    /// Print the consumers of the database.
    List(OutputFormat),
    /// Print a handler for a table.
    Scaffold(QualifiedName),
    /// Print the consumer's status.
    Status {
        /// Name of the consumer.
        name: String,
        /// Output format.
        format: OutputFormat,
        /// Endpoint of Pub/Sub: an emulator, or Google Cloud.
        endpoint: Endpoint,
    },
    /// Pause the consumer.
    Pause {
        /// Name of the consumer.
        name: String,
        /// Output format.
        format: OutputFormat,
    },
    /// Resume the consumer.
    Resume {
        /// Name of the consumer.
        name: String,
        /// Output format.
        format: OutputFormat,
    },
    /// Apply everything again.
    Rebuild(Rebuild),
    /// Forget the position of an ordering key.
    ResetKey(KeyReset),
    /// Delete old inbox rows.
    Prune(InboxPruneOrder),
}

/// The inbox rows to delete.
#[derive(Debug, Clone)]
pub(crate) struct InboxPruneOrder {
    /// Name of the consumer.
    pub name: String,
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// Consent and output.
    pub options: ChangeOptions,
    /// Endpoint of Pub/Sub, which reports its message retention.
    pub endpoint: Endpoint,
}

/// A reset of one ordering key.
#[derive(Debug, Clone)]
pub(crate) struct KeyReset {
    /// Name of the consumer.
    pub name: String,
    /// The ordering key.
    pub key: String,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// Configuration of `walrelay inbox`.
#[derive(Debug, Clone)]
pub(crate) struct InboxConfig {
    /// The consumer's database.
    pub connect: ConnectConfig,
    /// Name of the consumer. `None` means the only one in the database.
    pub consumer: Option<String>,
    /// The action.
    pub action: EventAction<InboxQuery, InboxEdit>,
}

/// The changes of `inbox edit`.
#[derive(Debug, Clone)]
pub(crate) struct InboxEdit {
    /// Event id.
    pub id: String,
    /// Files with the new payload and the new attributes.
    pub files: EditFiles,
}

/// A consumer to set up.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerSetUp {
    /// Name of the consumer.
    pub name: String,
    /// Full name of its subscription.
    pub subscription: String,
    /// Endpoint of Pub/Sub.
    pub endpoint: Endpoint,
    /// The subscription to create, if any.
    pub create: Option<NewSubscription>,
    /// Output format.
    pub format: OutputFormat,
}

/// A subscription to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewSubscription {
    /// Full name of its topic.
    pub topic: String,
    /// Full name of the dead-letter topic.
    pub dead_letter_topic: Option<String>,
    /// The dead-letter topic and its subscription to create, if any.
    pub dead_letters: Option<NewDeadLetters>,
    /// Whether delivery is exactly-once.
    pub exactly_once: bool,
    /// Filter in Pub/Sub's syntax. Empty accepts every message.
    pub filter: String,
}

/// A dead-letter topic to create, with a subscription of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewDeadLetters {
    /// Full name of the subscription.
    pub subscription: String,
    /// Settings of the topic.
    pub settings: TopicSettings,
    /// Number of the project whose service agent forwards messages. `None` if not known.
    pub project_number: Option<u64>,
    /// What to do about the IAM bindings.
    pub grants: IamGrants,
}

/// How the service agent of Pub/Sub gets its IAM bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IamGrants {
    /// The command grants the bindings.
    Make,
    /// The command prints the commands that grant the bindings.
    Print,
}

/// The source of a rebuild.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Messages published since this time, as far as the topic retains them.
    Topic(SystemTime),
    /// Outbox rows, which the command itself applies in another schema.
    SideBySide(Box<RebuildIntoConfig>),
    /// Rows of some ordering keys, which the command itself applies.
    Keys(Box<KeyRebuild>),
    /// No source: an unfinished rebuild is cancelled.
    Cancel,
}

/// A rebuild in tables of another schema.
#[derive(Debug, Clone)]
pub(crate) struct RebuildIntoConfig {
    /// The outbox rows.
    pub rows: OutboxRows,
    /// The function that applies the rows.
    pub handler: String,
    /// The schema with the handler's tables.
    pub schema: String,
    /// File with the SQL that makes the tables live. Without it, the rebuilt rows replace those of
    /// the live tables.
    pub switch_sql: Option<PathBuf>,
}

/// A rebuild of a consumer's read model.
#[derive(Debug, Clone)]
pub(crate) struct Rebuild {
    /// Name of the consumer.
    pub name: String,
    /// The source of the events.
    pub source: Source,
    /// File with the SQL that empties the handler's tables.
    pub reset_sql: Option<PathBuf>,
    /// Full name of the subscription to create. `None` derives the name from the old one and the
    /// generation.
    pub subscription: Option<String>,
    /// Consent and output. The rebuild may empty tables, and lose edits and discards.
    pub options: ChangeOptions,
    /// Endpoint of Pub/Sub.
    pub endpoint: Endpoint,
}

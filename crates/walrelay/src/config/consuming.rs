//! What `consume`, `consumer` and `inbox` are told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use walrelay_inbox::operate::{InboxFilter, InboxSelection};
use walrelay_pg_client::{ConnectConfig, QualifiedName};
use walrelay_pubsub::Endpoint;
use walrelay_relay::replay::DeadRows;

use super::consent::Consent;
use super::output_format::OutputFormat;

/// Everything `walrelay consume` needs.
#[derive(Debug, Clone)]
pub struct ConsumeConfig {
    /// The consumer's own settings.
    pub settings: walrelay_inbox::Settings,
    /// Where `/livez` and the others are served; `None` is nowhere.
    pub http: Option<SocketAddr>,
    /// The collector that spans and metrics are sent to; none are without.
    pub otlp: Option<walrelay_otlp::Settings>,
}

/// Everything `walrelay consumer` needs.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// The consumer's database; absent when only SQL is printed.
    pub connect: Option<ConnectConfig>,
    /// What to do.
    pub action: ConsumerAction,
}

/// What to do with a consumer.
#[derive(Debug, Clone)]
pub enum ConsumerAction {
    /// Set it up.
    Init(ConsumerSetUp),
    /// Print a handler for a table.
    Scaffold(QualifiedName),
    /// Print how it is doing.
    Status {
        /// Its name.
        name: String,
        /// How.
        format: OutputFormat,
    },
    /// Pause it, or let it go on.
    Pause {
        /// Its name.
        name: String,
        /// Whether it is to be paused.
        paused: bool,
    },
    /// Apply everything again.
    Rebuild(Rebuild),
    /// Forget how far an ordering key is.
    ResetKey(KeyReset),
    /// Delete what is old.
    Prune {
        /// Its name.
        name: String,
        /// Age a row must have.
        older_than: Duration,
        /// Where Pub/Sub is, which says how long it keeps messages.
        endpoint: Endpoint,
    },
}

/// An ordering key whose position is to be forgotten.
#[derive(Debug, Clone)]
pub struct KeyReset {
    /// The consumer's name.
    pub name: String,
    /// The ordering key.
    pub key: String,
    /// Whether somebody has agreed already.
    pub consent: Consent,
}

/// Everything `walrelay inbox` needs.
#[derive(Debug, Clone)]
pub struct InboxConfig {
    /// The consumer's database.
    pub connect: ConnectConfig,
    /// Which consumer; `None` is the only one.
    pub consumer: Option<String>,
    /// What to do.
    pub action: InboxAction,
}

/// What to do with events that failed.
#[derive(Debug, Clone)]
pub enum InboxAction {
    /// Print events.
    List {
        /// Which.
        filter: InboxFilter,
        /// How.
        format: OutputFormat,
    },
    /// Print one event, decoded.
    Show {
        /// Its id.
        id: String,
        /// How.
        format: OutputFormat,
    },
    /// Make events due at once.
    Retry(InboxSelection),
    /// Replace parts of a stored message.
    Edit {
        /// Its event id.
        id: String,
        /// Where the new payload is.
        payload_file: Option<PathBuf>,
        /// Where the new attributes are.
        attributes_file: Option<PathBuf>,
    },
    /// Give an event up.
    Discard {
        /// Its id.
        id: String,
        /// Why.
        reason: String,
    },
}

/// A consumer to be set up.
#[derive(Debug, Clone)]
pub struct ConsumerSetUp {
    /// Its name.
    pub name: String,
    /// Full name of its subscription.
    pub subscription: String,
    /// Where Pub/Sub is.
    pub endpoint: Endpoint,
    /// The subscription to create, if it is to be created.
    pub create: Option<NewSubscription>,
}

/// A subscription to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSubscription {
    /// Full name of its topic.
    pub topic: String,
    /// Full name of the topic for dead letters.
    pub dead_letter_topic: Option<String>,
    /// With exactly-once delivery.
    pub exactly_once: bool,
    /// In Pub/Sub's filter language; empty lets everything through.
    pub filter: String,
}

/// Where events are taken from once more.
#[derive(Debug, Clone)]
pub enum Source {
    /// What was published from this moment on, as far as the topic keeps it.
    Topic(SystemTime),
    /// Rows of the outbox, published to a topic of their own.
    Outbox(Box<RefillConfig>),
    /// Rows of the outbox, applied in another schema by the command itself.
    Beside(Box<BesideConfig>),
    /// Rows of some ordering keys, applied by the command itself.
    Keys(Box<KeysConfig>),
    /// Nothing: an unfinished rebuild is given up.
    Abandon,
}

/// A rebuild in tables of another schema.
#[derive(Debug, Clone)]
pub struct BesideConfig {
    /// The rows.
    pub rows: RefillConfig,
    /// The function that applies them.
    pub handler: String,
    /// Where its tables are.
    pub schema: String,
    /// What puts them in use; `None`: their rows replace those of the tables in use.
    pub switch_sql: Option<PathBuf>,
}

/// A rebuild of some ordering keys.
#[derive(Debug, Clone)]
pub struct KeysConfig {
    /// The rows.
    pub rows: RefillConfig,
    /// The function that applies them.
    pub handler: String,
    /// The ordering keys.
    pub keys: Vec<String>,
    /// The function that takes back what was made of them.
    pub reset: QualifiedName,
}

/// All rows of the outbox, to a topic of their own.
#[derive(Debug, Clone)]
pub struct RefillConfig {
    /// The relay's own settings, as far as a backfill shares them.
    pub settings: walrelay_relay::settings::Settings,
    /// The full name of the topic.
    pub topic: String,
    /// Of these types alone; all of them where none is named.
    pub aggregate_types: Vec<String>,
    /// What becomes of rows that can never be published.
    pub dead_rows: DeadRows,
}

/// A consumer's effects made anew.
#[derive(Debug, Clone)]
pub struct Rebuild {
    /// Its name.
    pub name: String,
    /// What is applied again.
    pub source: Source,
    /// What empties the tables that its handler writes.
    pub reset_sql: Option<PathBuf>,
    /// The full name of the subscription to create; `None` is one after the old one and the generation.
    pub subscription: Option<String>,
    /// Whether somebody has agreed already to what is not carried over.
    pub consent: Consent,
    /// Where Pub/Sub is.
    pub endpoint: Endpoint,
}

//! The command line of `walrelay consumer`.

use std::time::Duration;

use clap::{Args, Subcommand};
use walrelay_pg_client::QualifiedName;

use super::{ARGUMENTS, ChangeArgs, ConsumerRebuildArgs};
use crate::options::values::{consumer_name, duration, text_form};
use crate::options::{
    ConnectionOptions, ConsumerOptions, EndpointOptions, OutputOptions, ProjectOption,
    PruneKeysOption, RetentionOptions, SqlOption, SubscriptionOption, TopicOptions, UntilOption,
};

/// `walrelay consumer run`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerRunArgs {
    /// Name of the consumer, as `consumer init` was given it.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub until: UntilOption,
    #[command(flatten)]
    pub retention: RetentionOptions,
    #[command(flatten)]
    pub keys: PruneKeysOption,
    #[command(flatten)]
    pub own: ConsumerOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

/// `walrelay consumer`.
#[derive(Debug, Args)]
pub(crate) struct ConsumerArgs {
    #[command(subcommand)]
    pub action: ConsumerActionArgs,
}

/// What to do with a consumer.
#[derive(Debug, Subcommand)]
pub(crate) enum ConsumerActionArgs {
    /// Create tables, functions and the consumer's row; with --create the subscription.
    ///
    /// Safe to run again. A subscription that it creates delivers in order, retains acknowledged messages for seven days,
    /// and never expires. Its default name is TOPIC.NAME. One that exists is left as it is, and refused where it is
    /// unordered, of another topic or filtered otherwise. Without --create it has to
    /// exist. A consumer that has applied nothing yet may be given another one. Prints the SQL with the grants that a
    /// role of its own needs.
    #[command(after_help = "Example:\n  \
        walrelay consumer init billing --create --topic order.events\n  \
        walrelay consumer init billing --create --topic order.events --dead-letter")]
    Init(ConsumerInitArgs),
    /// Apply a subscription's events to a database, each once, in order per key.
    ///
    /// Calls a SQL function of yours for every batch. Its changes and the record of the event commit together, and only
    /// then the message is acknowledged. An event that is redelivered is found in the inbox and skipped. If a connection
    /// is lost, the consumer reconnects. SIGTERM and SIGINT finish the batches in flight and exit with 0. More instances
    /// give more throughput. The database may be behind a pooler.
    ///
    /// With OTEL_EXPORTER_OTLP_ENDPOINT set, traces and metrics are sent to that OpenTelemetry collector.
    #[command(after_help = "Examples:\n  \
        walrelay consumer run billing --handler shop.apply --database-url postgresql://app@db.example:6543/app\n  \
        PUBSUB_EMULATOR_HOST=localhost:8085 walrelay consumer run billing --handler shop.apply --until-caught-up")]
    Run(Box<ConsumerRunArgs>),
    /// List the consumers of the database.
    #[command(after_help = "Example:\n  walrelay consumer list")]
    List(ConsumerListArgs),
    /// Print a handler function to start from: a version-gated UPSERT for a table.
    ///
    /// Where the database has the roles of a web API, anon and authenticated, it also takes the function from them, and
    /// warns of a table that is open to them.
    #[command(after_help = "Example:\n  walrelay consumer scaffold shop.orders > handler.sql")]
    Scaffold(ConsumerScaffoldArgs),
    /// Show counts by status, held keys, the rate of the last minute and the backlog.
    ///
    /// The backlog of the subscription and the age of its oldest message come from Cloud Monitoring, which is minutes
    /// behind and needs roles/monitoring.viewer, or from the emulator. They are null if nobody answers.
    #[command(after_help = "Example:\n  walrelay consumer status billing --output json")]
    Status(ConsumerStatusArgs),
    /// Pause the consumer: no instance applies events until it is resumed.
    #[command(after_help = "Example:\n  walrelay consumer pause billing")]
    Pause(ConsumerNameArgs),
    /// Resume a paused consumer; running instances notice within a second.
    #[command(after_help = "Example:\n  walrelay consumer resume billing")]
    Resume(ConsumerNameArgs),
    /// Rebuild the read model from the topic or from the rows of the outbox.
    ///
    /// Applies everything published since a time, or all rows of the outbox, again, in a new generation.
    ///
    /// With --into the command applies the rows of the outbox in another schema, while the read model stays live. With
    /// --key it rebuilds single ordering keys. With --from-time it creates a subscription to the same topic and seeks it
    /// back. It then empties the read model and moves the consumer to a new generation and to that subscription, in one
    /// transaction. Running instances follow. Events of before that time are not applied again.
    #[command(after_help = "Examples:\n  \
        walrelay consumer rebuild billing --into fresh --handler apply_orders\n  \
        walrelay consumer rebuild billing --key A-17 --handler apply_orders --reset-function reset_orders\n  \
        walrelay consumer rebuild billing --from-time 7d --reset-sql truncate.sql")]
    Rebuild(Box<ConsumerRebuildArgs>),
    /// Reset the position of an ordering key, where it cannot be right.
    ///
    /// With `consumer run --dedupe position` a message with a forged position makes later events of its key look old, and they
    /// are skipped. Shows the position and how many events were skipped because of it, and asks. The skipped events are
    /// applied when they are published again.
    #[command(after_help = "Example:\n  walrelay consumer reset-key billing --key A-17")]
    ResetKey(ConsumerResetKeyArgs),
    /// Delete rows of the inbox that are finished and old.
    ///
    /// Refuses an age within which Pub/Sub may deliver the event again: it would be applied twice.
    #[command(after_help = "Example:\n  walrelay consumer prune billing --older-than 40d")]
    Prune(ConsumerPruneArgs),
}

/// `walrelay consumer init`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ConsumerInitArgs {
    /// Name of the consumer: one for each thing that is kept up to date.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// Create the subscription, ordered and without expiry; needs --topic.
    #[arg(long, requires = "topic")]
    pub create: bool,
    /// Topic of a subscription to be created, short or full name.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Create a dead-letter topic with an ordered subscription, for messages that were delivered 100 times.
    ///
    /// Prints the IAM bindings that Pub/Sub's service agent needs.
    #[arg(long, requires = "create")]
    pub dead_letter: bool,
    /// Name of the dead-letter topic; without --dead-letter it has to exist [default: `TOPIC.NAME.dead`].
    #[arg(long, value_name = "TOPIC", requires = "create")]
    pub dead_letter_topic: Option<String>,
    /// Number of the subscription's project, which names Pub/Sub's service agent.
    #[arg(long, value_name = "NUMBER", requires = "dead_letter", value_parser = clap::value_parser!(u64))]
    pub project_number: Option<u64>,
    /// Grant the IAM bindings of --dead-letter instead of printing them; needs --project-number.
    #[arg(long, requires = "project_number")]
    pub grant: bool,
    /// Create it with exactly-once delivery: fewer copies, more latency. The inbox does not need it.
    #[arg(long, requires = "create")]
    pub exactly_once: bool,
    /// Only messages with these attributes, in Pub/Sub's filter language.
    #[arg(long, value_name = "FILTER", requires = "create")]
    pub filter: Option<String>,
    #[command(flatten)]
    pub subscription: SubscriptionOption,
    #[command(flatten)]
    pub topics: TopicOptions,
    #[command(flatten)]
    pub sql: SqlOption,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub project: ProjectOption,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

/// `walrelay consumer scaffold`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerScaffoldArgs {
    /// The table that the handler is to keep up to date, `schema.table`.
    #[arg(value_name = "TABLE", value_parser = text_form::<QualifiedName>)]
    pub table: QualifiedName,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer list`.
#[derive(Debug, Args)]
pub(crate) struct ConsumerListArgs {
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer status`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerStatusArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

/// `walrelay consumer pause` and `resume`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerNameArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer reset-key`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerResetKeyArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// The ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: String,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer prune`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ConsumerPruneArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// Age a row must have to be deleted, such as 30d; 1s to 3650d.
    #[arg(long, value_name = "DURATION", required = true, value_parser = duration("1s", "3650d"))]
    pub older_than: Duration,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

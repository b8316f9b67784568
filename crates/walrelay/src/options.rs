//! The options: groups of clap arguments that commands share.
//!
//! An option is a flag, an environment variable and a key of the configuration file. Flag,
//! variable, key, help, page, annotated file and schema follow from its clap argument. A value that
//! only the command line may give, such as the row to discard, is an argument of its command in
//! [`commands`](crate::commands).
//!
//! The first paragraph of a help text may end in the range of the values (`; 1s to 1d`) and in the
//! meaning of an unset option (`[default: …]`).

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use walrelay_core::{AttributeColumns, ColumnAliases, OnDead, Template, WalBudgetLimit};
use walrelay_outbox_store::Shard;
use walrelay_pg_client::{QualifiedName, Schema, Secret};
use walrelay_pubsub::Endpoint;

pub(crate) mod arguments;
pub(crate) mod choices;
mod handler;
mod headings;
mod retention;
mod topics;
pub(crate) mod units;
pub(crate) mod values;

pub(crate) use arguments::{
    ARGUMENTS, ChangeArgs, EditFiles, EventFilterArgs, InboxPlaces, PageArgs, is_option,
};
pub(crate) use handler::HandlerOptions;
pub(crate) use headings::OWN_OPTIONS;
pub(crate) use retention::{PruneArchiveOption, PruneKeysOption, RetentionOptions};
pub(crate) use topics::TopicOptions;

use choices::{LogFormat, OutputFormat, Verbosity};
use values::{
    Bytes, OptionalColumn, OrNever, OrOff, attribute_columns, cloudevents_source, column, count,
    duration, duration_or_never, identifier, listen_or_off, log_filter, optional_column, project,
    regional_endpoint, secret, size, slot_name, template, text_form, topic_template, wal_budget,
    word,
};

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "General")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct GeneralOptions {
    /// TOML file with the long names of these options as keys
    ///
    /// Cannot be set in the file itself.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<String>,
    /// Form of a log line: `text`, or `json` with Cloud Logging's field names [default: `json` for services without a terminal, else `text`]
    ///
    /// Logs go to standard error. By default `run`, `consumer run` and `emulator` write text on a terminal and
    /// JSON elsewhere. Other commands write JSON with `--output json`, else text.
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT", value_parser = word(LOG_FORMATS))]
    pub log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or `target=level,…` [default: `info`]
    #[arg(long, global = true, value_name = "FILTER", value_parser = log_filter)]
    pub log_level: Option<String>,
    /// Log at the level `debug`, unless --log-level is set
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Log at the level `warn`, unless --log-level is set; a demo then prints only its summary
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl GeneralOptions {
    pub(crate) const fn verbosity(&self) -> Verbosity {
        match (self.verbose, self.quiet) {
            (true, _) => Verbosity::Verbose,
            (false, true) => Verbosity::Quiet,
            (false, false) => Verbosity::Normal,
        }
    }
}

const LOG_FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

/// The connection to Postgres.
#[derive(Debug, Args)]
#[command(next_help_heading = "Postgres")]
pub(crate) struct ConnectionOptions {
    /// Where Postgres is: `postgresql://user:password@host:port/database?sslmode=…`
    ///
    /// Required. For the relay a direct connection, not a pooler; a consumer's may be one. The password may come
    /// from PGPASSWORD or PGPASSFILE, the certificate authority from WALRELAY_SSLROOTCERT_PEM.
    #[arg(long, value_name = "URL", value_parser = secret)]
    pub database_url: Option<Secret>,
    /// What proves who connects: a `password`, or `google`: a token of Google's credentials
    ///
    /// `google` is the IAM login of Cloud SQL and AlloyDB. Every connection takes a token, and needs TLS. A service
    /// account's user is its address without .gserviceaccount.com.
    #[arg(long, value_name = "HOW", default_value = "password", value_parser = word(DATABASE_AUTHS))]
    pub database_auth: DatabaseAuth,
    /// Schema of walrelay's own tables and functions, for the outbox and for a consumer
    ///
    /// The name without quotes. `init` and `consumer init` create the schema.
    #[arg(long, value_name = "SCHEMA", default_value = "public", value_parser = text_form::<Schema>)]
    pub schema: Schema,
}

/// What proves to Postgres who connects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DatabaseAuth {
    /// The password of the connection string, the environment or a file, if the server asks for one.
    #[default]
    Password,
    /// An access token of the application default credentials.
    Google,
}

const DATABASE_AUTHS: &[(&str, DatabaseAuth)] =
    &[("password", DatabaseAuth::Password), ("google", DatabaseAuth::Google)];

/// The connection to Postgres, and the objects to use there.
#[derive(Debug, Args)]
#[command(next_help_heading = "Postgres")]
pub(crate) struct DatabaseOptions {
    #[command(flatten)]
    pub connection: ConnectionOptions,
    /// Replication slot this relay reads: `a-z`, `0-9`, `_` [default: that of the only outbox on record, or `walrelay`]
    ///
    /// Also its name in dispatch state. If a slot of another database of the server is called `walrelay`, a new
    /// outbox gets `walrelay_DATABASE`.
    #[arg(long, value_name = "NAME", value_parser = slot_name)]
    pub slot: Option<String>,
    /// Which of the shards that `init --shards` has made: `0/4` is the first of four [default: the only one, or all]
    ///
    /// Slot and publication are then those of that shard: walrelay_0_of_4.
    #[arg(long, value_name = "I/N", value_parser = text_form::<Shard>)]
    pub shard: Option<Shard>,
}

/// The names to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preset {
    Walrelay,
    Debezium,
}

const PRESETS: &[(&str, Preset)] =
    &[("walrelay", Preset::Walrelay), ("debezium", Preset::Debezium)];

/// The definition of the outbox. `init` records it, and every other command reads the record. A value
/// that is not given is that of the record, or the standard one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Outbox")]
pub(crate) struct DefinitionOptions {
    /// Publication the slot is read through [default: the one on record, or `walrelay`]
    #[arg(long, value_name = "NAME", value_parser = identifier)]
    pub publication: Option<String>,
    /// Outbox table, `schema.table`; may be given several times [default: those on record, or `app_outbox` in the schema
    /// of --schema]
    ///
    /// Quote parts as Postgres does.
    #[arg(long, value_name = "TABLE", value_delimiter = ',', value_parser = text_form::<QualifiedName>)]
    pub outbox_table: Vec<QualifiedName>,
    /// Names of the columns to start from: `walrelay`, or `debezium` (type, timestamp; no version, headers) [default: those
    /// on record, or `walrelay`]
    #[arg(long, value_name = "PRESET", value_parser = word(PRESETS))]
    pub preset: Option<Preset>,
    /// Column of the event id, the consumer's dedupe key [default: `id`]
    #[arg(long, value_name = "COLUMN", value_parser = column)]
    pub column_id: Option<ColumnAliases>,
    /// Column of the aggregate type, which routes to a topic; empty when the table has none [default: `aggregatetype`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_aggregate_type: Option<OptionalColumn>,
    /// Column of the aggregate id, the ordering key; empty when the table has none [default: `aggregateid`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_aggregate_id: Option<OptionalColumn>,
    /// Column of the event type; empty when the table has none [default: `event_type`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_event_type: Option<OptionalColumn>,
    /// Column of the version within an aggregate; empty when the table has none [default: `version`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_version: Option<OptionalColumn>,
    /// Column of the payload's schema version; empty when the table has none [default: `schema_version`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_schema_version: Option<OptionalColumn>,
    /// Column of the payload, published verbatim [default: `payload`]
    #[arg(long, value_name = "COLUMN", value_parser = column)]
    pub column_payload: Option<ColumnAliases>,
    /// Column of extra attributes, a JSON object: strings as they are, other values as JSON text; empty when the table
    /// has none [default: `headers`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_headers: Option<OptionalColumn>,
    /// Column of the time of the event; empty when the table has none [default: `occurred_at`]
    #[arg(long, value_name = "COLUMN", value_parser = optional_column)]
    pub column_occurred_at: Option<OptionalColumn>,
    /// Columns that become attributes, each with `:ATTRIBUTE` for another name: `tenant_id,region:geo`; at most 16, or empty
    /// for none [default: those on record, or none]
    ///
    /// A value is published as its text. Null leaves the attribute out.
    #[arg(long, value_name = "COLUMNS", value_parser = attribute_columns)]
    pub attribute_columns: Option<AttributeColumns>,
}

/// The project, for commands that take the short name of a topic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct ProjectOption {
    /// Google Cloud project of topics that do not name one
    ///
    /// Required unless --topic-template is a full name.
    #[arg(long, value_name = "PROJECT", value_parser = project)]
    pub project: Option<String>,
}

/// The names of the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeNames {
    Default,
    CloudEvents,
}

const ATTRIBUTE_NAMES: &[(&str, AttributeNames)] =
    &[("default", AttributeNames::Default), ("cloudevents", AttributeNames::CloudEvents)];

/// The mapping from a row to a message.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct MessageOptions {
    /// Topic, with columns in braces; a full projects/…/topics/… is accepted
    #[arg(long, value_name = "TEMPLATE", default_value = "{aggregatetype}.events", value_parser = topic_template)]
    pub topic_template: Template,
    #[command(flatten)]
    pub project: ProjectOption,
    /// Ordering key, with columns in braces; empty publishes without order
    #[arg(long, value_name = "TEMPLATE", default_value = "{aggregateid}", value_parser = template)]
    pub ordering_key: Template,
    /// Attribute names: `default`, or `cloudevents` (ce-id, ce-type, …)
    #[arg(long, value_name = "STYLE", default_value = "default", value_parser = word(ATTRIBUTE_NAMES))]
    pub attributes: AttributeNames,
    /// `ce-source` of CloudEvents attributes: a URI reference [default: the table's name]
    #[arg(long, value_name = "URI", value_parser = cloudevents_source)]
    pub cloudevents_source: Option<String>,
    /// Write the attribute `system_identifier`, which names the cluster whose WAL a position is in: `walrelay consumer
    /// run --dedupe position` needs it
    ///
    /// Some forty bytes a message.
    #[arg(long)]
    pub system_identifier: bool,
}

/// The endpoint of Pub/Sub.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pub/Sub")]
pub(crate) struct EndpointOptions {
    /// Regional endpoint, https://REGION-pubsub.googleapis.com: pin one when order matters [default: the global endpoint]
    ///
    /// PUBSUB_EMULATOR_HOST selects an emulator instead, without credentials.
    #[arg(long, value_name = "URL", value_parser = regional_endpoint)]
    pub endpoint: Option<Endpoint>,
    /// PEM file of the authorities that Pub/Sub's certificate must be signed by [default: the public authorities]
    ///
    /// For a proxy or a private endpoint with a certificate of its owner's.
    #[arg(long, value_name = "FILE")]
    pub pubsub_ca: Option<PathBuf>,
}

/// The endpoint of Pub/Sub, and limits on requests.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pub/Sub")]
pub(crate) struct PubSubOptions {
    #[command(flatten)]
    pub endpoint: EndpointOptions,
    /// How long one Publish call may take before it is sent again; 1s to 10m
    ///
    /// The official clients' value.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration("1s", "10m"))]
    pub publish_timeout: Duration,
    /// Publish calls out at once, at most; the relay adapts below this; 1 to 10000
    ///
    /// 40 connections of 100 calls.
    #[arg(long, value_name = "COUNT", default_value = "4000", value_parser = count(1_u32, 10_000))]
    pub max_outstanding_requests: u32,
    /// HTTP/2 connections to Pub/Sub, at most; opened as demand grows; 1 to 64
    #[arg(long, value_name = "COUNT", default_value = "40", value_parser = count(1_u32, 64))]
    pub connections: u32,
}

/// The WAL budget, for commands that leave capacity for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct WalBudgetOption {
    /// Limit of unconfirmed WAL, or `auto`, or `off`; rows are spilled to dispatch state before it is reached
    ///
    /// `auto`: half of `max_slot_wal_keep_size`, at most 4 GiB; 1 GiB where the server sets no limit.
    /// `off`: WAL is retained for as long as rows wait.
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = wal_budget)]
    pub wal_budget: WalBudgetLimit,
}

/// The limits of what is in flight, for a relay, a replay and a consumer.
#[derive(Debug, Args)]
pub(crate) struct InFlightOptions {
    /// Memory for events that are not settled; when it is full, their source waits; 1MiB to 64GiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size("1MiB", "64GiB"))]
    pub max_in_flight_bytes: Bytes,
    /// How long a stop waits for what is in flight; 0ms to 1h
    ///
    /// Cloud Run allows 10 s in all.
    #[arg(long, value_name = "DURATION", default_value = "7s", value_parser = duration("0s", "1h"))]
    pub drain_timeout: Duration,
}

/// Where HTTP is served, for a relay and a consumer.
#[derive(Debug, Args)]
pub(crate) struct HttpOption {
    /// Address of /livez, /readyz, /metrics, /status, or `off` [default: `0.0.0.0:$PORT` when `PORT` is set, else `off`]
    #[arg(long, value_name = "ADDRESS", value_parser = listen_or_off)]
    pub http: Option<OrOff>,
}

/// How a relay or a replay streams.
#[derive(Debug, Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct StreamOptions {
    /// After a dead row its key continues (`continue`) or waits for a person (`hold`)
    ///
    /// A consumer's default is `hold`: a gap corrupts a read model.
    #[arg(long, value_name = "POLICY", default_value = "continue", value_parser = word(ON_DEAD))]
    pub on_dead: OnDead,
    #[command(flatten)]
    pub in_flight: InFlightOptions,
    /// How often the relay reports the confirmed position to Postgres, at most a third of --wal-sender-timeout; 100ms to 1m
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration("100ms", "1m"))]
    pub status_interval: Duration,
    /// After this much silence Postgres frees the slot of a dead relay; 1s to 10m
    ///
    /// Bounds how long a takeover waits.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration("1s", "10m"))]
    pub wal_sender_timeout: Duration,
}

/// How a command that publishes rows again connects, reads and publishes.
#[derive(Debug, Args)]
pub(crate) struct PublishingOptions {
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
    #[command(flatten)]
    pub stream: StreamOptions,
}

const ON_DEAD: &[(&str, OnDead)] = &[("continue", OnDead::Continue), ("hold", OnDead::Hold)];

/// Timeouts, limits and policies of the relay.
#[derive(Debug, Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct RelayOptions {
    /// A key stuck this long while others succeed moves to dispatch state; 100ms to 1d
    ///
    /// Long enough for a restart of the service, short against the WAL a slot may keep.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration("100ms", "1d"))]
    pub park_after: Duration,
    /// Tries of what failed before it is dead; 1 to 1000
    ///
    /// With back-off, some eight minutes of failures of its own; 10 by default for a consumer: five to nine minutes.
    #[arg(long, value_name = "COUNT", default_value = "20", value_parser = count(1_u32, 1_000))]
    pub max_attempts: u32,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub stream: StreamOptions,
    /// End the session of another holder of the slot that gave no sign of life for this long, or `never`; 1s to 1d
    #[arg(long, value_name = "DURATION", default_value = "never", value_parser = duration_or_never("1s", "1d"))]
    pub take_over_after: OrNever,
    /// How long published and discarded rows stay in dispatch state; 0ms to 3650d
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration("0s", "3650d"))]
    pub dispatch_retention: Duration,
    #[command(flatten)]
    pub http: HttpOption,
}

/// Everything the relay is configured by.
#[derive(Debug, Args)]
pub(crate) struct ServiceOptions {
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
    #[command(flatten)]
    pub relay: RelayOptions,
}

/// The subscription of a consumer.
#[derive(Debug, Args)]
#[command(next_help_heading = "Consumer")]
pub(crate) struct SubscriptionOption {
    /// Subscription to read; a full projects/…/subscriptions/… is accepted [default: what the consumer was set up with]
    ///
    /// For `consumer init` the default is TOPIC.NAME. For `consumer run` it names another one: that of the dead letters.
    #[arg(long, value_name = "SUBSCRIPTION")]
    pub subscription: Option<String>,
}

/// How a consumer applies events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Consumer")]
pub(crate) struct ConsumerOptions {
    #[command(flatten)]
    pub subscription: SubscriptionOption,
    #[command(flatten)]
    pub handler: HandlerOptions,
    /// Events applied in one transaction, at most; there is no waiting for more; 1 to 10000
    #[arg(long, value_name = "COUNT", default_value = "200", value_parser = count(1_u32, 10_000))]
    pub batch: u32,
    /// Transactions at once, each on its own connection; 1 to 64
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = count(1_u32, 64))]
    pub workers: u32,
    /// How long a message is held while the database is not there; 1m to 1d
    ///
    /// Then Pub/Sub may give it to another instance.
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration("1m", "1d"))]
    pub max_lease: Duration,
    /// What happens to an event when a version of its key is missing before it: apply it, or let it wait
    ///
    /// With `hold` it waits as one that has failed does: for --max-attempts, and then, with --on-dead hold, for a person.
    #[arg(long, value_name = "WORD", default_value = "accept", value_parser = word(ON_GAP))]
    pub on_gap: walrelay_inbox::OnGap,
    /// What counts as seen: an event in the inbox, or also one behind its key's position
    ///
    /// An event behind its key's position counts as seen only if `consumer prune` may have deleted its row. `position`
    /// needs the attribute that `walrelay run --system-identifier` writes.
    #[arg(long, value_name = "RULE", default_value = "event", value_parser = word(DEDUPE))]
    pub dedupe: walrelay_inbox::Dedupe,
    /// Tries of what failed before it is dead; 1 to 1000
    ///
    /// With back-off, five to nine minutes.
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = count(1_u32, 1_000))]
    pub max_attempts: u32,
    /// After a dead event its key continues (`continue`) or waits for a person (`hold`)
    ///
    /// A gap corrupts a read model.
    #[arg(long, value_name = "POLICY", default_value = "hold", value_parser = word(CONSUMER_ON_DEAD))]
    pub on_dead: walrelay_inbox::OnDead,
    /// With --until-caught-up, how long nothing has come before the consumer stops; 100ms to 1d
    ///
    /// Longer than the leases of other instances: what a killed one held is redelivered after 20 s.
    /// To one that is frozen but connected it may be redelivered again, every 20 s: end that one first.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration("100ms", "1d"))]
    pub quiet_for: Duration,
    #[command(flatten)]
    pub in_flight: InFlightOptions,
    #[command(flatten)]
    pub http: HttpOption,
}

const ON_GAP: &[(&str, walrelay_inbox::OnGap)] =
    &[("accept", walrelay_inbox::OnGap::Accept), ("hold", walrelay_inbox::OnGap::Hold)];
const DEDUPE: &[(&str, walrelay_inbox::Dedupe)] =
    &[("event", walrelay_inbox::Dedupe::Event), ("position", walrelay_inbox::Dedupe::Position)];
const CONSUMER_ON_DEAD: &[(&str, walrelay_inbox::OnDead)] =
    &[("continue", walrelay_inbox::OnDead::Continue), ("hold", walrelay_inbox::OnDead::Hold)];

/// The option of commands that create tables.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct SqlOption {
    /// Print the SQL and touch nothing
    #[arg(long)]
    pub sql: bool,
}

/// The output format.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct OutputOptions {
    /// `text` for people, `json` for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = word(OUTPUT_FORMATS))]
    pub output: OutputFormat,
}

const OUTPUT_FORMATS: &[(&str, OutputFormat)] =
    &[("text", OutputFormat::Text), ("json", OutputFormat::Json)];

/// The option of `run` and `consumer run`.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
pub(crate) struct UntilOption {
    /// Stop with 0 once nothing is left to do
    ///
    /// `run`: every row that was committed before the start is published or recorded, and no retry is due. It does
    /// not wait for another command: it exits with 3 while an operation on the slot is unfinished. `consumer run`:
    /// Pub/Sub has answered, nothing has come for --quiet-for, and nothing is held or due.
    #[arg(long)]
    pub until_caught_up: bool,
}

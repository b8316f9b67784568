//! The command line: clap types, nothing else.
//!
//! Every value stays text here, so that `config` can name all problems at once. Environment
//! variables and the configuration file are laid under these options by `config::layers`.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

use clap::{Args, Parser, Subcommand};

/// Carries a Postgres transactional outbox into Google Cloud Pub/Sub, in order, losing nothing.
///
/// Every option is a flag, an environment variable WALRELAY_<NAME>, and a key of the file named by
/// --config: a flag beats the environment, the environment beats the file, the file beats the
/// default. Durations are written 500ms, 30s, 5m, 12h, 7d; sizes 512KiB, 64MiB, 10MB.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalOptions,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done or asked to stop; 1 unexpected; 2 usage or configuration; 3 Postgres is not set up \
for this; 4 Pub/Sub is not set up for this; 5 the slot is lost; 6 the slot is held by somebody else; \
101 a broken invariant.";

/// Heading of what belongs to one invocation alone: neither environment nor file may set it.
pub const ARGUMENTS: &str = "Arguments";

/// One per command of the manual.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Creates tables, publication and slot; safe to run again.
    ///
    /// Applies the migrations, then creates the publication (inserts only), then the slot, in that
    /// order: a slot older than its publication never works. What exists already is left alone.
    #[command(after_help = "Example:\n  \
        walrelay init --database-url postgresql://postgres@db.example:5432/app --create-topics")]
    Init(InitArgs),
    /// Looks at Postgres, Pub/Sub and the configuration, and names what to fix; changes nothing.
    ///
    /// Prints each finding with its fix and exits with 0 when `run` would start, otherwise with the
    /// code `run` would stop with.
    #[command(after_help = "Example:\n  walrelay check --project my-project --format json")]
    Check(CheckArgs),
    /// The relay: publishes every committed outbox row, in order per key.
    ///
    /// Reads the slot, publishes, and confirms to Postgres only what Pub/Sub has stored or what is
    /// recorded in dispatch state. Loss of a connection is not an end: it reconnects. SIGTERM and
    /// SIGINT finish what is in flight and exit with 0; a second signal exits at once.
    #[command(after_help = "Examples:\n  \
        walrelay run --database-url postgresql://postgres@db.example:5432/app --project my-project\n  \
        PUBSUB_EMULATOR_HOST=localhost:8085 walrelay run --project dev --until-caught-up")]
    Run(RunArgs),
    /// Slot, lag in bytes and seconds, room before invalidation, parked and dead counts.
    #[command(after_help = "Example:\n  walrelay status --format json")]
    Status(StatusArgs),
    /// What did not go out at the first try: list, show, retry, edit, discard.
    ///
    /// Works while the relay runs, which notices within two seconds. Nothing is ever discarded by
    /// itself.
    Dispatch(DispatchArgs),
    /// The replication slot: show, create, drop, advance.
    Slot(SlotArgs),
    /// Deletes outbox rows that are old, confirmed and not parked.
    #[command(after_help = "Example:\n  walrelay prune --older-than 30d")]
    Prune(PruneArgs),
    /// The embedded Pub/Sub: an in-memory stand-in that enforces production's limits.
    ///
    /// Speaks the Publisher and Subscriber services over gRPC without credentials. Point clients
    /// at it with PUBSUB_EMULATOR_HOST. Everything is forgotten when it stops.
    #[command(after_help = "Example:\n  \
        walrelay emulator --listen 127.0.0.1:8085 --control-listen 127.0.0.1:8086")]
    Emulator(EmulatorArgs),
    /// Everything embedded: Postgres, Pub/Sub, a producer, the relay and a checking subscriber.
    ///
    /// Prints what arrives and checks order and completeness; ends with a summary, and with 0 only
    /// when nothing was lost and nothing was out of order.
    #[command(after_help = "Example:\n  walrelay demo --rows 1000")]
    Demo(DemoArgs),
}

/// Options every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "General")]
pub struct GlobalOptions {
    /// TOML file with the long names of these options as keys.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<String>,
    /// `text` or `json` (Cloud Logging's field names) [default: text on a terminal, else json].
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or `target=level,…`; also RUST_LOG.
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    pub log_level: String,
}

/// How to reach Postgres and what to read there.
#[derive(Debug, Args)]
#[command(next_help_heading = "Postgres")]
pub struct DatabaseOptions {
    /// Where Postgres is: postgresql://user:password@host:port/database?sslmode=…
    ///
    /// A direct connection, not a pooler. Also DATABASE_URL; the password may come from PGPASSWORD
    /// or PGPASSFILE, the certificate authority from WALRELAY_SSLROOTCERT_PEM.
    #[arg(long, value_name = "URL", hide_default_value = true)]
    pub database_url: Option<String>,
    /// Replication slot this relay reads.
    #[arg(long, value_name = "NAME", default_value = "walrelay")]
    pub slot: String,
    /// Publication the slot is read through.
    #[arg(long, value_name = "NAME", default_value = "walrelay")]
    pub publication: String,
    /// Outbox table, `schema.table`; may be given several times.
    #[arg(long, value_name = "TABLE", value_delimiter = ',', default_value = "public.app_outbox")]
    pub outbox_table: Vec<String>,
}

/// Which column of the outbox is what.
#[derive(Debug, Args)]
#[command(next_help_heading = "Columns of the outbox")]
pub struct ColumnOptions {
    /// Names to start from: `walrelay`, or `debezium` (type, timestamp; no version, headers).
    #[arg(long, value_name = "PRESET", default_value = "walrelay")]
    pub preset: String,
    /// Column of the event id, the consumer's dedupe key.
    #[arg(long, value_name = "COLUMN", default_value = "id")]
    pub column_id: String,
    /// Column of the aggregate type, which routes to a topic; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "aggregatetype")]
    pub column_aggregate_type: String,
    /// Column of the aggregate id, the ordering key; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "aggregateid")]
    pub column_aggregate_id: String,
    /// Column of the event type; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "event_type")]
    pub column_event_type: String,
    /// Column of the version within an aggregate; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "version")]
    pub column_version: String,
    /// Column of the payload's schema version; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "schema_version")]
    pub column_schema_version: String,
    /// Column of the payload, published verbatim.
    #[arg(long, value_name = "COLUMN", default_value = "payload")]
    pub column_payload: String,
    /// Column of extra attributes, a JSON object of strings; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "headers")]
    pub column_headers: String,
    /// Column of the time of the event; empty when the table has none.
    #[arg(long, value_name = "COLUMN", default_value = "occurred_at")]
    pub column_occurred_at: String,
}

/// How a row becomes a message.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub struct MessageOptions {
    /// Topic, with columns in braces; a full projects/…/topics/… is accepted.
    #[arg(long, value_name = "TEMPLATE", default_value = "{aggregatetype}.events")]
    pub topic: String,
    /// Google Cloud project of the topics; also PUBSUB_PROJECT_ID, GOOGLE_CLOUD_PROJECT.
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Ordering key, with columns in braces; empty publishes without order.
    #[arg(long, value_name = "TEMPLATE", default_value = "{aggregateid}")]
    pub ordering_key: String,
    /// Attribute names: `default`, or `cloudevents` (ce-id, ce-type, …).
    #[arg(long, value_name = "STYLE", default_value = "default")]
    pub attributes: String,
    /// `ce-source` of CloudEvents attributes: a URI reference [default: the table's name].
    #[arg(long, value_name = "URI")]
    pub cloudevents_source: Option<String>,
}

/// Where Pub/Sub is and how hard it may be worked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pub/Sub")]
pub struct PubSubOptions {
    /// Regional endpoint, https://REGION-pubsub.googleapis.com: pin one when order matters.
    ///
    /// PUBSUB_EMULATOR_HOST selects an emulator instead, without credentials.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// How long one Publish call may take before it is sent again; 1s to 10m.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub publish_timeout: String,
    /// Publish calls out at once, at most; the relay adapts below this. 1 to 10000.
    #[arg(long, value_name = "COUNT", default_value = "1600")]
    pub max_outstanding_requests: String,
    /// HTTP/2 connections to Pub/Sub, at most; opened as demand grows. 1 to 64.
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub connections: String,
}

/// How the relay behaves over time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Relay")]
pub struct RelayOptions {
    /// A key stuck this long while others succeed moves to dispatch state; 100ms to 24h.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub park_after: String,
    /// Tries of a parked row before it is dead; 1 to 1000.
    #[arg(long, value_name = "COUNT", default_value = "20")]
    pub max_attempts: String,
    /// After a dead row its key goes on (`continue`) or waits for a person (`hold`).
    #[arg(long, value_name = "POLICY", default_value = "continue")]
    pub on_dead: String,
    /// Memory for rows read and not settled, 1MiB to 64GiB; when full, Postgres waits.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub max_in_flight_bytes: String,
    /// How long a stop waits for what is in flight; 0s to 1h. Cloud Run allows 10 s in all.
    #[arg(long, value_name = "DURATION", default_value = "7s")]
    pub drain_timeout: String,
    /// End the session of another holder of the slot after this long; 1s to 24h [default: never].
    #[arg(long, value_name = "DURATION")]
    pub take_over_after: Option<String>,
    /// How often Postgres is told what is confirmed; 100ms to 1m.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub status_interval: String,
    /// After this much silence Postgres frees the slot of a dead relay; 1s to 10m.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub wal_sender_timeout: String,
    /// How long published and discarded rows stay in dispatch state; 0s to 3650d.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub dispatch_retention: String,
    /// Address of /livez, /readyz, /metrics, /status, or `off` [default: 0.0.0.0:$PORT if set].
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// Everything `run` is configured by; `check` takes the same.
#[derive(Debug, Args)]
pub struct RunOptions {
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
    #[command(flatten)]
    pub relay: RelayOptions,
}

/// `walrelay init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Create the topics too: those that `--topic` leads to for the rows in the outbox, and the
    /// names given here (`--create-topics=order.events,video.events`).
    #[arg(
        long,
        value_name = "TOPIC",
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        default_missing_value = "true"
    )]
    pub create_topics: Vec<String>,
    /// Print the SQL and touch nothing.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, hide_default_value = true,
          default_value = "false", default_missing_value = "true")]
    pub sql: String,
    /// Make it a failover slot, which standbys keep in step; Postgres 17 or newer.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, hide_default_value = true,
          default_value = "false", default_missing_value = "true")]
    pub failover: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
}

/// `walrelay check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: String,
    #[command(flatten)]
    pub options: RunOptions,
}

/// `walrelay run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Stop with 0 once everything committed before the start is confirmed and nothing is due.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, hide_default_value = true,
          default_value = "false", default_missing_value = "true")]
    pub until_caught_up: String,
    #[command(flatten)]
    pub options: RunOptions,
}

/// `walrelay status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch`.
#[derive(Debug, Args)]
pub struct DispatchArgs {
    #[command(subcommand)]
    pub action: DispatchAction,
}

/// What to do with dispatch state.
#[derive(Debug, Subcommand)]
pub enum DispatchAction {
    /// Lists rows, oldest position first.
    #[command(after_help = "Example:\n  walrelay dispatch list --status dead --older-than 1h")]
    List(DispatchListArgs),
    /// Shows one row: the decoded message and its history of errors.
    #[command(after_help = "Example:\n  walrelay dispatch show 6f1c9a9e-…")]
    Show(DispatchShowArgs),
    /// Makes rows due at once; dead rows get a new round of attempts.
    #[command(after_help = "Examples:\n  walrelay dispatch retry 6f1c9a9e-…\n  \
        walrelay dispatch retry --all-dead\n  walrelay dispatch retry --topic order.events")]
    Retry(DispatchRetryArgs),
    /// Replaces payload or attributes from files, then retries.
    #[command(after_help = "Example:\n  \
        walrelay dispatch edit 6f1c9a9e-… --payload-file fixed.json")]
    Edit(DispatchEditArgs),
    /// Gives a row up for good; the reason stays in the table.
    #[command(after_help = "Example:\n  \
        walrelay dispatch discard 6f1c9a9e-… --reason 'test order, agreed with billing'")]
    Discard(DispatchDiscardArgs),
}

/// `walrelay dispatch list`.
#[derive(Debug, Args)]
pub struct DispatchListArgs {
    /// Only rows in this state: retrying, dead, published or discarded.
    #[arg(long, value_name = "STATUS", help_heading = ARGUMENTS)]
    pub status: Option<String>,
    /// Only rows of this topic, short or full name.
    #[arg(long, value_name = "TOPIC", help_heading = ARGUMENTS)]
    pub topic: Option<String>,
    /// Only rows of this ordering key.
    #[arg(long, value_name = "KEY", help_heading = ARGUMENTS)]
    pub key: Option<String>,
    /// Only rows parked longer ago than this, as in 1h.
    #[arg(long, value_name = "DURATION", help_heading = ARGUMENTS)]
    pub older_than: Option<String>,
    /// How many rows at most; 1 to 100000.
    #[arg(long, value_name = "COUNT", default_value = "100", help_heading = ARGUMENTS)]
    pub limit: String,
    /// `table` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = ARGUMENTS)]
    pub format: String,
    /// Google Cloud project of topics given by their short name; also PUBSUB_PROJECT_ID,
    /// GOOGLE_CLOUD_PROJECT.
    #[arg(long, value_name = "PROJECT", help_heading = "Messages")]
    pub project: Option<String>,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch show`.
#[derive(Debug, Args)]
pub struct DispatchShowArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = ARGUMENTS)]
    pub format: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch retry`.
#[derive(Debug, Args)]
pub struct DispatchRetryArgs {
    /// Event ids.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub ids: Vec<String>,
    /// Every dead row of this slot.
    #[arg(long, help_heading = ARGUMENTS)]
    pub all_dead: bool,
    /// Every retrying or dead row of this topic, short or full name.
    #[arg(long, value_name = "TOPIC", help_heading = ARGUMENTS)]
    pub topic: Option<String>,
    /// Google Cloud project of topics given by their short name; also PUBSUB_PROJECT_ID,
    /// GOOGLE_CLOUD_PROJECT.
    #[arg(long, value_name = "PROJECT", help_heading = "Messages")]
    pub project: Option<String>,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch edit`.
#[derive(Debug, Args)]
pub struct DispatchEditArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// File whose bytes become the payload.
    #[arg(long, value_name = "FILE", help_heading = ARGUMENTS)]
    pub payload_file: Option<String>,
    /// File with a JSON object of strings, which becomes all the attributes.
    #[arg(long, value_name = "FILE", help_heading = ARGUMENTS)]
    pub attributes_file: Option<String>,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay dispatch discard`.
#[derive(Debug, Args)]
pub struct DispatchDiscardArgs {
    /// Event id of the row.
    #[arg(value_name = "ID", help_heading = ARGUMENTS)]
    pub id: String,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", help_heading = ARGUMENTS)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot`.
#[derive(Debug, Args)]
pub struct SlotArgs {
    #[command(subcommand)]
    pub action: SlotAction,
}

/// What to do with the slot.
#[derive(Debug, Subcommand)]
pub enum SlotAction {
    /// Shows the slot as the server sees it.
    #[command(after_help = "Example:\n  walrelay slot show --slot walrelay")]
    Show(SlotShowArgs),
    /// Creates the slot; the publication must exist already.
    #[command(after_help = "Example:\n  walrelay slot create --slot walrelay_eu")]
    Create(SlotCreateArgs),
    /// Drops the slot: what it has not confirmed can no longer be read from the log.
    #[command(after_help = "Example:\n  walrelay slot drop --slot walrelay_old --yes")]
    Drop(SlotDropArgs),
    /// Moves the slot forward over rows that will then never be published.
    #[command(after_help = "Example:\n  walrelay slot advance --to-lsn 16/B374D848 --skip-events")]
    Advance(SlotAdvanceArgs),
}

/// `walrelay slot show`.
#[derive(Debug, Args)]
pub struct SlotShowArgs {
    /// `text` for people, `json` for programs.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = ARGUMENTS)]
    pub format: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot create`.
#[derive(Debug, Args)]
pub struct SlotCreateArgs {
    /// Make it a failover slot; Postgres 17 or newer.
    #[arg(long, help_heading = ARGUMENTS)]
    pub failover: bool,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot drop`.
#[derive(Debug, Args)]
pub struct SlotDropArgs {
    /// Confirms that rows which are not confirmed yet may be given up.
    #[arg(long, help_heading = ARGUMENTS)]
    pub yes: bool,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay slot advance`.
#[derive(Debug, Args)]
pub struct SlotAdvanceArgs {
    /// Position to move to, as in 16/B374D848.
    #[arg(long, value_name = "LSN", help_heading = ARGUMENTS)]
    pub to_lsn: Option<String>,
    /// Confirms that the rows in between are skipped for good.
    #[arg(long, help_heading = ARGUMENTS)]
    pub skip_events: bool,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay prune`.
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Age a row must have to be deleted; 1s to 3650d.
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    pub older_than: String,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
}

/// `walrelay emulator`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Emulator")]
pub struct EmulatorArgs {
    /// Address of the gRPC services.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8085")]
    pub listen: String,
    /// Address of the HTTP control port, or `off`.
    #[arg(long, value_name = "ADDRESS", default_value = "off")]
    pub control_listen: String,
    /// A fault to begin with, conditions and one effect; may be given several times.
    ///
    /// It strikes what `on` says: on=publish (the default), pull, streaming-pull, delivery,
    /// acknowledge or modify-ack-deadline. Conditions: topic=T, subscription=S, key=K, event_type=V,
    /// event_id=V, attr.NAME=V, percent=P, skip=N, first=N. Effects for all: reject=CODE,
    /// hold-before, delay=TIME, black-hole; for all but the two pulls: fail-after=CODE, hold; for
    /// delivery: expire; for acknowledge and modify-ack-deadline: lose, fail-ids=invalid, unordered or
    /// temporary. As in topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE or
    /// on=acknowledge,subscription=billing,first=3,lose.
    #[arg(long, value_name = "FAULT")]
    pub fault: Vec<String>,
    /// Memory for stored messages, 1MiB to 64GiB; more is refused with RESOURCE_EXHAUSTED.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub max_stored_bytes: String,
}

/// `walrelay demo`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Demo")]
pub struct DemoArgs {
    /// Stop after this many committed rows [default: run until Ctrl-C].
    #[arg(long, value_name = "COUNT")]
    pub rows: Option<String>,
    /// Outbox rows per second; 1 to 100000.
    #[arg(long, value_name = "COUNT", default_value = "50")]
    pub rate: String,
    /// Aggregates the rows are spread over; 1 to 1000000.
    #[arg(long, value_name = "COUNT", default_value = "20")]
    pub aggregates: String,
    /// Only the summary, not every message.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, hide_default_value = true,
          default_value = "false", default_missing_value = "true")]
    pub quiet: String,
}

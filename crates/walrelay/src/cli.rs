//! The command line: clap types, nothing else.
//!
//! The types state which command takes which [`options`](crate::options), and the arguments that
//! only the command line may give.

#![expect(missing_docs, reason = "doc comments are the text of --help; groups are named by type")]

mod anchor;
mod backfill;
mod config;
mod dispatch;
mod inbox;
mod proof;
mod rebuild;
mod replay;
mod slot;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use anchor::*;
pub use backfill::*;
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Args, Command, CommandFactory as _, Parser, Subcommand};
pub use config::*;
pub use dispatch::*;
pub use inbox::*;
pub use proof::*;
pub use rebuild::*;
pub use replay::*;
pub use slot::*;
use walrelay_pg_client::QualifiedName;

use crate::config::Shell;
use crate::options::values::{
    consumer_name, duration, listen, may_hold_secret, shard_count, text_form, word,
};
use crate::options::{
    ColumnOptions, ConnectionOptions, ConsumerOptions, DatabaseOptions, DemoOptions,
    EmulatorOptions, EndpointOptions, GeneralOptions, InitOptions, MessageOptions, OutputOptions,
    ProjectOption, PruneOptions, PubSubOptions, RelayOptions, RunOptions, SqlOption,
    SubscriptionOption, UntilOption, WalBudgetOption,
};

/// Carries a Postgres transactional outbox into Google Cloud Pub/Sub, in order, losing nothing.
///
/// Every option is a flag, an environment variable WALRELAY_<NAME>, and a key of the file named by
/// --config: a flag beats the environment, the environment beats the file, the file beats the
/// default. Durations are written 500ms, 30s, 5m, 12h, 7d; sizes 512KiB, 64MiB, 10MB.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub general: GeneralOptions,
    #[command(subcommand)]
    pub command: CommandArgs,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done or asked to stop; 1 unexpected; 2 usage or configuration; 3 Postgres is not set up \
for this; 4 Pub/Sub is not set up for this; 5 the slot is lost; 6 the slot is held by somebody else; \
101 a broken invariant.";

/// Help heading of the arguments of one invocation: neither environment nor file may set them.
pub const ARGUMENTS: &str = "Arguments";

/// Returns whether environment and file may set an argument.
#[must_use]
pub fn is_option(argument: &Arg) -> bool {
    argument.get_long().is_some() && argument.get_help_heading() != Some(ARGUMENTS)
}

/// Returns the declaration of the command line. The switches among its options take a value, so
/// that a flag can turn off what the environment or the file has turned on.
#[must_use]
pub fn command() -> Command {
    fn shape(command: Command) -> Command {
        command.mut_args(shape_switch).mut_args(hide_secret).mut_subcommands(shape)
    }
    shape(Cli::command())
}

/// Keeps the help from showing a secret that the environment or the file has set.
fn hide_secret(argument: Arg) -> Arg {
    let is_secret = may_hold_secret(&argument);
    let is_hidden = argument.is_hide_default_value_set();
    argument.hide_default_value(is_secret || is_hidden)
}

fn shape_switch(argument: Arg) -> Arg {
    if !is_option(&argument) || !matches!(argument.get_action(), ArgAction::SetTrue) {
        return argument;
    }
    argument
        .action(ArgAction::Set)
        .value_name("BOOL")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .default_value("false")
        .hide_default_value(true)
        .hide_possible_values(true)
        .value_parser(BoolishValueParser::new())
}

/// One per command of the manual.
#[derive(Debug, Subcommand)]
pub enum CommandArgs {
    /// Creates tables, publication and slot; safe to run again.
    ///
    /// Applies the migrations, then creates the publication (inserts only), then the slot, in that
    /// order: a slot older than its publication never works. What exists already is left alone.
    #[command(after_help = "Examples:\n  \
        walrelay init --database-url postgresql://postgres@db.example:5432/app --create-topics\n  \
        walrelay init --backfill")]
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
    ///
    /// With OTEL_EXPORTER_OTLP_ENDPOINT set, traces and metrics are sent to that OpenTelemetry collector.
    #[command(after_help = "Examples:\n  \
        walrelay run --database-url postgresql://postgres@db.example:5432/app --project my-project\n  \
        PUBSUB_EMULATOR_HOST=localhost:8085 walrelay run --project dev --until-caught-up")]
    Run(RunArgs),
    /// How it stands and what helps; slot, lag, room before the slot is lost, parked and dead rows.
    #[command(after_help = "Examples:\n  walrelay status --format json\n  \
        walrelay status --watch --relay 127.0.0.1:8080")]
    Status(StatusArgs),
    /// What did not go out at the first try: list, show, retry, edit, discard.
    ///
    /// Works while the relay runs, which notices within two seconds. Nothing is ever discarded by
    /// itself.
    Dispatch(DispatchArgs),
    /// The replication slot: show, create, drop, advance.
    Slot(SlotArgs),
    /// Slots that stand behind on purpose, so that a replay finds the log: create, list, advance, drop.
    Anchor(AnchorArgs),
    /// Publishes again, to another topic, what lies behind an anchor, in the original order.
    ///
    /// Streams a temporary copy of the anchor beside the running relay, whose slot does not move. Rows have
    /// the positions and event ids they had at first, and the attribute `replay_id` besides. Interrupted, it
    /// says how to go on.
    #[command(after_help = "Examples:\n  \
        walrelay replay --from-anchor before_release --to-topic video.again --dry-run\n  \
        walrelay replay --from-time 6h --aggregate-id 4711 --to-topic video.again --rate 500\n  \
        walrelay replay --resume 5f3a9c01")]
    Replay(Box<ReplayArgs>),
    /// Publishes rows of the table to another topic, where no log reaches, by version per aggregate.
    ///
    /// The table is read beside the running relay, as it is when this begins. Every message has the attribute
    /// `replay_id`. Interrupted, it says how to go on.
    #[command(after_help = "Examples:\n  \
        walrelay backfill --since 30d --aggregate-type video --to-topic video.again --dry-run\n  \
        walrelay backfill --to-topic video.again --rate 500\n  \
        walrelay backfill --resume 5f3a9c01")]
    Backfill(Box<BackfillArgs>),
    /// Before an upgrade of the server: publishes and confirms everything, and drops slot and anchors.
    ///
    /// An upgrade is refused while there are slots. Relays let go of theirs and wait; producers need not stop.
    /// Afterwards `slot recover`, or a relay with --on-slot-lost recover, goes on without loss.
    #[command(after_help = "Example:\n  walrelay prepare-upgrade --project my-project")]
    PrepareUpgrade(PrepareUpgradeArgs),
    /// Changes the number of shards while producers write, without loss or reordering.
    ///
    /// Makes the new publications and slots, has the relays of the old ones let go, publishes what is left to
    /// those up to one position, hands over what is parked, and drops them. Interrupted before the switch, the
    /// old relays go on; run again it goes on in any case, and with the number that there was before it is called off.
    #[command(after_help = "Examples:\n  walrelay reshard --shards 4 --project my-project\n  \
        walrelay reshard --shards 1 --dry-run")]
    Reshard(ReshardArgs),
    /// Deletes outbox rows that are old, confirmed and not parked.
    ///
    /// Never rows that a recovery would need. Of a partitioned outbox, partitions whose rows may all go are dropped.
    #[command(
        after_help = "Examples:\n  walrelay prune --older-than 30d\n  walrelay prune --older-than 30d --dry-run"
    )]
    Prune(PruneArgs),
    /// The other end: applies a subscription's events to a database, each once, in order per key.
    ///
    /// Calls a SQL function of yours for every batch. Its effect and the record that the event was
    /// seen commit together, and only then the message is acknowledged; what comes again is found in
    /// the inbox and skipped. Loss of a connection is not an end. SIGTERM and SIGINT finish what is out
    /// and exit with 0. More instances give more throughput. The database may be behind a pooler.
    ///
    /// With OTEL_EXPORTER_OTLP_ENDPOINT set, traces and metrics are sent to that OpenTelemetry collector.
    #[command(after_help = "Examples:\n  \
        walrelay consume billing --handler shop.apply --database-url postgresql://app@db.example:6543/app\n  \
        PUBSUB_EMULATOR_HOST=localhost:8085 walrelay consume billing --handler shop.apply --until-caught-up")]
    Consume(ConsumeArgs),
    /// Consumers: init, scaffold, status, pause, resume, rebuild, reset-key, prune.
    Consumer(ConsumerArgs),
    /// Events that a consumer could not apply: list, show, retry, edit, discard.
    ///
    /// Works while consumers run, which notice within a second. Nothing is ever discarded by itself.
    Inbox(InboxArgs),
    /// Proves that every event that was published is in each consumer's inbox.
    ///
    /// Counts and hashes the settled rows of the outbox and the rows of each inbox by minute, and compares
    /// the minutes that differ id by id. Events that are missing are named, and the exit code is 1. What the
    /// relay holds back (parked, dead, discarded) and what the inbox was pruned of is told apart.
    #[command(after_help = "Examples:\n  walrelay audit --since 7d\n  \
        walrelay audit --inbox billing=postgresql://app@billing.example:5432/app --aggregate-type order\n  \
        walrelay audit --subscription audit --since 2d")]
    Audit(AuditArgs),
    /// One event's life: outbox row, position, dispatch state, each consumer's inbox.
    #[command(after_help = "Example:\n  walrelay trace 6f1c9a9e-…")]
    Trace(TraceArgs),
    /// The embedded Pub/Sub: an in-memory stand-in that enforces production's limits.
    ///
    /// Speaks the Publisher and Subscriber services over gRPC without credentials. Point clients
    /// at it with PUBSUB_EMULATOR_HOST. Everything is forgotten when it stops.
    #[command(after_help = "Example:\n  \
        walrelay emulator --listen 127.0.0.1:8085 --control-listen 127.0.0.1:8086")]
    Emulator(EmulatorOptions),
    /// Everything embedded: Postgres, Pub/Sub, a producer, the relay and a checking subscriber.
    ///
    /// Prints what arrives and checks order and completeness; ends with a summary, and with 0 only
    /// when nothing was lost and nothing was out of order.
    #[command(after_help = "Example:\n  walrelay demo --rows 1000")]
    Demo(DemoOptions),
    /// Show, check and describe the configuration.
    Config(ConfigArgs),
    /// Explain an error code: cause, exit code and fix.
    #[command(after_help = "Examples:\n  walrelay explain slot-lost\n  walrelay explain")]
    Explain(ExplainArgs),
    /// Prints the completions of a shell.
    #[command(after_help = "Examples:\n  \
        walrelay completions bash > /etc/bash_completion.d/walrelay\n  \
        walrelay completions zsh > \"${fpath[1]}/_walrelay\"\n  \
        walrelay completions fish > ~/.config/fish/completions/walrelay.fish")]
    Completions(CompletionsArgs),
    /// Writes the man pages, one for each command.
    #[command(after_help = "Example:\n  walrelay man /usr/local/share/man/man1")]
    Man(ManArgs),
}

/// `walrelay explain`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ExplainArgs {
    /// The code, as an error shows it in `error[CODE]`. Without a code, all codes are listed.
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
}

const SHELLS: &[(&str, Shell)] =
    &[("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// `walrelay completions`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = word(SHELLS))]
    pub shell: Shell,
}

/// `walrelay man`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ManArgs {
    /// Directory that the pages are written into; it is created when it is missing.
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
}

/// Everything the relay is configured by.
#[derive(Debug, Args)]
pub struct ServiceOptions {
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
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct InitArgs {
    /// Make a new slot in place of one that was lost, after printing what may not have been published.
    #[arg(long)]
    pub accept_loss: bool,
    /// Rows that are in the table before there is a slot are published too, by `walrelay run`, first of all.
    #[arg(long, conflicts_with = "accept_loss")]
    pub backfill: bool,
    #[command(flatten)]
    pub own: InitOptions,
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
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub own: RunOptions,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay prepare-upgrade`.
#[derive(Debug, Args)]
pub struct PrepareUpgradeArgs {
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay reshard`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ReshardArgs {
    /// How many shards there are to be: a power of two, from 1, which is an outbox without shards, to 64.
    #[arg(long, value_name = "N", required = true, value_parser = shard_count)]
    pub shards: u32,
    /// Look whether it can be done and say what would be, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay status`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct StatusArgs {
    /// Show it again and again: every two seconds, or as often as given (`--watch=10s`). In place on a
    /// terminal; elsewhere each report has its time, and in JSON a line.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          default_missing_value = "2s", value_parser = duration("100ms", "1h"))]
    pub watch: Option<Duration>,
    /// Where the relay serves HTTP, as in 127.0.0.1:8080: its phase, readiness and heaviest keys are shown too.
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    pub relay: Option<SocketAddr>,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay consume`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ConsumeArgs {
    /// Name of the consumer, as `consumer init` was given it.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub until: UntilOption,
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
pub struct ConsumerArgs {
    #[command(subcommand)]
    pub action: ConsumerActionArgs,
}

/// What to do with a consumer.
#[derive(Debug, Subcommand)]
pub enum ConsumerActionArgs {
    /// Creates tables, functions and the consumer's row; with --create the subscription too.
    ///
    /// Safe to run again. A subscription that it creates delivers in order and never expires; one that exists is left as
    /// it is, and refused where it is unordered, of another topic or filtered otherwise. Without --create it has to
    /// exist. A consumer that has applied nothing yet may be given another one. Prints the SQL with the grants that a
    /// role of its own needs.
    #[command(after_help = "Example:\n  \
        walrelay consumer init billing --subscription billing --create --topic order.events")]
    Init(ConsumerInitArgs),
    /// Prints a handler function to start from: a version-gated UPSERT for the columns of a table.
    ///
    /// Where the database has the roles of a web API, anon and authenticated, it also takes the function from them, and
    /// warns of a table that is open to them.
    #[command(after_help = "Example:\n  walrelay consumer scaffold shop.orders > handler.sql")]
    Scaffold(ConsumerScaffoldArgs),
    /// Counts by status, keys that are held, the rate of the last minute.
    #[command(after_help = "Example:\n  walrelay consumer status billing --format json")]
    Status(ConsumerStatusArgs),
    /// Lets nothing be applied, by any instance, until it is resumed.
    #[command(after_help = "Example:\n  walrelay consumer pause billing")]
    Pause(ConsumerNameArgs),
    /// Goes on after a pause; running instances notice within a second.
    #[command(after_help = "Example:\n  walrelay consumer resume billing")]
    Resume(ConsumerNameArgs),
    /// Applies everything published since a time, or all rows of the outbox, again, in a new generation.
    ///
    /// For a new read model. Creates a subscription to the same topic and seeks it back, then empties the read
    /// model and moves the consumer to a new generation and to it, in one transaction. Running instances follow.
    /// With --from-outbox the new subscription is to a topic of its own, to which the rows of the outbox are
    /// published; when all of them are in the inbox the consumer goes back to the subscription it had. With
    /// --seek-to what was published before that time is not applied again. With --into the rows of the outbox are applied
    /// in another schema, while the read model stays in use. With --key single ordering keys are rebuilt.
    #[command(after_help = "Examples:\n  \
        walrelay consumer rebuild billing --into fresh --handler apply_orders\n  \
        walrelay consumer rebuild billing --key A-17 --handler apply_orders --reset-function reset_orders\n  \
        walrelay consumer rebuild billing --seek-to 7d --reset-sql truncate.sql\n  \
        walrelay consumer rebuild billing --from-outbox refill --reset-sql truncate.sql")]
    Rebuild(Box<ConsumerRebuildArgs>),
    /// Forget how far an ordering key is, where its position cannot be right.
    ///
    /// With `consume --dedupe position` a message with a forged position makes later events of its key look old, and they
    /// are skipped. Shows the position and how many events were skipped because of it, and asks. The skipped events are
    /// applied when they are published again.
    #[command(after_help = "Example:\n  walrelay consumer reset-key billing --key A-17")]
    ResetKey(ConsumerResetKeyArgs),
    /// Deletes rows of the inbox that are finished and old.
    ///
    /// Refuses an age within which Pub/Sub may deliver the event again: it would be applied twice.
    #[command(after_help = "Example:\n  walrelay consumer prune billing --older-than 40d")]
    Prune(ConsumerPruneArgs),
}

/// `walrelay consumer init`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ConsumerInitArgs {
    /// Name of the consumer: one for each thing that is kept up to date.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// Create the subscription, ordered and without expiry; needs --topic.
    #[arg(long, requires = "topic")]
    pub create: bool,
    /// Topic of a subscription to be created, short or full name.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Where Pub/Sub sends what was delivered 100 times; short or full name of a topic.
    #[arg(long, value_name = "TOPIC", requires = "create")]
    pub dead_letter_topic: Option<String>,
    /// Create it with exactly-once delivery: fewer copies, more latency. The inbox does not need it.
    #[arg(long, requires = "create")]
    pub exactly_once: bool,
    /// Only messages with these attributes, in Pub/Sub's filter language.
    #[arg(long, value_name = "FILTER", requires = "create")]
    pub filter: Option<String>,
    #[command(flatten)]
    pub subscription: SubscriptionOption,
    #[command(flatten)]
    pub sql: SqlOption,
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
pub struct ConsumerScaffoldArgs {
    /// The table that the handler is to keep up to date, `schema.table`.
    #[arg(value_name = "TABLE", value_parser = text_form::<QualifiedName>)]
    pub table: QualifiedName,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer status`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ConsumerStatusArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer pause` and `resume`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ConsumerNameArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer reset-key`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ConsumerResetKeyArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    /// The ordering key.
    #[arg(long, value_name = "KEY")]
    pub key: String,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub connection: ConnectionOptions,
}

/// `walrelay consumer prune`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct ConsumerPruneArgs {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    pub name: String,
    #[command(flatten)]
    pub own: PruneOptions,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub endpoint: EndpointOptions,
}

/// `walrelay prune`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub struct PruneArgs {
    /// Tell how many rows would be deleted, and delete none.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub own: PruneOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub columns: ColumnOptions,
}

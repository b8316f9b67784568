//! The command line: clap types, nothing else.
//!
//! The types state which command takes which [`options`](crate::options), and the arguments that
//! only the command line may give.

mod anchor;
mod audit_and_trace;
mod config;
mod consumer;
mod dispatch;
mod emit_and_tail;
mod failed_events;
pub(crate) mod guesses;
mod inbox;
mod rebuild;
mod replay;
mod slot;
mod snapshot;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use anchor::*;
pub(crate) use audit_and_trace::*;
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Args, Command, CommandFactory as _, Parser, Subcommand};
pub(crate) use config::*;
pub(crate) use consumer::*;
pub(crate) use dispatch::*;
pub(crate) use emit_and_tail::*;
pub(crate) use emit_and_tail::{EmittedEventArgs, ForgottenArgs};
pub(crate) use failed_events::EditFiles;
pub(crate) use failed_events::*;
pub(crate) use inbox::*;
pub(crate) use rebuild::*;
pub(crate) use replay::*;
pub(crate) use slot::*;
pub(crate) use snapshot::SnapshotRequest;
pub(crate) use snapshot::*;
use walrelay_outbox_admin::archive::ArchiveLocation;

use crate::options::choices::{ChangeMode, ChangeOptions, Shell};
use crate::options::values::{
    archive_location, duration, listen, may_hold_secret, shard_count, word,
};
use crate::options::{
    DatabaseOptions, DefinitionOptions, DemoOptions, EmulatorOptions, GeneralOptions, InitOptions,
    MessageOptions, OWN_OPTIONS, OutputOptions, PruneArchiveOption, PubSubOptions, RelayOptions,
    RetentionOptions, RunOptions, WalBudgetOption,
};

/// Carries a Postgres transactional outbox into Google Cloud Pub/Sub, in order, losing nothing.
///
/// Every option is a flag, an environment variable WALRELAY_<NAME>, and a key of the file named by
/// --config: a flag beats the environment, the environment beats the file, the file beats the
/// default. Durations are written 500ms, 30s, 5m, 12h, 7d; sizes 512KiB, 64MiB, 10MB.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub general: GeneralOptions,
    #[command(subcommand)]
    pub command: CommandArgs,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done or asked to stop; 1 unexpected; 2 usage or configuration; 3 Postgres is not set up \
for this; 4 Pub/Sub is not set up for this; 5 the slot is lost; 6 the slot is held by somebody else; \
101 a broken invariant.";

/// Marks the arguments of one invocation: neither environment nor file may set them. The help shows
/// them without this heading, see [`with_help_headings`].
pub(crate) const ARGUMENTS: &str = "Arguments";

/// How a command that deletes, republishes or moves something asks.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct ConfirmArgs {
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// Print what would happen, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

impl ConfirmArgs {
    pub(crate) const fn mode(&self) -> ChangeMode {
        match (self.dry_run, self.yes) {
            (true, _) => ChangeMode::DryRun,
            (false, true) => ChangeMode::Agreed,
            (false, false) => ChangeMode::Ask,
        }
    }
}

/// Consent and output of a command that changes something.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    #[command(flatten)]
    pub output: OutputOptions,
}

impl ChangeArgs {
    pub(crate) const fn options(&self) -> ChangeOptions {
        ChangeOptions { mode: self.confirm.mode(), format: self.output.output }
    }
}

/// Returns whether environment and file may set an argument.
#[must_use]
pub(crate) fn is_option(argument: &Arg) -> bool {
    argument.get_long().is_some() && argument.get_help_heading() != Some(ARGUMENTS)
}

/// Returns the declaration of the command line. The switches among its options take a value, so
/// that a flag can turn off what the environment or the file has turned on.
#[must_use]
pub(crate) fn command() -> Command {
    fn shape(command: Command) -> Command {
        command.mut_args(shape_switch).mut_args(hide_secret).mut_subcommands(shape)
    }
    shape(Cli::command()).mut_subcommand("run", with_short_help)
}

/// Returns the command with the headings of its help. Clap lists positional arguments without a
/// heading under `Arguments`, and flags without a heading under `Options`, next to `--help`. So the
/// headings that only mark arguments are removed.
pub(crate) fn with_help_headings(command: Command) -> Command {
    fn with_help_heading(argument: Arg) -> Arg {
        match argument.get_help_heading() {
            Some(ARGUMENTS | OWN_OPTIONS | "Emulator" | "Demo") => {
                argument.help_heading(None::<&'static str>)
            }
            Some(_) | None => argument,
        }
    }
    command.mut_args(with_help_heading).mut_subcommands(with_help_headings)
}

/// The options that `run -h` shows, so that they fit on one screen.
const SHORT_HELP: [&str; 10] = [
    "database-url",
    "project",
    "topic-template",
    "ordering-key",
    "outbox-table",
    "slot",
    "shard",
    "endpoint",
    "http",
    "until-caught-up",
];

fn with_short_help(command: Command) -> Command {
    command.mut_args(|argument| {
        let is_short = argument.get_long().is_some_and(|long| SHORT_HELP.contains(&long));
        argument.hide_short_help(!is_short)
    })
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
pub(crate) enum CommandArgs {
    /// Create tables, publication and slot; safe to run again.
    ///
    /// Applies the migrations, then creates the publication (inserts only), then the slot, in that
    /// order: a slot older than its publication never works. What exists already is left alone.
    #[command(after_help = "Examples:\n  \
        walrelay init --database-url postgresql://postgres@db.example:5432/app --create-topics\n  \
        walrelay init --backfill")]
    Init(InitArgs),
    /// Check Postgres, Pub/Sub and the configuration, and name what to fix.
    ///
    /// Changes nothing. Prints each finding with its fix and exits with 0 when `run` would start, otherwise with the
    /// code `run` would stop with.
    #[command(after_help = "Example:\n  walrelay check --project my-project --output json")]
    Check(CheckArgs),
    /// Publish every committed outbox row to Pub/Sub, in order per key.
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
    /// Show relay health and the recommended next step.
    #[command(after_help = "Examples:\n  walrelay status --output json\n  \
        walrelay status --watch --relay 127.0.0.1:8080")]
    Status(StatusArgs),
    /// List, show, retry, edit and discard rows that Pub/Sub refused.
    ///
    /// Works while the relay runs, which notices within two seconds. Nothing is ever discarded by
    /// itself.
    Dispatch(DispatchArgs),
    /// Drop, advance, reset or recover the replication slot.
    Slot(SlotArgs),
    /// Create, list, advance and drop anchors, which retain WAL for a replay.
    Anchor(AnchorArgs),
    /// Publish rows again, and manage such replays.
    Replay(ReplayArgs),
    /// Change the number of shards while producers write, without loss or reordering.
    ///
    /// Creates the new publications and slots, and stops the relays of the old ones. Publishes the rows of the old slots
    /// up to one position, hands over the parked rows, and drops the old slots. If it is interrupted before the switch,
    /// the old relays continue. Run it again to continue, or with the old number to cancel.
    #[command(
        after_help = "Examples:\n  walrelay reshard --shards 4 --project my-project --yes\n  \
        walrelay reshard --shards 1 --dry-run"
    )]
    Reshard(ReshardArgs),
    /// Delete outbox rows that are old, confirmed and not parked.
    ///
    /// Never rows that a recovery would need. Of a partitioned outbox, partitions whose rows may all go are dropped.
    #[command(after_help = "Examples:\n  walrelay prune --older-than 30d --dry-run\n  \
        walrelay prune --older-than 30d --archive gs://my-bucket/outbox")]
    Prune(PruneArgs),
    /// Set up, run and operate consumers, which apply events to a database.
    Consumer(ConsumerArgs),
    /// List, show, retry, edit and discard events that a consumer could not apply.
    ///
    /// Works while consumers run, which notice within a second. Nothing is ever discarded by itself.
    Inbox(InboxArgs),
    /// Prove that every published event is in each consumer's inbox.
    ///
    /// Counts and hashes the settled rows of the outbox and the rows of each inbox by minute, and compares
    /// the minutes that differ id by id. Missing events are named, and the exit code is 1. Rows in
    /// dispatch state (retrying, dead, discarded) and pruned events are counted separately.
    #[command(after_help = "Examples:\n  walrelay audit --from-time 7d\n  \
        walrelay audit --inbox billing=postgresql://app@billing.example:5432/app --aggregate-type order\n  \
        walrelay audit --subscription audit --from-time 2d")]
    Audit(AuditArgs),
    /// Trace one event: outbox row, position, dispatch state, each consumer's inbox.
    #[command(after_help = "Example:\n  walrelay trace 6f1c9a9e-…")]
    Trace(TraceArgs),
    /// Write one event to the outbox with the function app_outbox_emit.
    ///
    /// Prints the version of the event within its aggregate and the event id. The id needs SELECT on the outbox table.
    #[command(after_help = "Example:\n  walrelay emit order A-1 OrderPlaced '{\"total\": 42}'")]
    Emit(EmitArgs),
    /// Forget aggregates whose ids are never used again.
    ///
    /// Deletes their last versions, so that `app_outbox_aggregate` does not grow. An aggregate whose event is written
    /// meanwhile is kept. The next event of a forgotten aggregate has version 1, and consumers may ignore it as old.
    #[command(after_help = "Examples:\n  walrelay forget order A-1 A-2 --dry-run\n  \
        walrelay forget order --from-file closed-orders.txt --yes")]
    Forget(ForgetArgs),
    /// Write one event for each existing row of a business table.
    ///
    /// Calls the function app_outbox_snapshot until it has read the table, in the order of the id column, while the
    /// application keeps writing. Rows whose aggregate has events already are skipped. If the command is interrupted,
    /// run it again: it continues.
    #[command(after_help = "Examples:\n  \
        walrelay snapshot customers --aggregate-type customer --aggregate-id id --dry-run\n  \
        walrelay snapshot customers --aggregate-type customer --aggregate-id id --columns name --rate 2000 --yes")]
    Snapshot(SnapshotArgs),
    /// Print the messages of a topic as they arrive.
    ///
    /// Creates a subscription of its own, and deletes it at the end. If the command is killed, Pub/Sub deletes the
    /// subscription after a day. Other subscriptions keep their messages.
    #[command(
        after_help = "Examples:\n  walrelay tail order.events\n  walrelay tail order.events -n 1 -o json"
    )]
    Tail(TailArgs),
    /// Run the embedded Pub/Sub, an in-memory stand-in with production's limits.
    ///
    /// Speaks the Publisher and Subscriber services over gRPC without credentials. Point clients
    /// at it with PUBSUB_EMULATOR_HOST. Everything is forgotten when it stops.
    #[command(after_help = "Example:\n  \
        walrelay emulator --listen 127.0.0.1:8085 --control-listen 127.0.0.1:8086")]
    Emulator(EmulatorOptions),
    /// Run everything embedded: Postgres, Pub/Sub, a producer, the relay, a checker.
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
    /// Print the version.
    #[command(after_help = "Example:\n  walrelay version -o json")]
    Version(VersionArgs),
    /// Print the completions of a shell.
    #[command(after_help = "Examples:\n  \
        walrelay completions bash > /etc/bash_completion.d/walrelay\n  \
        walrelay completions zsh > \"${fpath[1]}/_walrelay\"\n  \
        walrelay completions fish > ~/.config/fish/completions/walrelay.fish")]
    Completions(CompletionsArgs),
    /// Write the man pages, one for each command.
    #[command(after_help = "Example:\n  walrelay man /usr/local/share/man/man1")]
    Man(ManArgs),
}

impl CommandArgs {
    /// Returns whether the command runs until it is stopped, so that its log goes to a collector.
    pub(crate) const fn is_service(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Emulator(_)
                | Self::Consumer(ConsumerArgs { action: ConsumerActionArgs::Run(_) })
        )
    }
}

/// `walrelay explain`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ExplainArgs {
    /// The code, as an error shows it in `error[CODE]`. Without a code, all codes are listed.
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

/// `walrelay version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub output: OutputOptions,
}

const SHELLS: &[(&str, Shell)] =
    &[("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// `walrelay completions`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = word(SHELLS))]
    pub shell: Shell,
}

/// `walrelay man`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ManArgs {
    /// Directory that the pages are written into; it is created when it is missing.
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
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

/// `walrelay init`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct InitArgs {
    /// With --unpublished-column: do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// Rows that are in the table before there is a slot are published too, by `walrelay run`, first of all.
    #[arg(long)]
    pub backfill: bool,
    /// Rows that are in the table before there is a slot are never published. Without this or --backfill, such rows are
    /// refused.
    #[arg(long, conflicts_with = "backfill")]
    pub skip_existing_rows: bool,
    /// With --backfill: publish only rows in which this column is null, as in `published_at`. Stop the old publisher
    /// first. The command counts the rows in which it is set, and asks.
    #[arg(long, value_name = "COLUMN", requires = "backfill")]
    pub unpublished_column: Option<String>,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub own: InitOptions,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub definition: DefinitionOptions,
    #[command(flatten)]
    pub messages: MessageOptions,
    #[command(flatten)]
    pub pubsub: PubSubOptions,
}

/// `walrelay check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub retention: RetentionOptions,
    #[command(flatten)]
    pub archive: PruneArchiveOption,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub definition: DefinitionOptions,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub own: RunOptions,
    #[command(flatten)]
    pub definition: DefinitionOptions,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay reshard`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct ReshardArgs {
    /// How many shards there are to be: a power of two, from 1, which is an outbox without shards, to 64.
    #[arg(long, value_name = "N", required = true, value_parser = shard_count)]
    pub shards: u32,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// `walrelay status`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct StatusArgs {
    /// Show it again and again: every two seconds, or as often as given (`--watch=10s`). In place on a
    /// terminal; elsewhere each report has its time, and in JSON a line.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          default_missing_value = "2s", value_parser = duration("100ms", "1h"))]
    pub watch: Option<Duration>,
    /// Where the relay serves HTTP, as in 127.0.0.1:8080: its phase, readiness and heaviest keys are shown too.
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    pub relay: Option<SocketAddr>,
    #[command(flatten)]
    pub places: InboxPlaces,
    #[command(flatten)]
    pub output: OutputOptions,
    #[command(flatten)]
    pub wal_budget: WalBudgetOption,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

/// `walrelay prune`.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(crate) struct PruneArgs {
    /// Age a row must have to be deleted, such as 30d; 1s to 3650d.
    #[arg(long, value_name = "DURATION", required = true, value_parser = duration("1s", "3650d"))]
    pub older_than: Duration,
    /// Write the rows to this directory or bucket before they are deleted, as compressed JSON lines.
    ///
    /// A directory must exist. A URL is `file:///DIRECTORY`, `gs://BUCKET/PREFIX` or `s3://BUCKET/PREFIX`.
    #[arg(long, value_name = "LOCATION", value_parser = archive_location)]
    pub archive: Option<ArchiveLocation>,
    #[command(flatten)]
    pub change: ChangeArgs,
    #[command(flatten)]
    pub database: DatabaseOptions,
}

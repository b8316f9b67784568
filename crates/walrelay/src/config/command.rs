//! What each command needs: plain data, checked by whoever built it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pgoutput_parser::Position;
use walrelay_core::{ColumnNames, Names, RouterConfig, WalBudgetLimit};
use walrelay_emulator::Fault;
use walrelay_outbox_admin::OnLost;
use walrelay_outbox_store::{DispatchQuery, Outbox};
use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::Endpoint;
use walrelay_relay::settings::{PubSubSettings, Settings};

use super::consent::Consent;
use super::consuming::{ConsumeConfig, ConsumerConfig, InboxConfig};
use super::orders::{AdvanceOrder, BackfillConfig, Place, RecoverOrder, ReplayConfig, ResetOrder};
use super::output_format::OutputFormat;

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
    Anchor(AnchorConfig),
    Replay(Box<ReplayConfig>),
    Backfill(Box<BackfillConfig>),
    PrepareUpgrade(Box<RunConfig>),
    Reshard(Box<ReshardConfig>),
    Prune(PruneConfig),
    Consume(Box<ConsumeConfig>),
    Consumer(Box<ConsumerConfig>),
    Inbox(InboxConfig),
    Audit(Box<AuditConfig>),
    Trace(Box<TraceConfig>),
    Emulator(EmulatorConfig),
    Demo(DemoConfig),
    Completions(Shell),
    Man(PathBuf),
}

impl Command {
    /// Whether it goes on until a signal ends it, with nothing left to finish.
    #[must_use]
    pub const fn is_ended_by_a_signal(&self) -> bool {
        matches!(self, Self::Status(StatusConfig { watch: Some(_), .. }))
    }
}

/// A shell that completes command lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all there is")]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Where Postgres is and what to read there.
#[derive(Debug, Clone)]
pub struct DatabaseConfig {
    /// How to connect.
    pub connect: ConnectConfig,
    /// Which slot, publication and outbox tables.
    pub outbox: Outbox,
}

/// Everything `walrelay run` needs.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The service's own settings.
    pub settings: Settings,
    /// Whether a lost slot is recovered without a person.
    pub on_slot_lost: OnSlotLost,
    /// How far back an anchor of the relay's own reaches; none is kept without.
    pub anchor_keep: Option<Duration>,
    /// The address that serves `/livez`, `/readyz`, `/metrics` and `/status`; `None` serves none.
    pub http: Option<SocketAddr>,
    /// The collector that spans and metrics are sent to; none are without.
    pub otlp: Option<walrelay_otlp::Settings>,
}

/// Everything `walrelay reshard` needs.
#[derive(Debug, Clone)]
pub struct ReshardConfig {
    /// What a relay of the whole outbox would run with.
    pub settings: Settings,
    /// How many shards there are to be.
    pub shards: u32,
    /// Whether it is done.
    pub resharded: Resharded,
}

/// Whether the number of shards is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resharded {
    /// It is.
    Done,
    /// What would be done is told.
    Told,
}

/// What `run` does when its slot was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSlotLost {
    /// It waits until another command has brought the slot back; a run that ends by itself stops with exit 5.
    Wait,
    /// It stops with exit 5.
    Stop,
    /// It makes a new slot, and publishes from the table what may not have been settled.
    Recover,
}

/// Everything `walrelay init` needs.
#[derive(Debug, Clone)]
pub struct InitConfig {
    /// How to connect; `None` when the SQL is only printed.
    pub connect: Option<ConnectConfig>,
    /// The slot and the publication to create, and the tables it publishes.
    pub outbox: Outbox,
    /// Into how many shards it is divided.
    pub shards: u32,
    /// How rows become messages: their topics are created if asked for.
    pub router: RouterConfig,
    /// Where Pub/Sub is.
    pub pubsub: PubSubSettings,
    /// Which topics to create.
    pub create_topics: CreateTopics,
    /// Whether the slot is synchronised to standbys.
    pub slot_kind: SlotKind,
    /// What to do when the slot was lost.
    pub on_lost: OnLost,
    /// What becomes of rows that were there before the slot.
    pub already_there: AlreadyThere,
}

/// What becomes of rows that were in the table before there was a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlreadyThere {
    /// They are not published.
    Left,
    /// They are published before everything that the slot streams.
    Published,
}

/// Which topics `init` creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateTopics {
    /// None.
    No,
    /// The topics that the rows in the outbox are routed to, and the named ones.
    Yes {
        /// Short or full names of further topics.
        named: Vec<String>,
    },
}

/// Whether the slot is synchronised to standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    /// It exists on this server alone.
    Plain,
    /// It survives a failover; needs Postgres 17 or newer.
    Failover,
}

/// Everything `walrelay check` needs.
#[derive(Debug, Clone)]
pub struct CheckConfig {
    /// What `run` would run with.
    pub run: RunConfig,
    /// Consumers in other databases; those of the outbox's own where none is named.
    pub inboxes: Vec<InboxPlace>,
    /// How findings are printed.
    pub format: OutputFormat,
}

/// Everything `walrelay status` needs.
#[derive(Debug, Clone)]
pub struct StatusConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// How it is printed.
    pub format: OutputFormat,
    /// How often it is printed again; once where there is none.
    pub watch: Option<Duration>,
    /// Where the relay itself can be asked.
    pub relay: Option<SocketAddr>,
    /// How much WAL may wait, as the relay is told.
    pub wal_budget: WalBudgetLimit,
}

/// Everything `walrelay dispatch` needs.
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
    List(DispatchList),
    /// Print one row, decoded.
    Show {
        /// Its event id.
        id: String,
        /// How.
        format: OutputFormat,
    },
    /// Make rows due at once.
    Retry(Chosen),
    /// Replace parts of a message.
    Edit(DispatchEdit),
    /// Give rows up.
    Discard {
        /// Which.
        chosen: Chosen,
        /// Why.
        reason: String,
    },
}

/// Which rows to print, and how.
#[derive(Debug, Clone)]
pub struct DispatchList {
    /// Which; the topic by its full name.
    pub query: DispatchQuery,
    /// Only rows behind this position.
    pub after: Option<Position>,
    /// At most so many; all where there is none.
    pub limit: Option<u32>,
    /// How.
    pub format: OutputFormat,
}

/// What `dispatch edit` changes.
#[derive(Debug, Clone)]
pub struct DispatchEdit {
    /// The row's event id.
    pub id: String,
    /// Where the new payload is.
    pub payload_file: Option<PathBuf>,
    /// Where the new attributes are.
    pub attributes_file: Option<PathBuf>,
    /// Another topic, by its full name.
    pub topic: Option<String>,
    /// Another ordering key.
    pub key: Option<String>,
}

/// Rows to act on.
#[derive(Debug, Clone)]
pub enum Chosen {
    /// These, by their ids.
    Ids(Vec<String>),
    /// Those that match.
    Matching {
        /// What they match.
        query: DispatchQuery,
        /// Whether somebody has agreed already.
        consent: Consent,
    },
}

/// Everything `walrelay slot` needs.
#[derive(Debug, Clone)]
pub struct SlotConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// What to do.
    pub action: SlotAction,
}

/// What to do with the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotAction {
    /// Print it.
    Show(OutputFormat),
    /// Create it.
    Create(SlotKind),
    /// Drop it, if it holds no more unconfirmed rows than the operator has agreed to lose.
    Drop {
        /// How many rows the operator has agreed to lose.
        discard_rows: u64,
    },
    /// Move it past a transaction; the operator has agreed to skip it.
    Advance(AdvanceOrder),
    /// Make it a copy of an anchor.
    Reset(ResetOrder),
    /// Make it anew after it was lost.
    Recover(RecoverOrder),
    /// Move it to the end of the log, so that an upgrade of the server carries it over.
    CarryOver,
    /// Take over one that an upgrade of the server has carried over.
    Adopt,
}

/// Everything `walrelay anchor` needs.
#[derive(Debug, Clone)]
pub struct AnchorConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// What to do.
    pub action: AnchorAction,
}

/// What to do with anchors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnchorAction {
    /// Make one where the slot stands.
    Create {
        /// Its name.
        name: String,
        /// What has to stay free for the relay.
        wal_budget: WalBudgetLimit,
    },
    /// Print all of them.
    List {
        /// What has to stay free for the relay.
        wal_budget: WalBudgetLimit,
        /// How they are printed.
        format: OutputFormat,
    },
    /// Move one forward.
    Advance {
        /// Its name.
        name: String,
        /// Where to; to where the slot stands without it.
        to: Option<Place>,
    },
    /// Drop one.
    Drop {
        /// Its name.
        name: String,
    },
}

/// Everything `walrelay prune` needs.
#[derive(Debug, Clone)]
pub struct PruneConfig {
    /// Where Postgres is.
    pub database: DatabaseConfig,
    /// Which column is what.
    pub columns: ColumnNames,
    /// The age a row must have to be deleted.
    pub older_than: Duration,
    /// Whether anything is deleted.
    pub pruning: Pruning,
}

/// Whether old rows are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pruning {
    /// They are.
    Done,
    /// Their number is told.
    Counted,
}

/// A consumer in a database of its own.
#[derive(Debug, Clone)]
pub struct InboxPlace {
    /// Its name.
    pub consumer: String,
    /// How to connect.
    pub connect: ConnectConfig,
}

/// Everything `walrelay audit` needs.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// Where the outbox is.
    pub database: DatabaseConfig,
    /// The column of the event id.
    pub id: Names,
    /// That of the time at which events occurred.
    pub occurred_at: Names,
    /// That of the aggregate type.
    pub aggregate_type: Option<Names>,
    /// The consumers; those of the outbox's own database when empty.
    pub inboxes: Vec<InboxPlace>,
    /// The full name of a subscription to compare with instead, and where Pub/Sub is.
    pub subscription: Option<(String, Endpoint)>,
    /// Only events that occurred at this moment or later.
    pub since: SystemTime,
    /// Younger events are left out.
    pub grace: Duration,
    /// Only events of these aggregate types; all when empty.
    pub aggregate_types: Vec<String>,
    /// Whether every missing event is named.
    pub all: bool,
    /// For people or for programs.
    pub format: OutputFormat,
}

/// Everything `walrelay trace` needs.
#[derive(Debug, Clone)]
pub struct TraceConfig {
    /// Where the outbox is.
    pub database: DatabaseConfig,
    /// Which column is what.
    pub columns: ColumnNames,
    /// The consumers; those of the outbox's own database when empty.
    pub inboxes: Vec<InboxPlace>,
    /// The event.
    pub event_id: String,
    /// For people or for programs.
    pub format: OutputFormat,
}

/// Everything `walrelay emulator` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatorConfig {
    /// Where gRPC is served.
    pub listen: SocketAddr,
    /// Where the control port is served; `None` serves none.
    pub control_listen: Option<SocketAddr>,
    /// Faults to begin with.
    pub faults: Vec<Fault>,
    /// Memory for stored messages.
    pub max_stored_bytes: usize,
}

/// Everything `walrelay demo` needs.
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

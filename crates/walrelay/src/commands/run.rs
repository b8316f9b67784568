//! `walrelay run`: the relay and its HTTP endpoints.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use walrelay_core::Random;
use walrelay_errors::{Action, Chain, Code, Coded, Exit};
use walrelay_otlp::Spans;
use walrelay_outbox_admin::lifecycle::anchor_keeper::AnchorKeeper;
use walrelay_outbox_admin::lifecycle::postgres_server::Postgres;
use walrelay_outbox_admin::maintenance::{Maintenance, MaintenanceTask};
use walrelay_outbox_replay::recovery::{self, Fill, RecoveryEnd};
use walrelay_outbox_replay::{SlotSnapshot, rows_of_transaction};
use walrelay_outbox_store::{Condition, Definition, Outbox, note_wait, read_relay_row};
use walrelay_pg_client::{connect_outbox, connect_sql};
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::session::{SessionSettings, WaitsFor};
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::pipeline_error::SendFailurePosition;

use super::shared::activity::Activity;
use super::shared::definition_on_record::named_outbox;
use super::shared::telemetry_export::with_telemetry;
use crate::config::{Checks, DefinitionNeed, OnSlotLost};
use crate::error::fixes::relay::stop_reason;
use crate::error::{Error, explain};
use crate::http::{self, Observed};
use crate::options::values::{OrNever, count, duration_or_never, word};
use crate::options::{
    DefinitionOptions, OWN_OPTIONS, PruneArchiveOption, RetentionOptions, ServiceOptions,
    UntilOption,
};
use crate::plan::{CommandEnd, Plan, Service};
use crate::request_spans::Traced;

const ON_SLOT_LOST: &[(&str, OnSlotLost)] =
    &[("wait", OnSlotLost::Wait), ("stop", OnSlotLost::Stop), ("recover", OnSlotLost::Recover)];

/// Publish every committed outbox row to Pub/Sub, in order per key.
///
/// Reads the slot, publishes, and confirms to Postgres only what Pub/Sub has stored or what is
/// recorded in dispatch state. Loss of a connection is not an end: it reconnects. SIGTERM and
/// SIGINT finish what is in flight and exit with 0; a second signal exits at once.
///
/// With OTEL_EXPORTER_OTLP_ENDPOINT set, traces and metrics are sent to that OpenTelemetry collector.
#[derive(Debug, Args)]
#[command(
    next_help_heading = OWN_OPTIONS,
    after_help = "Examples:\n  \
    walrelay run --database-url postgresql://postgres@db.example:5432/app --project my-project\n  \
    PUBSUB_EMULATOR_HOST=localhost:8085 walrelay run --project dev --until-caught-up"
)]
pub(crate) struct Run {
    #[command(flatten)]
    until: UntilOption,
    /// If the slot is lost: wait for `slot recover`, stop with exit 5, or recover without a person
    ///
    /// With --until-caught-up, `wait` stops with exit 5. `recover` needs SELECT on the outbox table.
    #[arg(long, value_name = "POLICY", default_value = "wait", value_parser = word(ON_SLOT_LOST))]
    on_slot_lost: OnSlotLost,
    /// Keep an anchor that reaches back this far, as in 6h, for replays and resets, or `never`; 1m to 3650d
    ///
    /// It is called `kept`, and retains no more WAL than its share of `max_slot_wal_keep_size`.
    #[arg(long, value_name = "DURATION", default_value = "never", value_parser = duration_or_never("1m", "3650d"))]
    anchor_keep: OrNever,
    #[command(flatten)]
    retention: RetentionOptions,
    #[command(flatten)]
    archive: PruneArchiveOption,
    /// Publish at most this many rows per second, to protect a slow subscriber; 1 to 1000000 [default: no limit]
    ///
    /// Rows that wait retain WAL. If they retain more than --wal-budget, they are recorded in dispatch state.
    #[arg(long, value_name = "COUNT", value_parser = count(1_u32, 1_000_000))]
    rate: Option<u32>,
    #[command(flatten)]
    definition: DefinitionOptions,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(Debug)]
pub(crate) struct RunConfig {
    pub(crate) settings: Settings,
    /// Whether the given publication, tables and columns do not differ from the record. The relay
    /// then follows changes of the record.
    follows_record: bool,
    /// The slot if it is given, without the number of a shard.
    given_slot: Option<String>,
    on_slot_lost: OnSlotLost,
    /// Age of the relay's own anchor. None means no anchor.
    pub(crate) anchor_keep: Option<Duration>,
    maintenance: Maintenance,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) otlp: Option<walrelay_otlp::Settings>,
}

impl Run {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let config = self.config(checks)?;
        let (http, drain_timeout) = (config.http, config.settings.relay.drain_timeout);
        let plan = Plan::new(async move |shutdown| Box::pin(relay(config, shutdown)).await);
        Some(plan.ended(CommandEnd::Stopped(Some(Service { http, drain_timeout }))))
    }

    pub(crate) fn config(&self, checks: &mut Checks<'_>) -> Option<RunConfig> {
        let until = match self.until.until_caught_up {
            true => Until::CaughtUp,
            false => Until::Stopped,
        };
        let otlp = checks.otlp();
        let recorded = checks.definition.clone();
        checks.define(&self.definition);
        let follows_record = checks.definition.difference_from(&recorded).is_none();
        let settings = checks.settings(&self.options, until);
        let http = checks.http(&self.options.relay.http);
        checks.needs_definition(DefinitionNeed::Optional);
        let mut settings = settings?;
        settings.relay.rate = self.rate.and_then(NonZeroU32::new);
        let maintenance = checks.maintenance(&self.retention, &self.archive);
        if maintenance.archive.is_some() && maintenance.older_than.is_none() {
            checks.wrong_or_missing("prune-older-than", "needed by --prune-archive");
        }
        if maintenance.older_than.is_some() {
            let reason = "needed by --prune-older-than: a row's age is read from it";
            checks.require_time(&settings.relay.router.columns, reason);
        }
        Some(RunConfig {
            settings,
            follows_record,
            given_slot: self.options.database.slot.clone(),
            on_slot_lost: self.on_slot_lost,
            anchor_keep: self.anchor_keep.0,
            maintenance,
            http,
            otlp,
        })
    }
}

/// Runs until `shutdown` is requested, or until the relay has caught up if the configuration asks
/// for that.
pub(crate) async fn relay(mut config: RunConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let (metrics, health) = (Metrics::new(), Health::new());
    metrics.set_info(&config.settings.relay.outbox);
    let observed = Observed::of_relay(health.clone(), metrics.clone());
    let (otlp, exported) = (config.otlp.take(), observed.clone());
    let spans_dropped = metrics.spans_dropped.clone();
    let process = RelayProcess { config: &config, metrics, health, shutdown };
    let work = |spans| process.run(observed, spans);
    let ended = Box::pin(with_telemetry(otlp, exported, spans_dropped, work)).await;
    if let Err(Error::Relay(error)) = &ended {
        record_stop(error, &config.settings).await;
    }
    ended
}

/// Records a row or a publication that stopped the relay, because every next start ends there. The
/// process ends with the error also if it cannot be recorded.
async fn record_stop(error: &RelayError, settings: &Settings) {
    let Some(reason) = stop_reason(error) else { return };
    let recording = async {
        let client = connect_sql(&settings.connect).await.ok()?;
        let condition = Condition::new("stopped", std::iter::once(reason));
        let noted = note_wait(&client, &settings.relay.outbox.slot, &condition).await;
        client.close().await;
        noted.ok()
    };
    if !matches!(timeout(SEARCH_TIMEOUT, recording).await, Ok(Some(()))) {
        tracing::debug!("the reason of the stop is not recorded");
    }
}

struct RelayProcess<'a> {
    config: &'a RunConfig,
    metrics: Metrics,
    health: Health,
    shutdown: &'a Shutdown,
}

impl RelayProcess<'_> {
    async fn run(&self, served: Observed, spans: Option<Spans>) -> Result<(), Error> {
        let mut settings = self.config.settings.clone();
        log_start(&settings, self.config.http);
        let _endpoints = http::start(self.config.http, served.clone()).await?;
        let _activity = Activity::RELAY.report(served.clone());
        let publisher =
            GrpcPublisher::connect(&settings.pubsub.publisher).map_err(Error::PubSub)?;
        tokio::select! {
            biased;
            () = self.shutdown.requested() => return Ok(()),
            token = publisher.authenticate() => token.map_err(Error::PubSub)?,
        }
        let publisher = Traced::new(publisher, spans);
        loop {
            // Dropping the set stops the tasks. They work on the tables that were on record.
            let mut tasks = JoinSet::new();
            self.spawn_periodic(&settings, &mut tasks);
            let Err(error) = self.stream_and_recover(&settings, &publisher).await else {
                Activity::RELAY.log_end(&served);
                return Ok(());
            };
            let changed = match self.config.follows_record {
                true => changed_outbox(&settings, self.config.given_slot.as_deref()).await,
                false => None,
            };
            let Some((change, recorded)) = changed else { return Err(error) };
            tracing::warn!(error = %Chain(&error), change, "the outbox on record has changed; following it");
            let outbox = &mut settings.relay.outbox;
            outbox.slot = outbox.shard.name(&recorded.slot);
            outbox.publication = outbox.shard.name(&recorded.publication);
            outbox.tables = recorded.tables;
            self.metrics.set_info(outbox);
            settings.relay.router.columns = recorded.columns;
        }
    }

    /// Starts the tasks that keep anchors and maintain the outbox. The relays of other shards do not
    /// maintain it: one relay deletes the rows of all shards, and creates the partitions.
    fn spawn_periodic(&self, settings: &Settings, tasks: &mut JoinSet<()>) {
        let Settings { connect, relay, .. } = settings;
        if let Some(keep) = self.config.anchor_keep {
            let keeper = AnchorKeeper {
                connect: connect.clone(),
                slot: relay.outbox.slot.clone(),
                keep,
                wal_budget: relay.wal_budget,
            };
            let health = self.health.clone();
            tasks.spawn(keeper.run(health));
        }
        if relay.outbox.shard.index() == 0 {
            let maintenance = self.config.maintenance.clone();
            let task = MaintenanceTask {
                connect: connect.clone(),
                outbox: relay.outbox.clone(),
                columns: relay.router.columns.clone(),
                maintenance,
            };
            let (metrics, health) = (self.metrics.clone(), self.health.clone());
            tasks.spawn(task.run(health, metrics));
        }
    }

    /// Streams the slot, and publishes the rows of a recovery before the stream.
    async fn stream_and_recover(
        &self,
        settings: &Settings,
        publisher: &Traced<GrpcPublisher>,
    ) -> Result<(), Error> {
        let mut on_slot_lost = self.config.on_slot_lost;
        loop {
            let waits_for = waits_for(settings.until, on_slot_lost);
            let error = match self.stream(settings, publisher.clone(), waits_for).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let code = error.code();
            if code == Code::RecoveryPending {
                match self.publish_unsettled(settings, publisher, waits_for).await? {
                    RecoveryEnd::Done => (),
                    RecoveryEnd::Stopped => return Ok(()),
                }
            } else if matches!(code, Code::SlotLost | Code::PositionsOfAnotherServer)
                && on_slot_lost == OnSlotLost::Recover
            {
                let error_code = code.name();
                tracing::error!(error_code, error = %Chain(&error), "the slot is lost; recovering it");
                on_slot_lost = recover_lost_slot(settings, self.shutdown).await?;
            } else {
                return Err(Error::Relay(with_event_ids(error, settings).await));
            }
        }
    }

    /// Publishes the remaining rows of a recovery that a user or a relay began. They come before
    /// the stream. After a failure it waits, and the caller tries again.
    async fn publish_unsettled(
        &self,
        settings: &Settings,
        publisher: &Traced<GrpcPublisher>,
        waits_for: WaitsFor,
    ) -> Result<RecoveryEnd, Error> {
        let fill = Fill {
            settings,
            publisher: publisher.clone(),
            new_slot: |slot: &SlotSnapshot| {
                Postgres::new(settings, Health::new()).during_recovery(slot.consistent_point)
            },
            metrics: &self.metrics,
            health: &self.health,
            shutdown: self.shutdown,
        };
        match Box::pin(fill.run()).await {
            Ok(end) => Ok(end),
            Err(failed) => {
                wait_before_retry(failed, waits_for, self.shutdown).await?;
                Ok(RecoveryEnd::Done)
            }
        }
    }

    async fn stream(
        &self,
        settings: &Settings,
        publisher: Traced<GrpcPublisher>,
        waits_for: WaitsFor,
    ) -> Result<(), RelayError> {
        let Settings { relay, pubsub, until, .. } = settings;
        let session = SessionSettings::of(relay, pubsub.max_outstanding_requests, *until);
        let session = SessionSettings { waits_for, fix_of: explain::fix_of_shard, ..session };
        let supervisor = Supervisor {
            settings: &session,
            server: Postgres::new(settings, self.health.clone()),
            publisher,
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            random: Random::new(random_seed()),
        };
        Box::pin(supervisor.run(self.shutdown)).await.map(drop)
    }
}

fn log_start(settings: &Settings, http: Option<SocketAddr>) {
    let Settings { relay, pubsub, .. } = settings;
    let Outbox { slot, publication, tables, .. } = &relay.outbox;
    let tables: Vec<String> = tables.iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        slot,
        publication,
        tables = tables.join(", "),
        topics = %relay.router.topic,
        project = relay.router.project,
        pubsub = %pubsub.publisher.endpoint,
        http = http.map(|it| it.to_string()),
        "the relay starts"
    );
}

/// Returns the states that the process waits for. By default a long-running relay waits for a new
/// slot, too. The operator can choose the exit code instead. A run that ends by itself waits for
/// nothing: a job that never ends hides the reason.
fn waits_for(until: Until, on_slot_lost: OnSlotLost) -> WaitsFor {
    match (until, on_slot_lost) {
        (Until::CaughtUp | Until::Position(_), _) => WaitsFor::Nothing,
        (Until::Stopped, OnSlotLost::Stop | OnSlotLost::Recover) => WaitsFor::AllButALostSlot,
        (Until::Stopped, OnSlotLost::Wait) => WaitsFor::All,
    }
}

/// Starts the recovery of the lost slot. Returns the action for another loss of the slot.
async fn recover_lost_slot(settings: &Settings, shutdown: &Shutdown) -> Result<OnSlotLost, Error> {
    // The relay recovers only once, because a slot that is lost again at once needs a person.
    let Err(failed) = begin_recovery(settings).await else { return Ok(OnSlotLost::Wait) };
    let is_lost = failed.code().exit() == Exit::SlotLost;
    let waits_for = waits_for(settings.until, OnSlotLost::Wait);
    wait_before_retry(failed, waits_for, shutdown).await?;
    // This recovery needs a `--from-time` from the operator, so further attempts would also fail.
    Ok(if is_lost { OnSlotLost::Wait } else { OnSlotLost::Recover })
}

async fn begin_recovery(settings: &Settings) -> Result<(), RelayError> {
    let client = connect_outbox(&settings.connect).await.map_err(RelayError::Connect)?;
    let begun = recovery::begin(&client, &settings.relay.outbox, None).await;
    client.close().await;
    begun
}

/// Returns the definition on record if it is no longer that of the settings, and the difference:
/// `init` has added a table, or a table was renamed. A relay that was started before `init` may learn
/// its slot. None also if nothing can be read.
async fn changed_outbox(
    settings: &Settings,
    given_slot: Option<&str>,
) -> Option<(String, Definition)> {
    let Settings { connect, relay, .. } = settings;
    let reading = named_outbox(connect, given_slot);
    let recorded = timeout(SEARCH_TIMEOUT, reading).await.ok()?.ok()?.definition.ok()?;
    let here = Definition::of(&relay.outbox, &relay.router.columns);
    let change = match here.slot == recorded.slot {
        true => here.difference_from(&recorded)?,
        false => format!("the slot is {}", recorded.slot),
    };
    Some((change, recorded))
}

/// Adds the event ids to the error about a row that the server cannot send. The search compares
/// only lengths. It fails if the role may not read the table.
async fn with_event_ids(error: RelayError, settings: &Settings) -> RelayError {
    let RelayError::Unsendable(mut failure) = error else { return error };
    let SendFailurePosition::Row { xid, .. } = failure.at else {
        return RelayError::Unsendable(failure);
    };
    failure.rows = match unsendable_rows(settings, xid).await {
        Ok(ids) if ids.is_empty() => ", which was not found in the table".to_owned(),
        Ok(ids) => format!(", which is event {}", ids.join(" or ")),
        Err(why) => format!(", which was not looked up in the table ({})", Chain(&why)),
    };
    RelayError::Unsendable(failure)
}

/// Most event ids in the message.
const IDS_MAX: usize = 10;

async fn unsendable_rows(settings: &Settings, xid: u32) -> Result<Vec<String>, RelayError> {
    let Settings { connect, relay, .. } = settings;
    let client = connect_outbox(connect).await.map_err(RelayError::Connect)?;
    let search = async {
        let relay_row = read_relay_row(&client, &relay.outbox.slot).await;
        let settled_xid = relay_row?.map_or(0, |it| it.settled_xid);
        let mut ids = Vec::new();
        for name in &relay.outbox.tables {
            let table = recovery::table(&client, name, &relay.router.columns).await?;
            let found = rows_of_transaction(&client, (name, &table.id), (xid, settled_xid)).await;
            let rows = found?.rows;
            ids.extend(rows.into_iter().filter(|row| row.is_unsendable).map(|row| row.event_id));
        }
        ids.truncate(IDS_MAX);
        Ok(ids)
    };
    let found = timeout(SEARCH_TIMEOUT, search).await;
    client.close().await;
    found.unwrap_or_else(|_| Ok(Vec::new()))
}

/// Longest search in the table: the outbox may be large, and the process is about to end.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits before another attempt at a failed recovery. Returns an error that a retry cannot fix.
async fn wait_before_retry(
    error: RelayError,
    waits_for: WaitsFor,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    if let Action::Stop(_) = waits_for.action(&error) {
        return Err(Error::Relay(error));
    }
    let (error_code, fix) = (error.code().name(), explain::fix(error.code()));
    tracing::warn!(error_code, error = %Chain(&error), fix, "the recovery broke off; trying again");
    tokio::select! {
        biased;
        () = shutdown.requested() => {}
        () = sleep(RECOVERY_PAUSE) => {}
    }
    Ok(())
}

const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

//! Opens a session: connects, checks the server, takes the slot, and reads the parked keys.
//!
//! Generic over the [`Server`], so that the simulation starts sessions with this code.

use std::num::NonZeroU32;
use std::slice::from_ref;
use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn, Position};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::time::Instant;
use walrelay_core::{
    Backoff, Behind, Budget, BudgetLimits, ConcurrencyLimits, ConcurrencyWindow, LanePolicy, Lanes,
    REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX, Random, RateLimit, ReplaySelection, Router,
    RouterConfig, SpillMode, Topic, Tracker, WalBudget, WalBudgetLimit,
};
use walrelay_outbox_store::{Outbox, ParkedKey, Shard, Store};
use walrelay_pg_client::PgError;
use walrelay_pg_replication::StreamSettings;

use crate::error::RelayError;
use crate::lifecycle::opening::with_status_updates;
use crate::lifecycle::server::{Connected, Database, Holder, Positions, Server};
use crate::lifecycle::server_history::ServerHistory;
use crate::observe::observer::Observer;
use crate::settings::{RelaySettings, Until};
use crate::stream::already_recorded::AlreadyRecorded;
use crate::stream::continuity::Continuity;
use crate::stream::dispatch_writer::{DispatchWriter, Intervals};
use crate::stream::outbox_tables::TableSelection;
use crate::stream::pipeline::{Flow, Session, Source};
use crate::stream::publish_calls::PublishCalls;
use crate::stream::publisher::Publisher;
use crate::stream::replay_filter::ReplayFilter;
use crate::stream::stop_position::StopPosition;
use walrelay_errors::{Action, Code, Coded as _, ErrorContext};

/// The settings of a session, and the constants that go with them.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    pub outbox: Outbox,
    /// Timers of the replication connection.
    pub stream: StreamSettings,
    pub router: RouterConfig,
    pub lanes: LanePolicy,
    /// The one byte budget (I6).
    pub budget: BudgetLimits,
    /// The limit of retained WAL (I10).
    pub wal_budget: WalBudgetLimit,
    /// Limits on the number of concurrent Publish calls.
    pub window: ConcurrencyLimits,
    /// The most rows per second, `--rate`. `None` sets no limit.
    pub rate: Option<NonZeroU32>,
    pub intervals: Intervals,
    pub drain_timeout: Duration,
    /// The silence after which another holder's session is ended. `None` never ends it.
    pub take_over_after: Option<Duration>,
    pub until: Until,
    pub waits_for: WaitsFor,
    /// The fix of a code for a shard, for the log and `/readyz`. Only the caller knows its own commands.
    pub fix_of: FixText,
    pub purpose: Purpose,
}

/// The use that a session makes of the streamed rows.
#[derive(Debug, Clone)]
pub enum Purpose {
    /// Publishes each row, and rows of dispatch state.
    Publish,
    /// Publishes the selected rows again.
    Replay(ReplaySelection),
    /// Publishes nothing, because another session publishes earlier rows. Near the WAL budget, each
    /// row of the slot is recorded in dispatch state.
    Record,
}

impl Purpose {
    fn source(&self) -> Source {
        match self {
            Self::Publish => Source::Slot,
            Self::Replay(selection) => Source::Replay(ReplayFilter::new(selection.clone())),
            Self::Record => Source::HeldSlot,
        }
    }

    /// Limits the commands to those of the purpose. The session that publishes reports failures and
    /// notes the relay's condition.
    fn commands_of<S: Store>(
        &self,
        recorder: DispatchWriter<S>,
        observer: &Observer,
    ) -> DispatchWriter<S> {
        match self {
            Self::Publish | Self::Replay(_) => recorder.reporting_to(observer.health()),
            Self::Record => {
                observer.health().slot_is_held();
                recorder.recording_only()
            }
        }
    }
}

pub type FixText = fn(Code, Shard) -> String;

/// The states that a run waits for, because another command ends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// None. A person or a script waits for the end of the run.
    Nothing,
    /// Each of them, but a lost slot ends the run.
    AllButALostSlot,
    /// Each of them, and the recovery of a lost slot.
    All,
}

impl WaitsFor {
    #[must_use]
    pub fn action(self, error: &RelayError) -> Action {
        match (self, error.action()) {
            (Self::Nothing, Action::Wait) => error.code().action(ErrorContext::Command),
            (Self::All, action) => action.awaiting_a_lost_slot(),
            (Self::Nothing | Self::AllButALostSlot, action) => action,
        }
    }
}

impl SessionSettings {
    /// Returns the settings of the service with at most `requests_max` concurrent Publish calls.
    #[must_use]
    pub fn of(relay: &RelaySettings, requests_max: usize, until: Until) -> Self {
        let mut stream = StreamSettings::for_sender_timeout(Some(relay.sender_timeout()));
        stream.status_interval = stream.status_interval.min(relay.status_interval);
        if let Some(limit) = relay.take_over_after {
            // A standby with the same setting must see that this relay is alive.
            let interval = (limit / 3).max(TAKE_OVER_STATUS_INTERVAL_MIN);
            stream.status_interval = stream.status_interval.min(interval);
        }
        let mut settings = Self {
            outbox: relay.outbox.clone(),
            stream,
            router: relay.router.clone(),
            lanes: lane_policy(relay),
            budget: BudgetLimits::of_bytes(relay.max_in_flight_bytes),
            wal_budget: relay.wal_budget,
            window: ConcurrencyLimits { min: WINDOW_MIN.min(requests_max), max: requests_max },
            rate: relay.rate,
            intervals: Intervals::with_retention(relay.dispatch_retention),
            drain_timeout: relay.drain_timeout,
            take_over_after: relay.take_over_after,
            until,
            waits_for: WaitsFor::AllButALostSlot,
            fix_of: |_, _| String::new(),
            purpose: Purpose::Publish,
        };
        if let Some(rate) = relay.rate {
            let largest = RateLimit::batch_messages(rate);
            settings.lanes.batch_messages = settings.lanes.batch_messages.min(largest);
        }
        settings
    }
}

/// The session type of a server, its dispatch state and a publisher.
pub type SessionOf<C, P> = Session<
    ReadHalf<<C as Server>::Socket>,
    WriteHalf<<C as Server>::Socket>,
    P,
    <<C as Server>::Database as Database>::Store,
>;

#[derive(Debug)]
pub enum OpenResult<S, D> {
    /// This relay holds the slot.
    Session(Box<S>, SessionStart),
    /// Another session holds the slot. The connection is for watching that session. The text is
    /// the identity of the server's WAL.
    Held(Holder, D, Option<String>),
}

#[derive(Debug, Clone)]
pub struct SessionStart {
    pub positions: Positions,
    /// The number of keys with rows in dispatch state.
    pub parked_keys: usize,
    /// The parked keys that are due.
    pub due: Vec<(Topic, String)>,
    /// The number of parked keys that are not due yet, and the time until the last of them is due.
    /// Such a key backs off, or a previous relay holds a lease on its rows.
    pub not_due: (usize, Duration),
    /// The identity of the server's WAL. `None` for rows of a table.
    pub log: Option<String>,
}

/// The inputs of a new session other than the server.
#[derive(Debug)]
pub struct Beginning<'a, P> {
    pub settings: &'a SessionSettings,
    pub publisher: P,
    pub observer: Observer,
    /// The positions that earlier sessions of this process have read.
    pub history: &'a mut ServerHistory,
}

/// Opens a session: connects, checks the server, takes the slot, and only then reads the parked
/// keys. If it read them earlier, another relay could park rows in between, and this relay would
/// publish past those rows (I4).
pub async fn open<C: Server, P: Publisher>(
    server: &C,
    beginning: Beginning<'_, P>,
    random: &mut Random,
) -> Result<OpenResult<SessionOf<C, P>, C::Database>, RelayError> {
    let Beginning { settings, publisher, observer, history } = beginning;
    let Connected { mut replication, mut database } = server.connect().await?;
    database.finish_operation().await?;
    database.check().await?;
    // After the check, because a standby of the same timeline may be behind its primary.
    let identity = replication.identify_system().await.map_err(RelayError::Connect)?;
    let (log, end_of_wal) = (identity.log(), identity.xlogpos);
    history.reject_restored(log.as_deref())?;
    if let Some(holder) = database.holder().await? {
        return Ok(OpenResult::Held(holder, database, log));
    }

    let settled = database.settled().await?;
    let SessionSettings { outbox: Outbox { slot, publication, .. }, stream, .. } = settings;
    let started = replication.start(slot, from_ref(publication), settled, stream).await;
    let (frames, mut feedback) = match started {
        Ok(halves) => halves,
        Err(error) => return holder_or_error(error, database, log).await,
    };

    let tables = TableSelection::new(database.outbox_tables().await?);
    let positions = database.positions().await?;
    let from = positions.confirmed_flush.max(settled);
    feedback.received(from);
    let wal_end = database.measure_wal(settings.wal_budget);
    let wal_budget = WalBudget::new(settings.wal_budget, positions.retention, from);
    let router = Router::new(settings.router.clone());
    let router = log.clone().into_iter().fold(router, Router::of_server);
    let decoder = Decoder::counting_from(database.first_index());
    let mut store = database.into_store(identity).await?;
    // Only now is it proven that both connections are to one server.
    history.check(log.as_deref(), end_of_wal)?;
    let mut lanes = Lanes::new(settings.lanes, random.fork());
    let mut loading = ParkedKeyLoader::into(&mut lanes, settings.until);
    let mut load = |key: ParkedKey| loading.load(&key);
    let reading = store.parked_keys(&mut load);
    let read = with_status_updates(&mut feedback, reading).await.map_err(RelayError::Connect)?;
    let parked_keys = read.map_err(RelayError::Store)?;
    let ParkedKeyLoader { due, not_due, .. } = loading;
    if matches!(settings.purpose, Purpose::Record) {
        lanes.spill(SpillMode::Everything, Instant::now().into_std());
    }
    let recorder = DispatchWriter::new(store, settings.intervals);
    let recorder = settings.purpose.commands_of(recorder, &observer);
    let session = Session {
        frames,
        feedback,
        publishes: publish_calls(settings, publisher),
        recorder,
        decoder,
        wal_end,
        flow: Flow {
            router,
            recorded_rows: AlreadyRecorded::unread(from),
            tables,
            continuity: Continuity::new(settings.outbox.tables.len()),
            tracker: Tracker::new(),
            budget: budget(settings),
            wal_budget,
            server_stalls: observer.server_stalls(),
            lanes,
            source: settings.purpose.source(),
            extent: StopPosition::of(settings.until),
            through: before(from),
            may_have_more_due_keys: false,
            observer,
        },
        goal: None,
        drain_timeout: settings.drain_timeout,
    };
    let at = SessionStart { positions, parked_keys, due, not_due, log };
    Ok(OpenResult::Session(Box::new(session), at))
}

fn budget(settings: &SessionSettings) -> Budget {
    let budget = Budget::new(settings.budget);
    match settings.rate {
        Some(rate) => budget.at_rate(rate),
        None => budget,
    }
}

fn publish_calls<P: Publisher>(settings: &SessionSettings, publisher: P) -> PublishCalls<P> {
    let window = ConcurrencyWindow::new(settings.window);
    PublishCalls::new(publisher, window).limited(settings.rate.map(RateLimit::new))
}

/// Loads parked keys into the lanes, one at a time as they are read.
struct ParkedKeyLoader<'a> {
    lanes: &'a mut Lanes,
    until: Until,
    now: std::time::Instant,
    due: Vec<(Topic, String)>,
    not_due: (usize, Duration),
}

impl<'a> ParkedKeyLoader<'a> {
    fn into(lanes: &'a mut Lanes, until: Until) -> Self {
        let now = Instant::now().into_std();
        Self { lanes, until, now, due: Vec::new(), not_due: (0, Duration::ZERO) }
    }

    fn load(&mut self, key: &ParkedKey) {
        let topic = Topic::from(key.topic.as_str());
        let wait = key.next_attempt_in.unwrap_or_default();
        if !wait.is_zero() {
            self.not_due = (self.not_due.0 + 1, self.not_due.1.max(wait));
        } else if !key.is_held && self.until == Until::CaughtUp {
            self.due.push((Topic::clone(&topic), key.ordering_key.clone()));
        }
        let (ordering_key, due_in) = (&key.ordering_key, key.next_attempt_in);
        match key.behind {
            Behind::Spilled => self.lanes.load_spilled(&topic, ordering_key, due_in, self.now),
            Behind::Queued => self.lanes.load_parked(&topic, ordering_key, due_in, self.now),
        }
    }
}

/// Returns the last position of all commits that end at `start` or before.
const fn before(start: Lsn) -> Position {
    Position { commit_lsn: Lsn::new(start.as_u64().saturating_sub(1)), tx_index: u32::MAX }
}

/// The maximum number of full lanes for parked keys, a kilobyte each. Further keys take a few bytes
/// each.
const PARKED_LANES_MAX: usize = 1_000;

/// The shortest status interval that serves as a sign of life for standbys.
const TAKE_OVER_STATUS_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// The smallest window, if the maximum allows it. This many requests keep two processors busy.
const WINDOW_MIN: usize = 16;

fn lane_policy(relay: &RelaySettings) -> LanePolicy {
    let backoff =
        |base, cap| Backoff { base: Duration::from_millis(base), cap: Duration::from_secs(cap) };
    LanePolicy {
        batch_messages: REQUEST_MESSAGES_MAX,
        // The request also contains the topic name of at most a few hundred bytes.
        batch_bytes: REQUEST_BYTES_MAX - 1_024,
        transient: backoff(100, 60),
        operator: backoff(1_000, 60),
        redelivery: backoff(1_000, 60),
        park_after: relay.park_after,
        max_attempts: relay.max_attempts,
        parked_lanes: PARKED_LANES_MAX,
        on_dead: relay.on_dead,
    }
}

/// Returns the holder if another relay took the slot between the check and `START_REPLICATION`.
async fn holder_or_error<S, D: Database>(
    error: PgError,
    mut database: D,
    log: Option<String>,
) -> Result<OpenResult<S, D>, RelayError> {
    let active = match error.code_while_streaming().action(ErrorContext::Running) {
        Action::StandBy => database.holder().await?,
        Action::Reconnect | Action::Wait | Action::Stop(_) => {
            return Err(RelayError::Connect(error));
        }
    };
    match active {
        Some(holder) => Ok(OpenResult::Held(holder, database, log)),
        // The slot is free again. The next attempt takes it.
        None => Err(RelayError::Connect(error)),
    }
}

//! Opening a session: connected, checked, slot taken, and what was parked read back.
//!
//! Generic over the [`Server`], so that the simulation starts sessions by this very code.

use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn, Position};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::time::Instant;
use walrelay_core::{
    Backoff, Behind, Budget, BudgetLimits, LanePolicy, Lanes, REQUEST_BYTES_MAX,
    REQUEST_MESSAGES_MAX, Random, Router, RouterConfig, Selection, Topic, Tracker, WalBudget,
    WalBudgetLimit, Window, WindowLimits,
};
use walrelay_outbox_store::{Outbox, ParkedKey, Store as _};
use walrelay_pg_client::PgError;
use walrelay_pg_replication::StreamSettings;

use crate::error::RelayError;
use crate::lifecycle::opening::with_status_updates;
use crate::lifecycle::server::{Connected, Database, Holder, Positions, Server};
use crate::observe::observer::Observer;
use crate::policy::{Disposition, Kind, Met};
use crate::settings::{RelaySettings, Until};
use crate::stream::continuity::Continuity;
use crate::stream::extent::Extent;
use crate::stream::pipeline::{Flow, Session, Source};
use crate::stream::publishes::Publishes;
use crate::stream::recorded_rows::RecordedRows;
use crate::stream::recorder::{Intervals, Recorder};
use crate::stream::seams::Publisher;
use crate::stream::selected::Selected;

/// What sessions are built from: the settings, and the constants that go with them.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Which slot, publication and outbox tables.
    pub outbox: Outbox,
    /// Timers of the replication connection.
    pub stream: StreamSettings,
    /// How a row becomes a message.
    pub router: RouterConfig,
    /// How lanes behave.
    pub lanes: LanePolicy,
    /// The one budget (I6).
    pub budget: BudgetLimits,
    /// How much log may wait (I10).
    pub wal_budget: WalBudgetLimit,
    /// Limits on the number of Publish calls that are unanswered at once.
    pub window: WindowLimits,
    /// How often dispatch state is looked at without an event that asks for it.
    pub intervals: Intervals,
    /// How long a stop waits for what is in flight.
    pub drain_timeout: Duration,
    /// After how much silence to end the session of another holder of the slot; `None` never does.
    pub take_over_after: Option<Duration>,
    /// When the run ends by itself.
    pub until: Until,
    /// What happens when the slot is lost.
    pub lost_slot: LostSlot,
    /// What is published of the stream; everything, unless this is a replay.
    pub selection: Option<Selection>,
}

/// What a lost slot does to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostSlot {
    /// The run ends with it.
    Ends,
    /// The run waits until another command has brought the slot back.
    Awaited,
}

impl LostSlot {
    /// What follows an error.
    #[must_use]
    pub fn disposition(self, error: &RelayError) -> Disposition {
        match self {
            Self::Ends => error.disposition(),
            Self::Awaited => error.disposition().awaiting_a_lost_slot(),
        }
    }
}

impl SessionSettings {
    /// What the service runs with, with so many publish calls out at most.
    #[must_use]
    pub fn of(relay: &RelaySettings, requests_max: usize, until: Until) -> Self {
        let mut stream = StreamSettings::for_sender_timeout(Some(relay.sender_timeout()));
        stream.status_interval = stream.status_interval.min(relay.status_interval);
        if let Some(limit) = relay.take_over_after {
            // A standby with the same setting sees that this relay is alive.
            let interval = (limit / 3).max(TAKE_OVER_STATUS_INTERVAL_MIN);
            stream.status_interval = stream.status_interval.min(interval);
        }
        Self {
            outbox: relay.outbox.clone(),
            stream,
            router: relay.router.clone(),
            lanes: lane_policy(relay),
            budget: BudgetLimits::of_bytes(relay.max_in_flight_bytes),
            wal_budget: relay.wal_budget,
            window: WindowLimits { min: WINDOW_MIN.min(requests_max), max: requests_max },
            intervals: Intervals::with_retention(relay.dispatch_retention),
            drain_timeout: relay.drain_timeout,
            take_over_after: relay.take_over_after,
            until,
            lost_slot: LostSlot::Ends,
            selection: None,
        }
    }
}

/// The session of a server, a publisher and the server's dispatch state.
pub type SessionOf<C, P> = Session<
    ReadHalf<<C as Server>::Socket>,
    WriteHalf<<C as Server>::Socket>,
    P,
    <<C as Server>::Database as Database>::Store,
>;

/// The result of opening a session.
#[derive(Debug)]
pub enum Opened<S, D> {
    /// The slot is ours.
    Session(Box<S>, StartedAt),
    /// Another session holds it; the connection is for watching that session.
    Held(Holder, D),
}

/// Where a session starts.
#[derive(Debug, Clone)]
pub struct StartedAt {
    /// The slot and the log.
    pub positions: Positions,
    /// Keys that dispatch state holds rows of.
    pub parked_keys: usize,
    /// Those of them that are due.
    pub due: Vec<(Topic, String)>,
    /// How many of them are not due yet, and in how long the last one is: they back off, or what a relay
    /// before had claimed of them waits until its lease is over.
    pub not_due: (usize, Duration),
}

/// What a session is begun with besides the server.
#[derive(Debug)]
pub struct Beginning<'a, P> {
    /// The settings it is built from.
    pub settings: &'a SessionSettings,
    /// Where it publishes.
    pub publisher: P,
    /// What it reports to.
    pub observer: Observer,
}

/// Opens a session: connects, checks, takes the slot, and only then reads what is parked. Read
/// before, another relay could park rows in between that this one would publish past (I4).
///
/// # Errors
///
/// The server cannot be reached, or is not set up for this.
pub async fn open<C: Server, P: Publisher>(
    server: &C,
    beginning: Beginning<'_, P>,
    random: &mut Random,
) -> Result<Opened<SessionOf<C, P>, C::Database>, RelayError> {
    let Beginning { settings, publisher, observer } = beginning;
    let Connected { mut replication, mut database } = server.connect().await?;
    let identity = replication.identify_system().await.map_err(RelayError::Connect)?;
    database.finish_operation().await?;
    database.check().await?;
    if let Some(holder) = database.holder().await? {
        return Ok(Opened::Held(holder, database));
    }

    let settled = database.settled().await?;
    let SessionSettings { outbox: Outbox { slot, publication, .. }, stream, .. } = settings;
    let publications = [publication.clone()];
    let (frames, mut feedback) = match replication.start(slot, &publications, settled, stream).await
    {
        Ok(halves) => halves,
        Err(error) => return held_or(error, database).await,
    };

    let positions = database.positions().await?;
    let from = positions.confirmed_flush.max(settled);
    feedback.received(from);
    let wal_end = database.measure_log(settings.wal_budget);
    let wal_budget = WalBudget::new(settings.wal_budget, positions.retention, from);
    let mut router = Router::new(settings.router.clone());
    if let Some(log) = identity.log() {
        router = router.of_server(log);
    }
    let decoder = Decoder::counting_from(database.first_index());
    let mut store = database.into_store(identity).await?;
    let mut lanes = Lanes::new(settings.lanes, random.fork());
    let mut loading = Loading::into(&mut lanes, settings.until);
    let mut load = |key: ParkedKey| loading.load(&key);
    let reading = store.parked_keys(&mut load);
    let read = with_status_updates(&mut feedback, reading).await.map_err(RelayError::Connect)?;
    let parked_keys = read.map_err(RelayError::Store)?;
    let Loading { due, not_due, .. } = loading;
    let source = match &settings.selection {
        Some(selection) => Source::Replay(Selected::new(selection.clone())),
        None => Source::Slot,
    };
    let recorder = Recorder::new(store, settings.intervals).reporting_to(observer.health());
    let session = Session {
        frames,
        feedback,
        publishes: Publishes::new(publisher, Window::new(settings.window)),
        recorder,
        decoder,
        wal_end,
        flow: Flow {
            router,
            recorded_rows: RecordedRows::unread(from),
            continuity: Continuity::new(settings.outbox.tables.len()),
            tracker: Tracker::new(),
            budget: Budget::new(settings.budget),
            wal_budget,
            lanes,
            source,
            extent: Extent::of(settings.until),
            through: before(from),
            may_find_more: false,
            observer,
        },
        goal: None,
        drain_timeout: settings.drain_timeout,
    };
    let at = StartedAt { positions, parked_keys, due, not_due };
    Ok(Opened::Session(Box::new(session), at))
}

/// Parked keys on their way into the lanes, one by one as they are told.
struct Loading<'a> {
    lanes: &'a mut Lanes,
    until: Until,
    now: std::time::Instant,
    due: Vec<(Topic, String)>,
    not_due: (usize, Duration),
}

impl<'a> Loading<'a> {
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

/// Behind every row of a commit that ends here or before.
const fn before(start: Lsn) -> Position {
    Position { commit_lsn: Lsn::new(start.as_u64().saturating_sub(1)), tx_index: u32::MAX }
}

/// Lanes that parked keys may hold; a kilobyte each, and of those beyond it a few bytes.
const PARKED_LANES_MAX: usize = 1_000;

/// Signs of life for standbys come no more often than that.
const TAKE_OVER_STATUS_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// The smallest window, if the maximum allows it: enough requests to keep two processors busy.
const WINDOW_MIN: usize = 16;

fn lane_policy(relay: &RelaySettings) -> LanePolicy {
    let backoff =
        |base, cap| Backoff { base: Duration::from_millis(base), cap: Duration::from_secs(cap) };
    LanePolicy {
        batch_messages: REQUEST_MESSAGES_MAX,
        // The request also holds the topic's name, at most a few hundred bytes.
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

/// Another relay may take the slot between our look and our start.
async fn held_or<S, D: Database>(
    error: PgError,
    mut database: D,
) -> Result<Opened<S, D>, RelayError> {
    let active = match Kind::of_stream(&error).disposition(Met::Running) {
        Disposition::StandBy => database.holder().await?,
        Disposition::Reconnect | Disposition::Wait { .. } | Disposition::Stop { .. } => {
            return Err(RelayError::Connect(error));
        }
    };
    match active {
        Some(holder) => Ok(Opened::Held(holder, database)),
        // Free again: the next try will have it.
        None => Err(RelayError::Connect(error)),
    }
}

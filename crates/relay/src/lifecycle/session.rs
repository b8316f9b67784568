//! Opening a session: checked, connected, slot taken, what was parked read back.

use std::fmt;
use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep};
use tokio_postgres::types::PgLsn;
use walrelay_core::{
    Backoff, Budget, BudgetLimits, LanePolicy, Lanes, REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX,
    Router, Topic, Tracker, Window, WindowLimits,
};
use walrelay_postgres::{
    DispatchStore, Holdings, PgError, ReplicationConnection, ServerErrorKind, SessionStore,
    SqlClient, Store as _, Stream, StreamSettings, connect_sql,
};
use walrelay_pubsub::GrpcPublisher;

use crate::error::RelayError;
use crate::lifecycle::gate;
use crate::observe::observer::Observer;
use crate::seed::random_seed;
use crate::settings::{RelaySettings, Settings};
use crate::stream::pipeline::{Flow, Session};
use crate::stream::publishes::Publishes;
use crate::stream::recorded_rows::RecordedRows;
use crate::stream::recorder::{Intervals, Recorder};

/// The session of the service.
pub type LiveSession = Session<ReadHalf<Stream>, WriteHalf<Stream>, GrpcPublisher, SessionStore>;

/// What came of opening a session.
#[derive(Debug)]
pub enum Opened {
    /// The slot is ours.
    Session(Box<LiveSession>, StartedAt),
    /// Somebody else holds it; the connection to look from.
    Held(Holder, SqlClient),
}

/// Where a session starts.
#[derive(Debug, Clone, Copy)]
pub struct StartedAt {
    /// The slot's position.
    pub confirmed_flush: Lsn,
    /// The end of the log.
    pub wal_end: Lsn,
    /// Keys that dispatch state holds rows of.
    pub parked_keys: usize,
}

/// Who holds the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its server process.
    pub pid: i32,
    /// What it calls itself, when we may see that.
    pub application_name: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.application_name {
            Some(name) => write!(f, "{name} (server process {})", self.pid),
            None => write!(f, "server process {}", self.pid),
        }
    }
}

/// How often a standby looks whether the slot is free: it continues within a second of that.
const STANDBY_PAUSE: Duration = Duration::from_millis(300);

/// Opens a session: connects, checks, takes the slot, and only then reads what is parked. Read
/// before, another relay could park rows in between that this one would publish past (I4).
///
/// # Errors
///
/// The server cannot be reached, or is not set up for this.
pub async fn open(
    config: &Settings,
    publisher: &GrpcPublisher,
    observer: Observer,
) -> Result<Opened, RelayError> {
    let RelaySettings { slot, publication, wal_sender_timeout, .. } = &config.relay;
    let sql = connect_sql(&config.connect).await.map_err(RelayError::Connect)?;
    let sender_timeout = format!("{}ms", wal_sender_timeout.as_millis());
    // Rows arrive as text in the forms the router reads, whatever the role's or database's settings.
    let settings = [
        ("wal_sender_timeout", sender_timeout.as_str()),
        ("DateStyle", "ISO"),
        ("TimeZone", "UTC"),
        ("bytea_output", "hex"),
    ];
    let mut replication = ReplicationConnection::connect(&config.connect, &settings)
        .await
        .map_err(RelayError::Connect)?;
    let identity = replication.identify_system().await.map_err(RelayError::Connect)?;
    gate::gate(&sql, &config.relay).await?;
    if let Some(holder) = holder(&sql, slot).await? {
        return Ok(Opened::Held(holder, sql));
    }

    let mut stream = StreamSettings::for_sender_timeout(Some(*wal_sender_timeout));
    stream.status_interval = stream.status_interval.min(config.relay.status_interval);
    let publications = [publication.clone()];
    let (frames, mut feedback) =
        match replication.start(slot, &publications, Lsn::ZERO, &stream).await {
            Ok(halves) => halves,
            Err(error) => return held_or(error, sql, slot).await,
        };

    let (confirmed_flush, wal_end) = positions(&sql, slot).await?;
    feedback.received(confirmed_flush);
    let store = DispatchStore::new(slot.clone()).with_on_dead(config.relay.on_dead);
    let lease = config.pubsub.publisher.request_timeout + LEASE_SLACK;
    let connect = config.connect.clone();
    let mut state = SessionStore::new(connect, sql, store, identity.system_identifier, lease);
    let Holdings { parked, recorded } =
        state.holdings(confirmed_flush).await.map_err(RelayError::Store)?;
    let mut lanes = Lanes::new(lane_policy(&config.relay), random_seed());
    let now = Instant::now().into_std();
    for key in &parked {
        let due = key.next_attempt_in.unwrap_or_default().min(RESTART_WAIT_MAX);
        lanes.load_parked(&Topic::from(key.topic.as_str()), &key.ordering_key, now + due);
    }
    let session = Session {
        frames,
        feedback,
        publishes: Publishes::new(publisher.clone(), window(config)),
        recorder: Recorder::new(state, Intervals::with_retention(config.relay.dispatch_retention)),
        decoder: Decoder::new(),
        flow: flow(&config.relay, lanes, RecordedRows::new(recorded), observer),
        goal: None,
        drain_timeout: config.relay.drain_timeout,
    };
    let at = StartedAt { confirmed_flush, wal_end, parked_keys: parked.len() };
    Ok(Opened::Session(Box::new(session), at))
}

fn flow(
    relay: &RelaySettings,
    lanes: Lanes,
    recorded_rows: RecordedRows,
    observer: Observer,
) -> Flow {
    Flow {
        router: Router::new(relay.router.clone()),
        recorded_rows,
        tracker: Tracker::new(),
        budget: Budget::new(BudgetLimits::of_bytes(relay.max_in_flight_bytes)),
        lanes,
        observer,
    }
}

fn window(config: &Settings) -> Window {
    let max = config.pubsub.max_outstanding_requests;
    Window::new(WindowLimits { min: WINDOW_MIN.min(max), max })
}

/// A parked key is looked at this soon after a start, however long its back-off had become: the
/// restart may be the cure.
const RESTART_WAIT_MAX: Duration = Duration::from_secs(5);

/// Claimed rows stay ours this much longer than a publish call may take.
const LEASE_SLACK: Duration = Duration::from_secs(15);

/// Requests out at least, where the window may be so large: enough to keep two processors busy.
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
        on_dead: relay.on_dead,
    }
}

/// Another relay may take the slot between our look and our start.
async fn held_or(error: PgError, sql: SqlClient, slot: &str) -> Result<Opened, RelayError> {
    let active = match error.server().map(walrelay_postgres::ServerError::kind) {
        Some(ServerErrorKind::SlotActive { .. }) => holder(&sql, slot).await?,
        _ => return Err(RelayError::Connect(error)),
    };
    match active {
        Some(holder) => Ok(Opened::Held(holder, sql)),
        // Free again: the next try will have it.
        None => Err(RelayError::Connect(error)),
    }
}

/// Waits until the slot is free; ends the holder's session after `--take-over-after`.
///
/// # Errors
///
/// The connection broke, or taking over is not allowed.
pub async fn stand_by(sql: &SqlClient, config: &Settings, first: Holder) -> Result<(), RelayError> {
    let slot = &config.relay.slot;
    let mut told: Option<Holder> = None;
    let mut current = first;
    let mut since = Instant::now();
    loop {
        if told.as_ref() != Some(&current) {
            tracing::info!(slot, holder = %current, "standing by: the slot is held");
            told = Some(current.clone());
        }
        if let Some(limit) = config.relay.take_over_after
            && since.elapsed() >= limit
        {
            end_holder(sql, &current).await?;
            since = Instant::now();
        }
        sleep(STANDBY_PAUSE).await;
        match holder(sql, slot).await? {
            Some(holder) => current = holder,
            None => return Ok(()),
        }
    }
}

async fn end_holder(sql: &SqlClient, holder: &Holder) -> Result<(), RelayError> {
    tracing::warn!(%holder, "taking the slot over: ending the session that holds it");
    sql.execute("SELECT pg_terminate_backend($1)", &[&holder.pid])
        .await
        .map(drop)
        .map_err(|source| RelayError::TakeOver { holder: holder.to_string(), source })
}

async fn holder(sql: &SqlClient, slot: &str) -> Result<Option<Holder>, RelayError> {
    let row = sql
        .query_opt(
            "SELECT s.active_pid, nullif(a.application_name, '')
               FROM pg_replication_slots s
               LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
              WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL",
            &[&slot],
        )
        .await
        .map_err(RelayError::sql("read who holds the slot"))?;
    Ok(row.map(|row| Holder { pid: row.get(0), application_name: row.get(1) }))
}

async fn positions(sql: &SqlClient, slot: &str) -> Result<(Lsn, Lsn), RelayError> {
    let row = sql
        .query_one(
            "SELECT confirmed_flush_lsn, pg_current_wal_flush_lsn()
               FROM pg_replication_slots WHERE slot_name = $1",
            &[&slot],
        )
        .await
        .map_err(RelayError::sql("read the slot's position"))?;
    let lsn = |at: PgLsn| Lsn::new(at.into());
    Ok((lsn(row.get(0)), lsn(row.get(1))))
}

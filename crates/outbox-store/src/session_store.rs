//! Dispatch state in Postgres for one session: the [`Store`] of the service.
//!
//! Owns the ordinary connection beside the replication connection, and reopens it when it is lost.
//! Keeps the claims of rows in flight, because their outcomes need them.

mod claiming;
mod spilled;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, Position};
use spilled::Spilled;
use tokio_postgres::error::SqlState;
use walrelay_core::{ClaimAnswer, ClaimKey, Finished, Outcome, RowToRecord, Topic};
use walrelay_errors::{Chain, Coded};
use walrelay_pg_client::{ConnectConfig, PgError, SqlClient, SqlText, connect_sql, sql};
use walrelay_pg_replication::{ServerIdentity, read_server_identity};

use crate::dispatch::{
    Claim, DispatchStore, Head, HeldKey, IncrementalCount, Key, ParkRow, ParkedKey, RecordedPage,
};
use crate::publication_watch::{PublicationCheck, PublicationWatch};
use crate::relay_condition::{Condition, Reason, ReasonKind};
use crate::relay_row::{
    Horizon, RelayRowOwner, RelayRowWritten, note_origin, read_confirmed, read_horizon,
    read_relay_row, take_relay_row,
};
use crate::slot_figures::read_survey;
use crate::store::{
    DUE_KEYS_MAX, Due, HEADS_MAX, HOLDS_MAX, SlotFigures, Store, StoreFailure, TABLE_FAILURE_PREFIX,
};
use crate::store_error::{StoreError, grant_on};
use crate::wal_time::note_wal_time;

/// The dispatch tables of one slot.
#[derive(Debug)]
pub struct SessionStore {
    connect: ConnectConfig,
    /// The connection. While it is open, it is proven to be on `server` (I11).
    client: Option<SqlClient>,
    store: DispatchStore,
    /// The server of the replication session.
    server: ServerIdentity,
    /// The relay's row, once the session has taken it.
    own_row: Option<RelayRowOwner>,
    /// The row's generation before the session checked for unfinished operations. None if there was
    /// no row.
    generation: Option<u64>,
    /// Claimed and unfinished rows by recorded id, bounded by the byte budget. Two rows may have
    /// the same position after the publication was changed.
    claims: HashMap<String, Claim>,
    /// Keys of claims without an answer. Their rows may be leased although nobody publishes them.
    unanswered: BTreeSet<(String, String)>,
    /// Keys with an unconfirmed hold, as of the last read.
    wanted: BTreeMap<(String, String), String>,
    /// Process id that streams the slot in this session. None if there is no slot.
    streaming_pid: Option<i32>,
    spilled: Spilled,
    /// The newest horizon whose WAL end the watermark has not passed yet.
    horizon: Option<Horizon>,
    lease: Duration,
    counting: IncrementalCount,
    /// None if nothing streams.
    watch: Option<PublicationWatch>,
    /// Time of the next recorded position, for conversions from times. None after a failure.
    wal_time_at: Option<Instant>,
}

/// Generation of the row that the session creates if there is none.
const FIRST_GENERATION: u64 = 1;

const OTHER_GENERATION: &str =
    "the row in app_outbox_relay belongs to another generation or timeline";

/// Interval between recorded WAL positions, which is the precision of an operator's times.
const WAL_TIME_INTERVAL: Duration = Duration::from_secs(60);

/// Pause before a key is read again whose rows another session had locked.
const HELD_PAUSE: Duration = Duration::from_secs(1);

impl SessionStore {
    /// Creates the store of `store`'s slot over an open connection. `lease` is how long claimed
    /// rows stay ours, which is longer than a publish call may take.
    ///
    /// # Errors
    ///
    /// The connection is not on `server`, the server of the replication session.
    pub async fn begin(
        connect: ConnectConfig,
        client: SqlClient,
        store: DispatchStore,
        server: ServerIdentity,
        lease: Duration,
    ) -> Result<Self, StoreFailure> {
        prepare(&client, &server).await?;
        Ok(Self {
            connect,
            client: Some(client),
            store,
            server,
            own_row: None,
            generation: None,
            claims: HashMap::new(),
            unanswered: BTreeSet::new(),
            wanted: BTreeMap::new(),
            streaming_pid: None,
            spilled: Spilled::NONE,
            horizon: None,
            lease,
            counting: IncrementalCount::default(),
            watch: None,
            wal_time_at: Some(Instant::now()),
        })
    }

    #[must_use]
    pub fn watching(self, watch: PublicationWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Returns the store for a session that read the slot when the row had this generation.
    #[must_use]
    pub fn of_generation(self, generation: Option<u64>) -> Self {
        Self { generation, ..self }
    }

    /// Ends a session whose slot was reset, because its state describes the old slot.
    async fn refuse_other_generation(&mut self) -> Result<(), StoreFailure> {
        let Some(own_row) = self.own_row.clone() else { return Ok(()) };
        match own_row.is_ours(self.client().await?).await.map_err(store_failure)? {
            true => Ok(()),
            false => Err(StoreFailure::OtherHistory(OTHER_GENERATION)),
        }
    }

    async fn client(&mut self) -> Result<&mut SqlClient, StoreFailure> {
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            self.client = None;
            let client = connect_sql(&self.connect).await.map_err(connect_failure)?;
            prepare(&client, &self.server).await?;
            self.client = Some(client);
        }
        match &mut self.client {
            Some(client) => Ok(client),
            None => Err(StoreFailure::ShuttingDown),
        }
    }

    /// Records the WAL position once a minute. Only conversions from times need it, so a failure
    /// never ends the session.
    async fn note_wal_time(&mut self) -> Result<(), StoreFailure> {
        let now = Instant::now();
        if self.wal_time_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.wal_time_at = Some(now + WAL_TIME_INTERVAL);
        let system = self.server.system_identifier.clone().unwrap_or_default();
        match note_wal_time(self.client().await?, &system).await {
            Err(error) if !error.is_disconnected() => {
                let error = Chain(&error).to_string();
                tracing::warn!(
                    error,
                    "the time of the WAL position is not recorded, so times cannot be converted into positions"
                );
                self.wal_time_at = None;
            }
            Ok(()) | Err(_) => {}
        }
        Ok(())
    }

    /// Records the origin. Only a recovery on another server needs it, and `--from-time` can replace
    /// it.
    async fn note_origin(&mut self) -> Result<(), StoreFailure> {
        let Some(tables) = self.watch.as_ref().map(|watch| watch.tables().to_vec()) else {
            return Ok(());
        };
        let slot = self.store.slot().to_owned();
        note_origin(self.client().await?, &slot, &tables).await.map_err(store_failure)
    }

    /// Records the publication, so that a later process notices a change while none streams.
    async fn note_publication(&mut self) -> Result<(), StoreFailure> {
        let Some(watch) = self.watch.clone() else { return Ok(()) };
        let slot = self.store.slot().to_owned();
        watch.note(self.client().await?, &slot).await.map_err(store_failure)
    }

    async fn read_horizon(&mut self) -> Result<Horizon, StoreFailure> {
        read_horizon(self.client().await?).await.map_err(store_failure)
    }
}

/// Prepares a connection for writing. It must not depend on settings of the role or the database,
/// and must be on the server of the replication session.
async fn prepare(client: &SqlClient, server: &ServerIdentity) -> Result<(), StoreFailure> {
    client
        .batch_execute(&SESSION_SETTINGS)
        .await
        .map_err(|source| store_failure(StoreError::sql("set up the session")(source)))?;
    let here = read_server_identity(client).await.map_err(store_failure)?;
    match here.is_same(server) {
        true => Ok(()),
        false => Err(StoreFailure::OtherHistory(
            "the connection leads to another server than the replication session, or it was restarted",
        )),
    }
}

/// Settings that recorded rows depend on, and the subscription to changes ([`DISPATCH_CHANNEL`]). A
/// commit that returns before it is on disk may be lost with the server, after its rows were
/// confirmed. Stronger settings stay. An endless lock or statement would block every key.
static SESSION_SETTINGS: SqlText = SqlText::new(|| sql!("session_store.sql", "session_settings"));

impl Store for SessionStore {
    async fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> Result<usize, StoreFailure> {
        let (store, server) = (self.store.clone(), self.server.clone());
        let client = self.client().await?;
        let parked_keys = store.each_parked_key(client, each).await.map_err(store_failure)?;
        let wanted = store.wanted_holds(client, HOLDS_MAX).await.map_err(store_failure)?;
        let streaming_pid = store.streaming_pid(client).await.map_err(store_failure)?;
        let system = server.system_identifier.unwrap_or_default();
        let own_row = take_relay_row(client, store.slot(), &system, server.timeline).await;
        let row = read_relay_row(client, store.slot()).await.map_err(store_failure)?;
        let confirmed = read_confirmed(client, store.slot()).await.map_err(store_failure)?;
        let own_row = own_row.map_err(store_failure)?;
        // Another operation may have begun since, and even finished.
        if own_row.generation != self.generation.unwrap_or(FIRST_GENERATION.min(own_row.generation))
        {
            return Err(StoreFailure::OtherHistory(OTHER_GENERATION));
        }
        self.note_origin().await?;
        self.note_publication().await?;
        self.own_row = Some(own_row);
        self.streaming_pid = streaming_pid;
        self.wanted = by_key(wanted);
        self.passed(row.map_or(Lsn::ZERO, |row| row.settled_lsn), confirmed);
        // Read early, so that even a short session records its progress.
        self.horizon = Some(self.read_horizon().await?);
        Ok(parked_keys)
    }

    async fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> Result<RecordedPage, StoreFailure> {
        let store = self.store.clone();
        let client = self.client().await?;
        store.recorded_from(client, from, rows_max).await.map_err(store_failure)
    }

    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        let rows: Vec<_> = rows_to_record.iter().map(ParkRow::from).collect();
        let store = self.store.clone();
        store.park(self.client().await?, &rows).await.map_err(store_failure)
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        let claim = |row: &Finished| self.claims.get(row.message.event_id()).cloned();
        let outcomes: Vec<_> =
            finished.iter().filter_map(|row| Some((claim(row)?, &row.outcome))).collect();
        let (store, past) = (self.store.clone(), self.spilled.past);
        store.finish_before(self.client().await?, &outcomes, past).await.map_err(store_failure)?;
        for row in finished {
            let removed = self.claims.remove(row.message.event_id());
            let was_spilled = removed.is_some_and(|of_row| of_row.is_spilled());
            if was_spilled && matches!(row.outcome, Outcome::Published { .. }) {
                self.spilled.published(row.message.position());
            }
        }
        Ok(())
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> Result<Vec<ClaimAnswer>, StoreFailure> {
        self.answer_holds(keys, through).await?;
        self.release_unanswered().await?;
        match self.take(keys, bytes_max).await {
            Ok((answers, in_flight)) => {
                let in_flight = in_flight.into_iter();
                self.claims.extend(in_flight.map(|claim| (claim.event_id().to_owned(), claim)));
                Ok(answers)
            }
            Err(error) => {
                self.unanswered.extend(keys.iter().map(owned));
                Err(error)
            }
        }
    }

    async fn due_keys(&mut self, except: &[Topic]) -> Result<Due, StoreFailure> {
        let store = self.store.clone();
        let topics: Vec<&str> = except.iter().map(|topic| &**topic).collect();
        let limit = u32::try_from(DUE_KEYS_MAX).unwrap_or(u32::MAX);
        let client = self.client().await?;
        let due = store.due_keys(client, &topics, limit).await.map_err(store_failure)?;
        let wanted = store.wanted_holds(client, HOLDS_MAX).await.map_err(store_failure)?;
        self.wanted = by_key(wanted);
        let keys = due.keys.into_iter().chain(self.wanted.keys().cloned());
        let keys = keys.map(|(topic, key)| (topic.into(), key)).collect();
        Ok(Due { keys, has_more: due.has_more })
    }

    async fn has_spilled_before(&mut self, end: Lsn) -> Result<bool, StoreFailure> {
        let store = self.store.clone();
        store.has_spilled_before(self.client().await?, end).await.map_err(store_failure)
    }

    async fn heads_after(&mut self, after: Option<&Head>) -> Result<Vec<Head>, StoreFailure> {
        let store = self.store.clone();
        let after = after.map(|head| (head.topic.as_str(), head.ordering_key.as_str()));
        let limit = u32::try_from(HEADS_MAX).unwrap_or(u32::MAX);
        let client = self.client().await?;
        store.heads_after(client, after, limit).await.map_err(store_failure)
    }

    async fn note_settled(&mut self, settled: Lsn, published: u64) -> Result<(), StoreFailure> {
        let Some(own_row) = self.own_row.clone() else { return Ok(()) };
        let passed = self.horizon.filter(|horizon| horizon.wal_end <= settled);
        let xmin = passed.map(|horizon| horizon.xmin);
        let client = self.client().await?;
        let written =
            own_row.write(client, settled, xmin, published).await.map_err(store_failure)?;
        let Some(RelayRowWritten { confirmed, horizon }) = written else {
            return Err(StoreFailure::OtherHistory(OTHER_GENERATION));
        };
        self.passed(settled, confirmed);
        if passed.is_some() || self.horizon.is_none() {
            self.horizon = Some(horizon);
        }
        self.delete_stored().await?;
        self.note_wal_time().await
    }

    async fn note_condition(&mut self, condition: &Condition) -> Result<(), StoreFailure> {
        let Some(own_row) = self.own_row.clone() else { return Ok(()) };
        let pid = self.streaming_pid;
        let client = self.client().await?;
        // A failure never ends the session, because only `walrelay status` reads the condition.
        let noted = own_row.note_condition(client, pid, condition).await;
        noted.map_err(|error| StoreFailure::Unavailable(Box::new(error)))
    }

    fn failure_reason(&self, failure: &StoreFailure) -> Reason {
        let refused = match failure {
            StoreFailure::Unavailable(source) => source.downcast_ref::<StoreError>(),
            StoreFailure::ShuttingDown
            | StoreFailure::OtherHistory(_)
            | StoreFailure::NotRecorded(_)
            | StoreFailure::TablesMissing(_) => None,
        };
        let role = self.connect.user();
        let kind = ReasonKind::DispatchFailure;
        let reason = match refused.and_then(StoreError::closed_table) {
            Some(table) => {
                let why = format!("role {role} lacks a privilege or a policy on {table}");
                Reason::new(kind, format!("{TABLE_FAILURE_PREFIX}{why}"))
                    .with_fix(grant_on(table, role))
            }
            None => Reason::new(kind, format!("{TABLE_FAILURE_PREFIX}{}", failure.in_short())),
        };
        reason.with_code(failure.code().name())
    }

    async fn notice(&mut self) {
        match &self.client {
            Some(client) => client.notified().await,
            None => std::future::pending().await,
        }
    }

    async fn survey(&mut self) -> Result<SlotFigures, StoreFailure> {
        let store = self.store.clone();
        let mut counting = self.counting.clone();
        let client = self.client().await?;
        let survey = read_survey(client, &store, &mut counting).await.map_err(store_failure)?;
        self.counting = counting;
        self.delete_stored().await?;
        Ok(survey)
    }

    async fn watch(&mut self) -> Result<PublicationCheck, StoreFailure> {
        self.refuse_other_generation().await?;
        match self.watch.clone() {
            Some(watch) => watch.look(self.client().await?).await.map_err(store_failure),
            None => Ok(PublicationCheck::Intact { up_to: Lsn::new(u64::MAX), unpublished: None }),
        }
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        let store = self.store.clone();
        store.prune(self.client().await?, retention).await.map_err(store_failure)
    }
}

impl SessionStore {
    /// Confirms the requested holds of these keys, which have no row in flight.
    async fn answer_holds(
        &mut self,
        keys: &[ClaimKey],
        through: Position,
    ) -> Result<(), StoreFailure> {
        let wanted: Vec<Key<'_>> = keys
            .iter()
            .filter(|key| self.wanted.contains_key(&owned(key)))
            .map(Key::from)
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let (store, streaming_pid) = (self.store.clone(), self.streaming_pid);
        let client = self.client().await?;
        let held = store.answer_holds(client, &wanted, through, streaming_pid).await;
        let held = held.map_err(store_failure)?;
        if held > 0 {
            let replays: BTreeSet<&str> = keys
                .iter()
                .filter_map(|key| self.wanted.get(&owned(key)))
                .map(String::as_str)
                .collect();
            tracing::info!(
                keys = held,
                ?replays,
                "keys are held until their replay in place is finished or cancelled"
            );
        }
        Ok(())
    }

    fn passed(&mut self, settled: Lsn, confirmed: Lsn) {
        if !self.store.is_during_recovery() {
            self.spilled.passed(settled, confirmed);
        }
    }

    /// Deletes some of the spilled rows that were stored before the slot had passed them. This is
    /// only cleanup. If it fails, they stay as ordinary published rows.
    async fn delete_stored(&mut self) -> Result<(), StoreFailure> {
        let (store, past) = (self.store.clone(), self.spilled.past);
        if self.spilled.begins_leftover_search() {
            match store.stored_spilled(self.client().await?).await {
                Ok(Some((from, to))) => self.spilled.left(from, to),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "whether stored rows are left is not known"),
            }
        }
        let Some(from) = self.spilled.published_from.filter(|from| *from < past) else {
            return Ok(());
        };
        let client = self.client().await?;
        match store.delete_spilled_between(client, from, past).await {
            Ok(further) => self.spilled.deleted(further),
            Err(error) => tracing::debug!(%error, "what was spilled and stored is not deleted yet"),
        }
        Ok(())
    }
}

fn by_key(wanted: Vec<HeldKey>) -> BTreeMap<(String, String), String> {
    wanted.into_iter().map(|held| ((held.topic, held.ordering_key), held.replay_id)).collect()
}

fn owned(key: &ClaimKey) -> (String, String) {
    (key.topic.to_string(), key.ordering_key.to_string())
}

fn connect_failure(error: PgError) -> StoreFailure {
    // 57P03 cannot_connect_now: the server is starting up or shutting down. During startup, the
    // replication connection is lost anyway.
    match error.server() {
        Some(server) if server.code == SqlState::CANNOT_CONNECT_NOW.code() => {
            StoreFailure::ShuttingDown
        }
        _ => StoreFailure::Unavailable(Box::new(error)),
    }
}

fn store_failure(error: impl Into<StoreError>) -> StoreFailure {
    let error = error.into();
    match error.sql_state() {
        Some(state) if *state == SqlState::CANNOT_CONNECT_NOW => StoreFailure::ShuttingDown,
        Some(state) if [SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_TABLE].contains(state) => {
            StoreFailure::TablesMissing(error)
        }
        _ => StoreFailure::Unavailable(Box::new(error)),
    }
}

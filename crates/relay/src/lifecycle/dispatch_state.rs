//! Dispatch state in Postgres: the [`Store`] of the service.
//!
//! Owns the ordinary connection beside the replication connection, and opens it again when it is
//! lost. Keeps the claims of rows that are out, which their outcomes are written against.

use std::collections::HashMap;
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::error::SqlState;
use walrelay_core::{ClaimKey, Claimed, Finished, Message, Outcome, Reason, RowToRecord, Topic};
use walrelay_postgres::{
    Claim, ClaimLimits, ClaimedRow, ConnectConfig, DispatchStore, Horizon, Key, ParkRow,
    ParkStatus, ParkedKey, PgError, SqlClient, StoreError, connect_sql, read_horizon,
    write_relay_row,
};

use crate::observe::report;
use crate::stream::seams::{SlotLag, Store, StoreCounts, StoreFailure, Survey};

/// The dispatch tables of one slot.
#[derive(Debug)]
pub struct DispatchState {
    connect: ConnectConfig,
    client: Option<SqlClient>,
    store: DispatchStore,
    system_identifier: String,
    /// Rows claimed and not finished, at most what the budget lets out.
    claims: HashMap<Position, Claim>,
    /// The newest horizon whose end of log the watermark has not passed yet.
    horizon: Option<Horizon>,
    lease: Duration,
}

/// Rows of one key read back at once: a few full round trips of work, and few enough that an
/// operator's change to the rows behind them is seen soon.
const PER_KEY_ROWS: u32 = 500;

/// Due rows looked at by one poll.
const DUE_ROWS: u32 = 1_000;

/// How soon a key is looked at again whose rows were held by somebody else.
const HELD_PAUSE: Duration = Duration::from_secs(1);

impl DispatchState {
    /// The state of `store`'s slot over a connection that is open. `horizon` was read when the
    /// session began, so that even a short one notes how far it came; `lease` is how long claimed
    /// rows stay ours: longer than a publish call may take.
    #[must_use]
    pub fn new(
        connect: ConnectConfig,
        client: SqlClient,
        store: DispatchStore,
        (system_identifier, horizon): (String, Horizon),
        lease: Duration,
    ) -> Self {
        Self {
            connect,
            client: Some(client),
            store,
            system_identifier,
            claims: HashMap::new(),
            horizon: Some(horizon),
            lease,
        }
    }

    async fn client(&mut self) -> Result<&mut SqlClient, StoreFailure> {
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            self.client = Some(connect_sql(&self.connect).await.map_err(connect_failure)?);
        }
        match &mut self.client {
            Some(client) => Ok(client),
            None => Err(StoreFailure::ShuttingDown),
        }
    }
}

impl Store for DispatchState {
    async fn park(&mut self, rows_to_record: &[RowToRecord]) -> Result<(), StoreFailure> {
        let rows: Vec<_> = rows_to_record.iter().map(park_row).collect();
        let store = self.store.clone();
        store.park(self.client().await?, &rows).await.map_err(store_failure)
    }

    async fn finish(&mut self, finished: &[Finished]) -> Result<(), StoreFailure> {
        let outcomes: Vec<_> =
            finished.iter().filter_map(|row| outcome(row, &self.claims)).collect();
        let store = self.store.clone();
        store.finish(self.client().await?, &outcomes).await.map_err(store_failure)?;
        for row in finished {
            self.claims.remove(&row.message.position());
        }
        Ok(())
    }

    async fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
    ) -> Result<Vec<Claimed>, StoreFailure> {
        let wanted: Vec<_> = keys.iter().map(key).collect();
        let limits = ClaimLimits {
            per_key_rows: PER_KEY_ROWS,
            // A row in memory costs its bytes twice and some more.
            bytes_max: (bytes_max / 3) as u64,
            lease: self.lease,
        };
        let store = self.store.clone();
        let client = self.client().await?;
        let rows = store.claim(client, &wanted, limits).await.map_err(store_failure)?;
        let mut claimed: HashMap<(String, String), Vec<ClaimedRow>> = HashMap::new();
        for row in rows {
            let key = (row.topic.clone(), row.ordering_key.clone());
            claimed.entry(key).or_default().push(row);
        }
        // Asked after the claim: what is gone from here by then may be live again.
        let empty: Vec<_> =
            keys.iter().filter(|key| !claimed.contains_key(&owned(key))).map(key).collect();
        let held = match empty.is_empty() {
            true => Vec::new(),
            false => store.parked(client, &empty).await.map_err(store_failure)?,
        };
        let mut unreadable = Vec::new();
        let answers: Vec<_> = keys
            .iter()
            .map(|key| match claimed.remove(&owned(key)) {
                Some(of_key) => self.readable(key, of_key, &mut unreadable),
                None => Claimed { rows: Vec::new(), held_for: held_for(key, &held) },
            })
            .collect();
        if !unreadable.is_empty() {
            store.finish(self.client().await?, &unreadable).await.map_err(store_failure)?;
        }
        Ok(answers)
    }

    async fn due_keys(&mut self) -> Result<Vec<(Topic, String)>, StoreFailure> {
        let store = self.store.clone();
        let keys = store.due_keys(self.client().await?, DUE_ROWS).await.map_err(store_failure)?;
        Ok(keys.into_iter().map(|key| (key.topic.into(), key.ordering_key)).collect())
    }

    async fn note_settled(&mut self, settled: Lsn) -> Result<(), StoreFailure> {
        let (slot, identifier) = (self.store.slot().to_owned(), self.system_identifier.clone());
        let horizon = self.horizon;
        if let Some(Horizon { xmin, wal_end }) = horizon
            && wal_end <= settled
        {
            let client = self.client().await?;
            write_relay_row(client, &slot, &identifier, settled, xmin)
                .await
                .map_err(store_failure)?;
            self.horizon = None;
        }
        if self.horizon.is_none() {
            let client = self.client().await?;
            self.horizon = Some(read_horizon(client).await.map_err(store_failure)?);
        }
        Ok(())
    }

    async fn survey(&mut self) -> Result<Survey, StoreFailure> {
        let store = self.store.clone();
        let client = self.client().await?;
        let counts = store.counts(client).await.map_err(store_failure)?;
        let counts = StoreCounts {
            retrying: counts.retrying,
            dead: counts.dead,
            published: counts.published,
            discarded: counts.discarded,
        };
        let lag = slot_lag(client, store.slot()).await.map_err(sql_failure)?;
        let report = report::report(client, store.slot()).await;
        let report = report.map_err(|error| StoreFailure::Unavailable(Box::new(error)))?;
        Ok(Survey { counts, lag, report })
    }

    async fn prune(&mut self, retention: Duration) -> Result<u64, StoreFailure> {
        let store = self.store.clone();
        store.prune(self.client().await?, retention).await.map_err(store_failure)
    }
}

impl DispatchState {
    /// The rows of a key up to one that is no message: somebody has edited it by hand. That row is
    /// dead, the ones behind it are given back.
    fn readable(
        &mut self,
        key: &ClaimKey,
        rows: Vec<ClaimedRow>,
        unreadable: &mut Vec<walrelay_postgres::Outcome>,
    ) -> Claimed {
        use walrelay_postgres::Outcome as Written;
        let mut messages = Vec::with_capacity(rows.len());
        let mut is_broken = false;
        for row in rows {
            if is_broken {
                unreadable.push(Written::Release { claim: row.claim });
                continue;
            }
            let topic = Topic::clone(&key.topic);
            let event_id = row.claim.event_id();
            match Message::from_encoded(topic, row.position, event_id, &row.message) {
                Ok(message) => {
                    messages.push((message, row.attempts));
                    self.claims.insert(row.position, row.claim);
                }
                Err(error) => {
                    is_broken = true;
                    tracing::error!(event_id, %error, "row is dead: its message cannot be read");
                    unreadable.push(Written::Dead {
                        claim: row.claim,
                        attempts: row.attempts,
                        code: "UNREADABLE".to_owned(),
                        error: error.to_string(),
                    });
                }
            }
        }
        let held_for = messages.is_empty().then_some(HELD_PAUSE);
        Claimed { rows: messages, held_for }
    }
}

/// How long a key rests of which nothing could be claimed; none if it holds nothing any more.
fn held_for(key: &ClaimKey, held: &[ParkedKey]) -> Option<Duration> {
    let same =
        |other: &&ParkedKey| *other.topic == *key.topic && *other.ordering_key == *key.ordering_key;
    let parked = held.iter().find(same)?;
    let wait = parked.next_attempt_in.unwrap_or(HELD_PAUSE);
    Some(wait.clamp(HELD_PAUSE / 10, HELD_PAUSE * 60))
}

fn owned(key: &ClaimKey) -> (String, String) {
    (key.topic.to_string(), key.ordering_key.to_string())
}

fn key(key: &ClaimKey) -> Key<'_> {
    Key { topic: &key.topic, ordering_key: &key.ordering_key }
}

fn park_row(row_to_record: &RowToRecord) -> ParkRow<'_> {
    let message = &row_to_record.message;
    let (status, failure) = match &row_to_record.reason {
        Reason::Stuck { failure, next_attempt_in } => {
            (ParkStatus::Retrying { next_attempt_in: *next_attempt_in }, Some(failure))
        }
        Reason::Queued => (ParkStatus::Retrying { next_attempt_in: None }, None),
        Reason::Dead { failure } => (ParkStatus::Dead, Some(failure)),
    };
    ParkRow {
        event_id: message.event_id(),
        position: message.position(),
        topic: message.topic(),
        ordering_key: message.ordering_key(),
        message: message.body(),
        status,
        attempts: 0,
        error_code: failure.map(|failure| failure.code),
        last_error: failure.map(|failure| failure.message.as_str()),
    }
}

fn outcome(
    row: &Finished,
    claims: &HashMap<Position, Claim>,
) -> Option<walrelay_postgres::Outcome> {
    use walrelay_postgres::Outcome as Written;
    let claim = claims.get(&row.message.position())?.clone();
    Some(match &row.outcome {
        Outcome::Published { message_id } => {
            Written::Published { claim, message_id: message_id.clone() }
        }
        Outcome::Again { failure: None, .. } => Written::Release { claim },
        Outcome::Again { attempts, after, failure: Some(failure) } => Written::Retry {
            claim,
            attempts: *attempts,
            next_attempt_in: *after,
            code: failure.code.to_owned(),
            error: failure.message.clone(),
        },
        Outcome::Dead { attempts, failure } => Written::Dead {
            claim,
            attempts: *attempts,
            code: failure.code.to_owned(),
            error: failure.message.clone(),
        },
    })
}

/// How far the slot lags, as the server sees it.
async fn slot_lag(
    client: &tokio_postgres::Client,
    slot: &str,
) -> Result<SlotLag, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::int8,
                    safe_wal_size
               FROM pg_replication_slots WHERE slot_name = $1",
            &[&slot],
        )
        .await?;
    Ok(row.map_or_else(SlotLag::default, |row| SlotLag {
        lag_bytes: row.get::<_, Option<i64>>(0).and_then(|lag| lag.try_into().ok()).unwrap_or(0),
        safe_wal_bytes: row.get(1),
    }))
}

fn connect_failure(error: PgError) -> StoreFailure {
    // 57P03 cannot_connect_now: starting up or shutting down. Starting up, the replication
    // connection is gone anyway.
    match error.server() {
        Some(server) if server.code == SqlState::CANNOT_CONNECT_NOW.code() => {
            StoreFailure::ShuttingDown
        }
        _ => StoreFailure::Unavailable(Box::new(error)),
    }
}

fn store_failure(error: StoreError) -> StoreFailure {
    match error.sql_state() {
        Some(state) if *state == SqlState::CANNOT_CONNECT_NOW => StoreFailure::ShuttingDown,
        _ => StoreFailure::Unavailable(Box::new(error)),
    }
}

fn sql_failure(error: tokio_postgres::Error) -> StoreFailure {
    StoreFailure::Unavailable(Box::new(error))
}

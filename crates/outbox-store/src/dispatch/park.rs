//! Records rows that were not published.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use pgoutput_parser::Position;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Transaction};
use walrelay_core::{RecordReason, RowToRecord};

use super::recorded::taken_suffix;
use super::stored_text::{
    AllowedCharacters, CODE_BYTES_MAX, ERROR_BYTES_MAX, NAME_BYTES_MAX, storable, storable_line,
};
use super::{DispatchStatus, DispatchStore, SPILLED, position_of, seconds, signed};
use crate::store_error::StoreError;
use walrelay_pg_client::{Parameter, SqlText, sql};

#[derive(Clone)]
pub struct ParkRow<'a> {
    /// Id of the outbox row, as text.
    pub event_id: &'a str,
    pub position: Position,
    pub topic: &'a str,
    /// The ordering key. Empty means unordered.
    pub ordering_key: &'a str,
    pub event_type: Option<&'a str>,
    /// The encoded `PubsubMessage`.
    pub message: &'a [u8],
    pub status: ParkStatus,
    pub attempts: u32,
    /// Why the row was not published: a gRPC code, or our own reason such as `SPILLED`. None for a
    /// row that is queued behind another.
    pub error_code: Option<&'a str>,
    /// gRPC code of the failed attempt, if it differs from `error_code`.
    pub failed_with: Option<&'a str>,
    pub last_error: Option<&'a str>,
}

impl<'a> From<&'a RowToRecord> for ParkRow<'a> {
    fn from(row: &'a RowToRecord) -> Self {
        let (status, failure) = match &row.reason {
            RecordReason::Stuck { failure, next_attempt_in } => {
                (ParkStatus::Retrying { next_attempt_in: *next_attempt_in }, Some(failure))
            }
            RecordReason::Queued => (ParkStatus::Retrying { next_attempt_in: None }, None),
            RecordReason::Spilled { failure, next_attempt_in } => {
                (ParkStatus::Retrying { next_attempt_in: *next_attempt_in }, failure.as_ref())
            }
            RecordReason::Dead { failure } => (ParkStatus::Dead, Some(failure)),
        };
        let is_spilled = matches!(row.reason, RecordReason::Spilled { .. });
        Self {
            event_id: row.message.event_id(),
            position: row.message.position(),
            topic: row.message.topic(),
            ordering_key: row.message.ordering_key(),
            event_type: row.message.event_type(),
            message: row.message.body(),
            status,
            attempts: 0,
            error_code: match is_spilled {
                true => Some(SPILLED),
                false => failure.map(|failure| failure.code.as_str()),
            },
            failed_with: failure.map(|failure| failure.code.as_str()),
            last_error: failure.map(|failure| failure.message.as_str()),
        }
    }
}

impl std::fmt::Debug for ParkRow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the message and the key, because this output reaches logs.
        f.debug_struct("ParkRow")
            .field("event_id", &self.event_id)
            .field("position", &self.position)
            .field("topic", &self.topic)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkStatus {
    Retrying {
        /// Time until the next attempt. None for a row that is queued behind the head of its key. A
        /// row without a head (unordered, or the head was discarded) is then due now. Otherwise
        /// nobody would ever read the key again.
        next_attempt_in: Option<Duration>,
    },
    Dead,
}

/// Maximum bytes of one statement: few statements, and little memory on both sides. A larger
/// message gets a statement of its own.
const STATEMENT_BYTES_MAX: usize = 4 << 20;

/// Maximum rows of one statement. It bounds the arrays beside the messages.
const STATEMENT_ROWS_MAX: usize = 5_000;

/// Bytes that a row adds to a statement, without its texts.
const ROW_BYTES: usize = 128;

/// Number of ids that are tried for one row. More collisions would mean a bug of ours.
const EVENT_ID_TRIES_MAX: u32 = 8;

impl DispatchStore {
    /// Records these rows, all or none. The rows are settled when this returns.
    ///
    /// A row that is already recorded with this id and position stays as it is. If another row has
    /// the same id (two outbox tables may use equal ids), the row is recorded as
    /// `<id>@<commit_lsn>/<tx_index>`.
    ///
    /// # Errors
    ///
    /// The rows may or may not be recorded, and the caller may park them again.
    pub async fn park(&self, client: &mut Client, rows: &[ParkRow<'_>]) -> Result<(), StoreError> {
        let parked = self.park_with(client, rows, AllowedCharacters::All).await;
        match parked.as_ref().err().and_then(|error| AllowedCharacters::All.after(error)) {
            Some(fewer) => self.park_with(client, rows, fewer).await,
            None => parked,
        }
    }

    async fn park_with(
        &self,
        client: &mut Client,
        rows: &[ParkRow<'_>],
        characters: AllowedCharacters,
    ) -> Result<(), StoreError> {
        let mut unrecorded: Vec<Candidate<'_>> = rows.iter().map(Candidate::new).collect();
        if unrecorded.is_empty() {
            return Ok(());
        }
        let transaction = client.transaction().await.map_err(StoreError::sql("park rows"))?;
        for _ in 0..EVENT_ID_TRIES_MAX {
            unrecorded = self.insert(&transaction, unrecorded, characters).await?;
            if unrecorded.is_empty() {
                return transaction.commit().await.map_err(StoreError::sql("park rows"));
            }
            unrecorded.iter_mut().for_each(Candidate::take_next_id);
        }
        let event_id = unrecorded.remove(0).event_id.into_owned();
        Err(StoreError::NoFreeEventId { event_id, tries: EVENT_ID_TRIES_MAX })
    }

    /// Inserts each candidate under its id. Returns the candidates whose id belongs to another row.
    async fn insert<'a>(
        &self,
        transaction: &Transaction<'_>,
        candidates: Vec<Candidate<'a>>,
        characters: AllowedCharacters,
    ) -> Result<Vec<Candidate<'a>>, StoreError> {
        let mut taken = Vec::new();
        let mut rest = candidates.as_slice();
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(chunk_len(rest));
            let inserted = self.insert_chunk(transaction, chunk, characters).await?;
            if inserted < chunk.len() as u64 {
                taken.extend(chunk.iter().cloned());
            }
            rest = after;
        }
        if taken.is_empty() {
            return Ok(taken);
        }
        let recorded = self.recorded(transaction, &taken).await?;
        taken.retain(|candidate| !recorded.contains(&candidate.identity()));
        Ok(taken)
    }

    /// Inserts the candidates and returns how many rows are new.
    async fn insert_chunk(
        &self,
        transaction: &Transaction<'_>,
        chunk: &[Candidate<'_>],
        characters: AllowedCharacters,
    ) -> Result<u64, StoreError> {
        let columns = Columns::of(chunk, characters)?;
        transaction
            .execute_typed(
                &INSERT,
                &[
                    (&self.slot, Type::TEXT),
                    (&columns.event_id, Type::TEXT_ARRAY),
                    (&columns.commit_lsn, Type::PG_LSN_ARRAY),
                    (&columns.tx_index, Type::INT4_ARRAY),
                    (&columns.topic, Type::TEXT_ARRAY),
                    (&columns.ordering_key, Type::TEXT_ARRAY),
                    (&columns.message, Type::BYTEA_ARRAY),
                    (&columns.status, Type::TEXT_ARRAY),
                    (&columns.attempts, Type::INT4_ARRAY),
                    (&columns.delay, Type::FLOAT8_ARRAY),
                    (&columns.error_code, Type::TEXT_ARRAY),
                    (&columns.error, Type::TEXT_ARRAY),
                    (&columns.failed_with, Type::TEXT_ARRAY),
                    (&self.before, Type::PG_LSN),
                    (&columns.event_type, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(StoreError::sql("park rows"))
    }

    /// Returns the ids and positions that are recorded under the ids of these candidates.
    async fn recorded(
        &self,
        transaction: &Transaction<'_>,
        candidates: &[Candidate<'_>],
    ) -> Result<HashSet<(String, Position)>, StoreError> {
        let event_ids: Vec<&str> = candidates.iter().map(|c| c.event_id.as_ref()).collect();
        let params: [Parameter<'_>; 2] = [(&self.slot, Type::TEXT), (&event_ids, Type::TEXT_ARRAY)];
        transaction
            .query_typed(sql!("park.sql", "recorded"), &params)
            .await
            .map_err(StoreError::sql("park rows"))?
            .iter()
            .map(|row| Ok((row.get("event_id"), position_of(row)?)))
            .collect()
    }
}

/// A row and the id under which it will be recorded.
#[derive(Clone)]
struct Candidate<'a> {
    row: &'a ParkRow<'a>,
    event_id: Cow<'a, str>,
}

impl<'a> Candidate<'a> {
    fn new(row: &'a ParkRow<'a>) -> Self {
        let mut candidate = Self { row, event_id: storable(row.event_id, NAME_BYTES_MAX) };
        if candidate.event_id != row.event_id {
            // A shortened id may equal another row's id.
            candidate.take_next_id();
        }
        candidate
    }

    fn take_next_id(&mut self) {
        self.event_id = Cow::Owned(format!("{}{}", self.event_id, taken_suffix(self.row.position)));
    }

    fn identity(&self) -> (String, Position) {
        (self.event_id.clone().into_owned(), self.row.position)
    }

    fn statement_bytes(&self) -> usize {
        let row = self.row;
        let texts = self.event_id.len() + row.topic.len() + row.ordering_key.len();
        ROW_BYTES + row.message.len() + texts + row.last_error.map_or(0, str::len)
    }
}

/// Returns how many candidates fit into one statement, at least one.
fn chunk_len(candidates: &[Candidate<'_>]) -> usize {
    let mut bytes = 0_usize;
    let fitting = candidates.iter().take(STATEMENT_ROWS_MAX).take_while(|candidate| {
        bytes = bytes.saturating_add(candidate.statement_bytes());
        bytes <= STATEMENT_BYTES_MAX
    });
    fitting.count().max(1)
}

/// The rows of a statement, column by column.
#[derive(Default)]
struct Columns<'a> {
    event_id: Vec<&'a str>,
    commit_lsn: Vec<PgLsn>,
    tx_index: Vec<i32>,
    topic: Vec<Cow<'a, str>>,
    ordering_key: Vec<Cow<'a, str>>,
    event_type: Vec<Option<Cow<'a, str>>>,
    message: Vec<&'a [u8]>,
    status: Vec<&'static str>,
    attempts: Vec<i32>,
    delay: Vec<Option<f64>>,
    error_code: Vec<Option<String>>,
    error: Vec<Option<String>>,
    failed_with: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn of(chunk: &'a [Candidate<'a>], characters: AllowedCharacters) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        for Candidate { row, event_id } in chunk {
            let (status, delay) = match row.status {
                ParkStatus::Retrying { next_attempt_in } => {
                    (DispatchStatus::Retrying, next_attempt_in.map(seconds))
                }
                ParkStatus::Dead => (DispatchStatus::Dead, None),
            };
            columns.event_id.push(event_id);
            columns.commit_lsn.push(row.position.commit_lsn.as_u64().into());
            columns.tx_index.push(signed(row.position.tx_index, "index within the transaction")?);
            columns.topic.push(storable(row.topic, NAME_BYTES_MAX));
            columns.ordering_key.push(storable(row.ordering_key, NAME_BYTES_MAX));
            columns.event_type.push(row.event_type.map(|it| storable(it, NAME_BYTES_MAX)));
            columns.message.push(row.message);
            columns.status.push(status.as_str());
            columns.attempts.push(signed(row.attempts, "number of attempts")?);
            columns.delay.push(delay);
            let code = |code| storable_line(code, CODE_BYTES_MAX);
            columns.error_code.push(row.error_code.map(code));
            columns.failed_with.push(row.failed_with.map(code));
            let line = |error| characters.line(error, ERROR_BYTES_MAX);
            columns.error.push(row.last_error.map(line));
        }
        Ok(columns)
    }
}

/// Probes one index to find whether a key has a head, with any statistics. With `EXISTS` the planner
/// hashes all parked rows for each statement, or scans the table for each key.
static INSERT: SqlText = SqlText::new(|| sql!("park.sql", "insert"));

//! The relay's interface to dispatch state: the reads when a session starts, and the commands while
//! it runs.
//!
//! The service implements it with [`SessionStore`](crate::SessionStore) over the tables, and the
//! simulation with a table in memory. One conformance suite runs the same script on both.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{ClaimAnswer, ClaimKey, Finished, RowToRecord, Topic};
use walrelay_errors::{Code, Coded};

use crate::anchor::AnchorStatus;
use crate::dispatch::{DispatchCounts, Head, ParkedKey, RecordedPage};
use crate::publication_watch::PublicationCheck;
use crate::relay_condition::{Condition, Reason, ReasonKind};
use crate::relay_row::RelayRow;
use crate::store_error::StoreError;
use walrelay_pg_replication::{SlotState, Writer};

/// Why dispatch state could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// The statement was refused or the connection broke, so the caller tries again.
    #[error("dispatch state cannot be reached")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database server is shutting down, and waits until we confirm or disconnect.
    #[error("the database server is shutting down")]
    ShuttingDown,
    /// The session's history has ended. Its state must not be written to the server that the
    /// connection now reaches (I11).
    #[error("{0}; nothing was written")]
    OtherHistory(&'static str),
    /// A replay has no dispatch state, and read a row that it would have to record there.
    #[error("{0}")]
    NotRecorded(String),
    /// A table, or one of its columns, does not exist.
    #[error("a table of the relay is missing or lacks a column")]
    TablesMissing(#[source] StoreError),
}

impl Coded for StoreFailure {
    fn code(&self) -> Code {
        match self {
            Self::Unavailable(cause) => {
                cause.downcast_ref::<StoreError>().map_or(Code::ServerError, StoreError::code)
            }
            Self::ShuttingDown => Code::ServerNotAccepting,
            Self::OtherHistory(_) => Code::ServerError,
            Self::NotRecorded(_) => Code::ReplayRowRefused,
            Self::TablesMissing(_) => Code::TableMissing,
        }
    }
}

/// Prefix of the reason for a failed command to dispatch state.
pub(crate) const TABLE_FAILURE_PREFIX: &str = "a dispatch table cannot be used: ";

impl StoreFailure {
    pub(crate) fn in_short(&self) -> String {
        match self {
            Self::Unavailable(source) => first_lines(&**source),
            Self::ShuttingDown
            | Self::OtherHistory(_)
            | Self::NotRecorded(_)
            | Self::TablesMissing(_) => first_lines(self),
        }
    }
}

/// Returns the first line of an error and of each of its causes.
fn first_lines(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut lines: Vec<String> = Vec::new();
    for cause in causes {
        let text = cause.to_string();
        let line = text.lines().next().unwrap_or_default();
        // Some errors repeat their cause.
        if !lines.last().is_some_and(|last| last.ends_with(line)) {
            lines.push(line.to_owned());
        }
    }
    lines.join(": ")
}

/// Figures for operators.
#[derive(Debug, Clone, Default)]
pub struct SlotFigures {
    pub counts: DispatchCounts,
    /// Whether the count is not complete yet.
    pub is_counting: bool,
    /// The slot. None if it does not exist.
    pub slot: Option<SlotState>,
    /// Age of the confirmed position in seconds. None if the role may not see it.
    pub lag_seconds: Option<f64>,
    /// How long the oldest commit has waited for a synchronous standby, in seconds.
    pub commit_wait_seconds: f64,
    /// The transaction that the slot's oldest WAL waits for.
    pub oldest_writer: Option<Writer>,
    pub relay_row: Option<RelayRow>,
    /// The anchors of the slot, oldest position first.
    pub anchors: Vec<AnchorStatus>,
}

#[derive(Debug, Clone, Default)]
pub struct Due {
    /// The keys, longest due first.
    pub keys: Vec<(Topic, String)>,
    /// Whether another query may find more keys at once.
    pub has_more: bool,
}

/// Maximum keys of one query for due keys. A full result means that there may be more.
pub const DUE_KEYS_MAX: usize = 1_000;

/// Maximum unconfirmed holds per query, as many as the keys of one claim.
pub const HOLDS_MAX: u32 = 256;

/// Maximum heads of one query. A full result means that there may be more.
pub const HEADS_MAX: usize = 1_000;

/// Dispatch state. It takes one command at a time, each all or nothing.
pub trait Store: Send + 'static {
    /// Reads the parked keys, whose later rows must not be published first, once the session owns
    /// the slot. Before that, another relay could record rows that this one would overtake (I4).
    /// `each` receives each key as it arrives, because all keys may not fit into memory. Returns
    /// the number of keys.
    fn parked_keys(
        &mut self,
        each: &mut (dyn FnMut(ParkedKey) + Send),
    ) -> impl Future<Output = Result<usize, StoreFailure>> + Send;

    /// Reads some of the rows recorded at and after a position, about `rows_max` at most.
    fn recorded_from(
        &mut self,
        from: Position,
        rows_max: u32,
    ) -> impl Future<Output = Result<RecordedPage, StoreFailure>> + Send;

    /// Records rows, in this order. They are durable when this returns.
    fn park(
        &mut self,
        rows_to_record: &[RowToRecord],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Writes the outcomes of claimed rows.
    fn finish(
        &mut self,
        finished: &[Finished],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Claims the next rows of each key, at most `bytes_max` bytes of messages but at least one
    /// row. Returns one answer for each key, in the order of the keys.
    ///
    /// These keys have no row in flight, and their rows up to `through` are stored or recorded. A
    /// requested hold is therefore confirmed here. A held key gives no rows, and never counts as
    /// empty.
    fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
        through: Position,
    ) -> impl Future<Output = Result<Vec<ClaimAnswer>, StoreFailure>> + Send;

    /// Returns keys with rows that became due, also through an operator, at most [`DUE_KEYS_MAX`].
    /// Keys of the topics in `except` are left out. The result includes [some](HOLDS_MAX) keys with
    /// unconfirmed holds. The cost does not depend on the number of parked rows.
    fn due_keys(
        &mut self,
        except: &[Topic],
    ) -> impl Future<Output = Result<Due, StoreFailure>> + Send;

    /// Returns whether [spilled rows](crate::DispatchStore::has_spilled_before) committed before
    /// `end` are still to be published, and need nothing else.
    fn has_spilled_before(
        &mut self,
        end: Lsn,
    ) -> impl Future<Output = Result<bool, StoreFailure>> + Send;

    /// Returns the heads of the keys after this one, at most [`HEADS_MAX`], ordered by topic and
    /// key.
    fn heads_after(
        &mut self,
        after: Option<&Head>,
    ) -> impl Future<Output = Result<Vec<Head>, StoreFailure>> + Send;

    /// Waits for a notification that an operator changed something, which
    /// [`due_keys`](Self::due_keys) finds. A change may come without a notification. Dropping the
    /// future loses nothing.
    fn notice(&mut self) -> impl Future<Output = ()> + Send;

    /// Records the settled position, and that so many more rows are published. The slot is never
    /// confirmed beyond that position.
    fn note_settled(
        &mut self,
        settled: Lsn,
        published: u64,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Records the relay's condition for `walrelay status`. Without the relay's own row, as in a
    /// replay, nothing is recorded.
    fn note_condition(
        &mut self,
        _condition: &Condition,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns why a command failed and the fix, for `/readyz` and `walrelay status`. Omits the
    /// server's details, because they may quote rows.
    fn failure_reason(&self, failure: &StoreFailure) -> Reason {
        let text = format!("{TABLE_FAILURE_PREFIX}{}", failure.in_short());
        Reason::new(ReasonKind::DispatchFailure, text).with_code(failure.code().name())
    }

    /// Counts rows, one part of the table at a time, and reads the slot, for operators.
    fn survey(&mut self) -> impl Future<Output = Result<SlotFigures, StoreFailure>> + Send;

    /// Returns whether the publication still publishes the outbox tables.
    fn watch(&mut self) -> impl Future<Output = Result<PublicationCheck, StoreFailure>> + Send;

    /// Deletes some of the rows whose retention is over, and returns their number. 0 means that
    /// none are left.
    fn prune(
        &mut self,
        retention: Duration,
    ) -> impl Future<Output = Result<u64, StoreFailure>> + Send;
}

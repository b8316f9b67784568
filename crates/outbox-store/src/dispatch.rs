//! Dispatch state: the rows that were not published at the first attempt, in `app_outbox_dispatch`.
//!
//! Owns every statement on that table. A row that [`DispatchStore::park`] has recorded is settled
//! (I2): the row survives the loss of the relay and of the slot. Only [`DispatchStore::prune`]
//! deletes rows on its own, and only rows that were finished long ago.
//!
//! ```text
//!  park ──▶ retrying ── claim ──▶ retrying, leased ── finish ──▶ published
//!              ▲  ▲                                  ├─ Again ───▶ retrying
//!              │  └────────── lease ends ────────────┤
//!  park ──▶ dead ── retry, edit ──▶ retrying         └─ Dead ────▶ dead
//!              └─── discard ──▶ discarded
//! ```
//!
//! The statements keep five rules:
//!
//! - Rows of one ordering key leave in position order (I4). [`DispatchStore::claim`] starts at the
//!   first row of a key and stops at the first row that is locked, leased, or not yet due.
//! - A claim is a lease with a fence. Each claim, and each operator's change of the message, moves
//!   `updated_at`. [`DispatchStore::finish`] counts only while `updated_at` is unchanged, so the
//!   outcome of the old message never overwrites an edit.
//! - A spilled row is read without a lease. It is deleted once it is stored and the slot has passed
//!   it ([`DispatchStore::read_spilled`]).
//! - `next_attempt_at` is null for rows that are queued behind the head of their key. The index
//!   that is queried every second therefore contains heads only.
//! - No row of a key is claimed while the key is paused, because an in-place replay adds
//!   its history there.
//!
//! Every method fails with [`StoreError`].

mod claim;
mod counting;
mod due;
mod heads;
mod key_pause;
mod keys;
mod operator_commands;
mod operator_pages;
mod outcomes;
mod park;
mod recorded;
mod spilled;
mod stored_text;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use walrelay_pg_client::SqlError;

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::Row;
use tokio_postgres::types::PgLsn;
use walrelay_core::{ClaimKey, OnDead};

use crate::store_error::StoreError;

pub use claim::{ClaimLimits, ClaimedRow};
pub use counting::{DispatchCounts, IncrementalCount, OperatorFailure, RetryingReasons};
pub use due::DueKeys;
pub use heads::Head;
pub use key_pause::{HeldKey, History, HistoryRow, HistorySource, KeyPauseCounts, ReplayedRows};
pub use keys::ParkedKey;
pub use operator_commands::{DispatchDetail, DispatchFilter, DispatchRow, RetrySelection};
pub use operator_pages::{DispatchQuery, NewDestination, PageStart, StateFilter};
pub use park::{ParkRow, ParkStatus};
pub use recorded::{RecordedPage, RecordedRow};

/// The `NOTIFY` channel that reports an operator's change to the relay. The payload is the slot.
pub const DISPATCH_CHANNEL: &str = "walrelay_dispatch";

/// The `error_code` of spilled rows. Changing such a row clears the code, and the row is then not
/// deleted.
const SPILLED: &str = "SPILLED";

/// Dispatch state of one slot. It holds no connection. Each method receives one.
#[derive(Debug, Clone)]
pub struct DispatchStore {
    slot: String,
    on_dead: OnDead,
    /// Rows at this position and later wait until a recovery is finished.
    before: PgLsn,
}

impl DispatchStore {
    /// Creates the dispatch state of this slot. A dead row does not stop its key.
    #[must_use]
    pub fn new(slot: String) -> Self {
        Self { slot, on_dead: OnDead::Continue, before: PgLsn::from(u64::MAX) }
    }

    /// Returns the same rows with another rule for keys that have a dead row.
    #[must_use]
    pub fn with_on_dead(self, on_dead: OnDead) -> Self {
        Self { on_dead, ..self }
    }

    /// Returns the same rows for a recovery that publishes earlier rows than the new slot, which
    /// begins at `point`. Rows of that slot are recorded without a due time, and no key is parked by
    /// them or gives them out.
    #[must_use]
    pub fn before(self, point: Lsn) -> Self {
        Self { before: PgLsn::from(point.as_u64()), ..self }
    }

    /// Returns whether later rows wait for a recovery. Its rows may be read again from the table,
    /// so stored rows are kept.
    pub(crate) fn is_during_recovery(&self) -> bool {
        self.before < PgLsn::from(u64::MAX)
    }

    #[must_use]
    pub fn slot(&self) -> &str {
        &self.slot
    }

    fn holds_on_dead(&self) -> bool {
        self.on_dead == OnDead::Hold
    }
}

/// A topic and an ordering key, as dispatch state stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Full name of the topic.
    pub topic: &'a str,
    /// The ordering key. Empty means that the rows are independent of each other.
    pub ordering_key: &'a str,
}

impl<'a> From<&'a ClaimKey> for Key<'a> {
    fn from(key: &'a ClaimKey) -> Self {
        Self { topic: &key.topic, ordering_key: &key.ordering_key }
    }
}

/// The `status` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DispatchStatus {
    /// Will be published again.
    Retrying,
    /// Will not be published unless an operator retries or edits it.
    Dead,
    Published,
    Discarded,
}

impl DispatchStatus {
    /// Returns the text in the column.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Dead => "dead",
            Self::Published => "published",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for DispatchStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DispatchStatus {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "retrying" => Ok(Self::Retrying),
            "dead" => Ok(Self::Dead),
            "published" => Ok(Self::Published),
            "discarded" => Ok(Self::Discarded),
            _ => Err(StoreError::Sql(SqlError::UnexpectedValue {
                column: "app_outbox_dispatch.status",
                value: text.to_owned(),
                expected: "a status this version knows",
            })),
        }
    }
}

/// Proof of a claim. [`DispatchStore::finish`] counts only while the claim is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    event_id: String,
    /// The row's `updated_at` after the claim.
    version: SystemTime,
    hold: Hold,
}

/// How a claimed row is protected from a second claim, and whether it is deleted once stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hold {
    /// A lease. The stored row is kept as published.
    Leased,
    /// A lease on a spilled row. The stored row is deleted.
    LeasedSpilled(Place),
    /// No lease, because the caller does not ask for the key again before the outcome. The row was
    /// spilled. Once stored, it is deleted.
    Read(Place),
}

/// The location of a spilled row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Position in the WAL.
    position: Position,
    /// Position in the table when the row was read, as the server writes a `ctid`. An update of the
    /// row or a rewrite of the table moves it.
    ctid: String,
}

impl Claim {
    /// Returns the row's id in dispatch state. It is the outbox id, with a suffix if two rows share
    /// one id. A replayed row's id ends with the id of its replay.
    #[must_use]
    pub fn event_id(&self) -> &str {
        &self.event_id
    }
}

/// Reads the `commit_lsn` and `tx_index` columns of a row as a position.
fn position_of(row: &Row) -> Result<Position, StoreError> {
    let lsn: PgLsn = row.get("commit_lsn");
    let tx_index = unsigned(row.get("tx_index"), "app_outbox_dispatch.tx_index")?;
    Ok(Position { commit_lsn: Lsn::new(lsn.into()), tx_index })
}

/// Converts a counter column, which plain SQL could have made negative.
fn unsigned(value: i32, column: &'static str) -> Result<u32, StoreError> {
    u32::try_from(value).map_err(|_| {
        StoreError::Sql(SqlError::UnexpectedValue {
            column,
            value: value.to_string(),
            expected: "zero or more",
        })
    })
}

/// Converts a number for a column of type `int`.
fn signed(value: u32, what: &'static str) -> Result<i32, StoreError> {
    i32::try_from(value)
        .map_err(|_| StoreError::Sql(SqlError::OutOfRange { what, value: value.into() }))
}

/// Returns seconds for `make_interval`, at most a century. `make_interval` cannot add more.
fn seconds(duration: Duration) -> f64 {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    duration.min(CENTURY).as_secs_f64()
}

/// Converts seconds to a duration. Seconds in the past are zero.
fn until(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

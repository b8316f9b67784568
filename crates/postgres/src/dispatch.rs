//! Dispatch state: the rows that did not go out at the first try, in `app_outbox_dispatch`.
//!
//! Owns every statement on that table. A row that [`DispatchStore::park`] has recorded is settled
//! (I2): it survives us, whatever happens to the slot. Nothing here deletes or finishes a row by
//! itself, except [`DispatchStore::prune`], which removes what has been finished for long.
//!
//! ```text
//!  park ──▶ retrying ── claim ──▶ retrying, leased ── finish ──▶ published
//!              ▲  ▲                                  ├─ Again ───▶ retrying
//!              │  └────────── lease over ────────────┤
//!  park ──▶ dead ── retry, edit ──▶ retrying         └─ Dead ────▶ dead
//!              └─── discard ──▶ discarded
//! ```
//!
//! Five rules that the statements keep:
//!
//! - Rows of one ordering key leave in position order (I4). [`DispatchStore::claim`] takes a key from
//!   its first row on and stops where a row cannot be had: locked, leased, or not yet due.
//! - A claim is a lease with a fence. `updated_at` moves with each claim and with each change an
//!   operator makes to the message; [`DispatchStore::finish`] counts only while it still stands. An
//!   edit made while the old message is on its way is therefore never overwritten by its outcome.
//! - A row that was spilled is read without a lease, and deleted once it is stored and the slot is past
//!   it ([`DispatchStore::read_spilled`]).
//! - `next_attempt_at` is null for rows that wait behind the head of their key, so that the index
//!   asked every second holds heads only.
//! - Nothing of a key is claimed while a [hold](hold) is on it: a replay in place puts its history there.
//!
//! Fails with [`StoreError`]; a failed method has changed nothing.

mod browse;
mod claim;
mod counting;
mod due;
mod edited;
mod finish;
mod heads;
mod history;
mod hold;
mod keys;
mod operate;
mod park;
mod recorded;
mod spilled;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::Row;
use tokio_postgres::types::PgLsn;
use walrelay_core::{ClaimKey, OnDead};

use crate::store_error::StoreError;

pub use browse::{DispatchPlace, DispatchQuery, DispatchRoute, DispatchState};
pub use claim::{ClaimLimits, ClaimedRow};
pub use counting::{Counting, DispatchCounts, DispatchWaiting, Refused};
pub use due::DueKeys;
pub use edited::OutboxSlots;
pub use heads::Head;
pub use hold::{HeldKey, History, HistorySource, ReplayHolds, ReplayedRows};
pub use keys::ParkedKey;
pub use operate::{DispatchDetail, DispatchFilter, DispatchRow, RetrySelection};
pub use park::{ParkRow, ParkStatus};
pub use recorded::{RecordedPage, RecordedRow};

/// The channel of `NOTIFY` that tells a relay that an operator changed something; the payload is
/// the slot.
pub const DISPATCH_CHANNEL: &str = "walrelay_dispatch";

/// The `error_code` of rows that were spilled. Whoever changes such a row takes it away, and with it the
/// right to delete it.
const SPILLED: &str = "SPILLED";

/// Dispatch state of one slot. Holds no connection: each method is given one.
#[derive(Debug, Clone)]
pub struct DispatchStore {
    slot: String,
    on_dead: OnDead,
}

impl DispatchStore {
    /// The rows of this slot; dead rows leave their key flowing.
    #[must_use]
    pub fn new(slot: String) -> Self {
        Self { slot, on_dead: OnDead::Continue }
    }

    /// The same rows, with another rule for keys that have a dead row.
    #[must_use]
    pub fn with_on_dead(self, on_dead: OnDead) -> Self {
        Self { on_dead, ..self }
    }

    /// The slot whose rows these are.
    #[must_use]
    pub fn slot(&self) -> &str {
        &self.slot
    }

    fn holds_on_dead(&self) -> bool {
        self.on_dead == OnDead::Hold
    }
}

/// One topic and ordering key, as dispatch state names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Full name of the topic.
    pub topic: &'a str,
    /// The ordering key; empty means that its rows are independent of each other.
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
    /// Will not, unless an operator says so.
    Dead,
    /// Stored by Pub/Sub.
    Published,
    /// An operator gave it up.
    Discarded,
}

impl DispatchStatus {
    /// The column's text.
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
            _ => Err(StoreError::UnexpectedValue {
                column: "app_outbox_dispatch.status",
                value: text.to_owned(),
                expected: "a status this version knows",
            }),
        }
    }
}

/// Proof that a row was claimed, and when; [`DispatchStore::finish`] counts only while it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    event_id: String,
    /// The row's `updated_at` as the claim left it.
    version: SystemTime,
    hold: Hold,
}

/// What keeps a claimed row from being claimed again, and what becomes of it once it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hold {
    /// Its lease. It is kept as published.
    Leased,
    /// The same of one that was spilled: it is deleted.
    LeasedSpilled(Place),
    /// Only that its key is not asked for again. It was spilled, and is deleted.
    Read(Place),
}

/// Where a spilled row is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// In the log.
    position: Position,
    /// In the table, as the server writes a `ctid`, when it was read. Changing the row moves it, and
    /// so does rewriting the table.
    ctid: String,
}

impl Claim {
    /// The row's id in dispatch state. It is the outbox id, unless two rows share one; behind that of a
    /// replayed row stands which replay it is of.
    #[must_use]
    pub fn event_id(&self) -> &str {
        &self.event_id
    }
}

/// The `commit_lsn` and `tx_index` columns of a row, as a position.
fn position_of(row: &Row) -> Result<Position, StoreError> {
    let lsn: PgLsn = row.get("commit_lsn");
    let tx_index = unsigned(row.get("tx_index"), "app_outbox_dispatch.tx_index")?;
    Ok(Position { commit_lsn: Lsn::new(lsn.into()), tx_index })
}

/// A counter column that plain SQL could have made negative.
fn unsigned(value: i32, column: &'static str) -> Result<u32, StoreError> {
    u32::try_from(value).map_err(|_| StoreError::UnexpectedValue {
        column,
        value: value.to_string(),
        expected: "zero or more",
    })
}

/// A number for a column of type `int`.
fn signed(value: u32, what: &'static str) -> Result<i32, StoreError> {
    i32::try_from(value).map_err(|_| StoreError::OutOfRange { what, value: value.into() })
}

/// Seconds for `make_interval`; a century stands for anything longer, which it could not add.
fn seconds(duration: Duration) -> f64 {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    duration.min(CENTURY).as_secs_f64()
}

/// A duration from seconds that may lie in the past.
fn until(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

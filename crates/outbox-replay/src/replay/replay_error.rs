//! Why a replay cannot start, or did not reach its end.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_core::TemplateError;
use walrelay_errors::{BoxedError, Code, Coded};
use walrelay_outbox_store::StoreError;
use walrelay_pg_client::{PgError, QualifiedName, SqlError};
use walrelay_pg_replication::SlotError;
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;

use super::in_place::HELD_KEYS_MAX;
use super::record::ReplayEnd;
use crate::admin_error::AdminError;

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Admin(#[from] AdminError),

    #[error(transparent)]
    Postgres(#[from] PgError),

    #[error(transparent)]
    PubSub(#[from] PubsubError),

    /// The rows cannot be read or published.
    #[error(transparent)]
    Relay(#[from] RelayError),

    /// A step cannot be reported.
    #[error(transparent)]
    Operator(BoxedError),

    #[error("topic template {template:?} is invalid: {source}")]
    TopicInvalid {
        template: String,
        #[source]
        source: TemplateError,
    },

    #[error("no anchor reaches back to {from}")]
    NoAnchor { from: Lsn },

    #[error("anchor {anchor:?} reaches back to {reaches}, and {from} is before it")]
    AnchorTooLate {
        anchor: String,
        reaches: Lsn,
        /// The time of its position.
        since: Option<SystemTime>,
        from: Lsn,
    },

    #[error("{to} is not between {from}, where the replay begins, and {end}, where the WAL ends")]
    EndOutside { to: Lsn, from: Lsn, end: Lsn },

    #[error("{table} has no column {column:?} to order by")]
    OrderColumnMissing { table: QualifiedName, column: String },

    #[error("more than {HELD_KEYS_MAX} keys would be paused at once")]
    TooManyKeys,

    #[error("replay {other} of one of these keys is unfinished; nothing was started")]
    KeyIsPaused { other: String },

    #[error("slot {slot:?} has no replay {id:?}")]
    Missing { id: String, slot: String },

    #[error(
        "replay {id} {}: {rows} row(s) were published",
        match end { ReplayEnd::Done => "is done", ReplayEnd::Cancelled => "was cancelled" }
    )]
    Ended { id: String, end: ReplayEnd, rows: RowCount },

    #[error("replay {id} was started on another server, whose positions mean nothing here")]
    OtherServer { id: String },

    #[error("another process runs replay {id}")]
    Running { id: String },

    /// The anchor of the replay is gone, or no longer old enough.
    #[error("replay {id} cannot continue")]
    AnchorGone {
        id: String,
        #[source]
        source: Box<ReplayError>,
    },

    #[error("replay {id}: {rows} row(s) of its keys are queued behind a dead row")]
    BehindDeadRow {
        id: String,
        /// Number of waiting rows, replayed or live.
        rows: u64,
    },

    /// The replay was stopped, and can be resumed.
    #[error("replay {id} was stopped after {published} row(s)")]
    Stopped { id: String, published: u64 },

    /// The replay was stopped before it was on record.
    #[error("stopped by a signal before anything was published")]
    Interrupted,
}

/// A number of published rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    Exactly(u64),
    /// This many are on record. After a crash there may be more.
    AtLeast(u64),
}

impl RowCount {
    /// Returns the number that is known.
    #[must_use]
    pub const fn known(self) -> u64 {
        match self {
            Self::Exactly(rows) | Self::AtLeast(rows) => rows,
        }
    }
}

impl std::fmt::Display for RowCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(rows) => write!(f, "{rows}"),
            Self::AtLeast(rows) => write!(f, "at least {rows}"),
        }
    }
}

impl ReplayError {
    pub(super) fn sql(action: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let failed = AdminError::sql(action);
        |source| Self::Admin(failed(source))
    }
}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Admin(error.into())
    }
}

impl From<SlotError> for ReplayError {
    fn from(error: SlotError) -> Self {
        Self::Admin(error.into())
    }
}

impl From<SqlError> for ReplayError {
    fn from(error: SqlError) -> Self {
        Self::Admin(error.into())
    }
}

impl Coded for ReplayError {
    fn code(&self) -> Code {
        match self {
            Self::Admin(error) => error.code(),
            Self::Postgres(error) => error.code(),
            Self::PubSub(error) => error.code(),
            Self::Relay(error) => error.code(),
            Self::Operator(error) => error.code(),
            Self::TopicInvalid { .. } => Code::TopicTemplateInvalid,
            Self::OrderColumnMissing { .. } => Code::OrderColumnMissing,
            Self::NoAnchor { .. } | Self::AnchorTooLate { .. } | Self::EndOutside { .. } => {
                Code::ReplayRangeInvalid
            }
            Self::TooManyKeys => Code::ReplayTooManyKeys,
            Self::KeyIsPaused { .. } => Code::ReplayUnfinished,
            Self::Missing { .. } | Self::Ended { .. } => Code::ReplayNotOpen,
            Self::OtherServer { .. } | Self::AnchorGone { .. } => Code::ReplayCannotResume,
            Self::Running { .. } => Code::ReplayRunning,
            Self::BehindDeadRow { .. } => Code::ReplayBlocked,
            Self::Stopped { .. } | Self::Interrupted => Code::Interrupted,
        }
    }
}

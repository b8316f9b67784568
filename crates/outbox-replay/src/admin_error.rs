//! A refusal or a failure of a command that an operator starts.

use walrelay_errors::{Code, Coded};
use walrelay_outbox_store::{Shard, StoreError};
use walrelay_pg_client::{ServerErrorKind, SqlError, schema};
use walrelay_pg_replication::SlotError;
use walrelay_relay::error::RelayError;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Sql(#[from] SqlError),

    #[error(transparent)]
    Slot(#[from] SlotError),

    #[error(transparent)]
    Store(#[from] StoreError),

    /// The slot is on record in `app_outbox_relay`, and is missing or invalidated.
    #[error("slot {slot:?} {problem}")]
    SlotLost { slot: String, problem: String },

    #[error("slot {slot:?} exists but {problem}")]
    SlotUnusable { slot: String, problem: String },

    #[error(
        "slot {slot:?} is older than publication {publication:?}, which does not exist: it would fail on every \
         change in between"
    )]
    SlotBeforePublication { slot: String, publication: String },

    #[error(
        "slot {slot:?} is not lost, or nothing is on record about it: there is nothing to recover"
    )]
    NotLost { slot: String },

    #[error(
        "{table} has no column of the event's time, or the column is not a timestamp, so no time can select its rows"
    )]
    NoTimeColumn { table: String },

    #[error(
        "slot {slot:?} is on record as one of another database: neither its positions nor its transaction ids \
         mean anything here, so nobody knows which rows were published"
    )]
    OtherDatabase { slot: String },

    /// The horizon on record is too old for ids of 32 bits.
    #[error(
        "the last settled transaction of slot {slot:?} on record is {age} transactions old: nobody knows which rows \
         were published"
    )]
    HorizonTooOld {
        slot: String,
        /// The number of transactions since.
        age: u64,
    },

    #[error(
        "no outbox is on record for slot {slot:?} in schema {}{}",
        schema(),
        if others.is_empty() { String::new() } else { format!("; there are {}", others.join(", ")) }
    )]
    OutboxUndefined {
        /// The slot, without the number of a shard.
        slot: String,
        others: Vec<String>,
    },

    #[error("schema {} has several outboxes; name one by its slot: {}", schema(), slots.join(", "))]
    OutboxUnnamed { slots: Vec<String> },

    #[error("the outbox of slot {slot:?} differs from its record: {what}")]
    OutboxDiffers {
        /// The slot, without the number of a shard.
        slot: String,
        what: String,
    },

    #[error(
        "publication {publication:?} already publishes {table}, a table of another outbox: name another publication"
    )]
    PublicationTaken { publication: String, table: String },

    #[error(
        "the record of slot {slot:?} is valid in this database: a recovery without a time publishes all rows that are not \
         settled, and one by time may leave some out"
    )]
    TimeNeedless { slot: String },

    #[error("slot {slot:?} has an unfinished operation: {what}")]
    OperationUnfinished { slot: String, what: String },

    /// The slot is being released, and still exists.
    #[error("slot {slot:?} has an unfinished operation: {what}")]
    ReleaseBegun {
        slot: String,
        /// The unfinished operation, and whether a process works on it.
        what: String,
    },

    /// The slot was released: a recovery creates it again.
    #[error("slot {slot:?} was released: it is dropped, and everything before is published")]
    SlotReleased { slot: String },

    /// Somebody holds the slot, and who that is was found out.
    #[error("slot {slot:?} is held by {holder}")]
    SlotHeld { slot: String, holder: String },

    /// A process that is gone began a new slot, and the server does not let this role end its session.
    #[error(
        "slot {slot:?} is still being made by server process {pid}, whose client is gone; end it as a superuser \
         or as its role: SELECT pg_terminate_backend({pid})"
    )]
    Abandoned { slot: String, pid: i32 },

    #[error(
        "the outbox has {} on this server, and {} asked for",
        describe_shards(*count),
        if *wanted == 1 { "one for all rows is".to_owned() } else { format!("{wanted} are") }
    )]
    OtherNumber { count: u32, wanted: u32 },

    /// A shard was named of another number of shards than there are, or none was and there are some.
    #[error(
        "the outbox has {} on this server, and {}",
        describe_shards(*count),
        if wanted.is_whole() { "none of them is named".to_owned() } else { format!("{wanted} is none of them") }
    )]
    OtherShard { count: u32, wanted: Shard },

    /// The server is a standby.
    #[error("the server is in recovery")]
    InRecovery,

    /// The server has no capacity for another slot.
    #[error("{0}")]
    NoRoom(String),
}

#[must_use]
pub fn describe_shards(count: u32) -> String {
    match count {
        1 => "one slot for all rows".to_owned(),
        _ => format!("{count} shards"),
    }
}

impl AdminError {
    /// For `map_err`: names the action that failed.
    pub fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql(SqlError::Sql { action, source })
    }

    /// The failed statement, if this is one.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other variant is a refusal of ours")]
    pub fn as_sql(&self) -> Option<&SqlError> {
        match self {
            Self::Sql(error) | Self::Slot(SlotError::Sql(error)) => Some(error),
            Self::Store(error) => error.as_sql(),
            _ => None,
        }
    }

    /// The meaning of the server's refusal.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        self.as_sql().and_then(SqlError::server_kind)
    }

    /// Whether the connection is gone, so that only a new one helps.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.as_sql().is_some_and(SqlError::is_disconnected)
    }
}

impl From<AdminError> for RelayError {
    fn from(error: AdminError) -> Self {
        Self::survey(error)
    }
}

impl Coded for AdminError {
    fn code(&self) -> Code {
        match self {
            Self::Sql(error) => error.code(),
            Self::Slot(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::SlotLost { .. } => Code::SlotLost,
            Self::SlotUnusable { .. } | Self::SlotBeforePublication { .. } => Code::SlotUnsuitable,
            Self::OtherNumber { .. } | Self::OtherShard { .. } => Code::ShardsDiffer,
            Self::NoTimeColumn { .. } => Code::TimeColumnMissing,
            Self::NotLost { .. } => Code::SlotNotLost,
            Self::ReleaseBegun { .. } => Code::ReleaseInProgress,
            Self::SlotReleased { .. } => Code::SlotReleased,
            Self::OtherDatabase { .. } | Self::HorizonTooOld { .. } => {
                Code::PositionsOfAnotherDatabase
            }
            Self::TimeNeedless { .. } => Code::RecoveryTimeNeedless,
            Self::OutboxUndefined { .. } | Self::OutboxUnnamed { .. } => Code::OutboxUndefined,
            Self::OutboxDiffers { .. } => Code::OutboxDiffers,
            Self::PublicationTaken { .. } => Code::PublicationUnsuitable,
            Self::OperationUnfinished { .. } | Self::Abandoned { .. } => Code::OperationUnfinished,
            Self::SlotHeld { .. } => Code::SlotHeld,
            Self::InRecovery => Code::ServerIsStandby,
            Self::NoRoom(_) => Code::NoCapacity,
        }
    }
}

//! Failures of tables, slots and publications, grouped by who has to act.

use tokio_postgres::error::SqlState;

use crate::error::{ServerError, ServerErrorKind};
use crate::names::quote_identifier;
use crate::shard::Shard;

/// The fix for a lost slot, for every message that reports one.
pub const LOST_SLOT_FIX: &str = "walrelay slot recover, which has what may be missing published from the table: \
     docs/operations.md, Lost slot; or give that up and start anew: walrelay init --accept-loss";

/// The fix for a slot that was dropped for an upgrade, before the upgrade, after it and without it.
pub const UPGRADE_FIX: &str = "upgrade the server, then walrelay slot recover, which has what was written meanwhile \
     published from the table, or walrelay run --on-slot-lost recover; without an upgrade slot recover goes on here";

/// The tables that a session writes. A name that begins with another name comes before it.
const RELAY_TABLES: [&str; 4] =
    ["app_outbox_dispatch", "app_outbox_relay_time", "app_outbox_relay", "app_outbox_hold"];

/// Returns the statements that give this role access to one of the relay's tables.
#[must_use]
pub fn grant_on(table: &str, role: &str) -> String {
    let role = quote_identifier(role);
    format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}, and where a policy is missing CREATE POLICY \
         walrelay ON {table} TO {role} USING (true) WITH CHECK (true)"
    )
}

/// A failure of a statement, or a refusal to run one.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The server refused a statement, or the connection ended.
    #[error("{action}")]
    Sql {
        /// The action and its object.
        action: String,
        /// The server's error.
        #[source]
        source: tokio_postgres::Error,
    },

    /// A column has a value that this version does not understand.
    #[error("{column} holds {value:?}, which is not {expected}")]
    UnexpectedValue {
        /// The column, with its table.
        column: &'static str,
        /// The value.
        value: String,
        /// The expected kind of value.
        expected: &'static str,
    },

    /// A number that does not fit into the table.
    #[error("{what} {value} is more than the table can hold")]
    OutOfRange {
        /// Meaning of the number.
        what: &'static str,
        /// The number.
        value: u64,
    },

    /// No free event id was found for a row. Only rows that were made to provoke this get here.
    #[error("no free id for event {event_id:?} in dispatch state after {tries} tries")]
    NoFreeEventId {
        /// The last id that was tried.
        event_id: String,
        /// Number of ids that were tried.
        tries: u32,
    },

    /// Dispatch state of this slot does not contain the event.
    #[error(
        "slot {slot:?} holds no event {event_id:?} in dispatch state; \"walrelay dispatch list\" shows what it holds"
    )]
    UnknownEvent {
        /// The relay's slot.
        slot: String,
        /// The requested id.
        event_id: String,
    },

    /// The event is finished, so it cannot be retried, edited or discarded.
    #[error("event {event_id:?} is already {status}; it can no longer be {action}")]
    AlreadyFinished {
        /// The requested id.
        event_id: String,
        /// `published` or `discarded`.
        status: String,
        /// The requested action, as a participle.
        action: &'static str,
    },

    /// The message of a row lacks its headers, so it can only be edited.
    #[error(
        "event {event_id:?} was recorded without its headers, which could not be read, and would be published without \
         them; \"walrelay dispatch edit ID --attributes-file FILE\" gives it the headers of a file, or none where the \
         file says {{}}"
    )]
    WithoutHeaders {
        /// The row's id.
        event_id: String,
    },

    /// The message of a row lacks a value that is too large, so it can only be edited.
    #[error(
        "event {event_id:?} was recorded without a value that is too large for Pub/Sub, and cannot be published \
         without it; \"walrelay dispatch show ID\" names the column, and \"walrelay dispatch edit ID --payload-file \
         FILE\" gives it a payload that fits"
    )]
    WithoutValue {
        /// The row's id.
        event_id: String,
    },

    /// Row level security hides rows, so a query would give a wrong result.
    #[error(
        "row level security hides the rows of {tables} from role {role}: nothing can be said of them; as their \
         owner: {policies}"
    )]
    RowsHidden {
        /// The tables.
        tables: String,
        /// The current role.
        role: String,
        /// The statements that make the rows visible.
        policies: String,
    },

    /// There is no such slot.
    #[error("slot {slot:?} does not exist")]
    SlotMissing {
        /// Name of the slot.
        slot: String,
    },

    /// The slot is recorded in `app_outbox_relay`, and is missing or invalidated.
    #[error("slot {slot:?} {problem}; {LOST_SLOT_FIX}")]
    SlotLost {
        /// Name of the slot.
        slot: String,
        /// The reason for the loss.
        problem: String,
    },

    /// A slot of this name exists and cannot be used.
    #[error("slot {slot:?} exists but {problem}; choose another name with --slot")]
    SlotUnusable {
        /// Name of the slot.
        slot: String,
        /// Why the slot cannot be used.
        problem: String,
    },

    /// Creating the publication now would break the slot for ever.
    #[error(
        "slot {slot:?} is older than publication {publication:?}, which does not exist: it would fail on every \
         change in between; correct --publication, or choose a new slot with --slot"
    )]
    SlotBeforePublication {
        /// The existing slot.
        slot: String,
        /// The missing publication.
        publication: String,
    },

    /// There is no anchor of this name.
    #[error("there is no anchor {anchor:?}; there are: {}", if others.is_empty() { "none" } else { others })]
    AnchorMissing {
        /// The requested name.
        anchor: String,
        /// The anchors that exist.
        others: String,
    },

    /// The server removed WAL that the anchor needed.
    #[error(
        "anchor {anchor:?} is invalidated: the log it kept was removed; drop it and create another"
    )]
    AnchorLost {
        /// Name of the anchor.
        anchor: String,
    },

    /// There is nothing to recover.
    #[error(
        "slot {slot:?} is not lost, or nothing is on record about it: there is nothing to recover"
    )]
    NotLost {
        /// The slot.
        slot: String,
    },

    /// A time was given, but the table has no column with the events' time.
    #[error(
        "{table} has no column of the event's time, so --since cannot select its rows: --column-occurred-at"
    )]
    NoTimeColumn {
        /// The table.
        table: String,
    },

    /// The record is not valid in this database.
    #[error(
        "slot {slot:?} is on record as one of another database: neither its positions nor its transaction ids \
         mean anything here, so nobody knows which rows were published"
    )]
    OtherDatabase {
        /// The slot.
        slot: String,
    },

    /// An operation on the slot is unfinished, and has to be finished first.
    #[error("{what} was begun with slot {slot:?} and is not finished")]
    OperationUnfinished {
        /// The slot.
        slot: String,
        /// Description of the operation.
        what: String,
    },

    /// An upgrade of the server is being prepared, and the slot still exists.
    #[error("{what} was begun with slot {slot:?}")]
    UpgradeBegun {
        /// The slot.
        slot: String,
        /// Description of the upgrade, and whether somebody is working on it.
        what: String,
    },

    /// The slot was dropped for an upgrade of the server, and must be recovered.
    #[error("slot {slot:?} was dropped for an upgrade of the server")]
    UpgradePrepared {
        /// The slot.
        slot: String,
    },

    /// Another session holds the slot, and is known.
    #[error("slot {slot:?} is held by {holder}")]
    SlotHeld {
        /// The slot.
        slot: String,
        /// Description of the holder.
        holder: String,
    },

    /// A process began a new slot and ended, and the server does not let us end the remaining
    /// session.
    #[error(
        "slot {slot:?} is still being made by server process {pid}, whose client is gone; end it as a superuser \
         or as its role: SELECT pg_terminate_backend({pid})"
    )]
    Abandoned {
        /// The slot.
        slot: String,
        /// Process id of the session.
        pid: i32,
    },

    /// The outbox is divided into another number of shards.
    #[error(
        "the outbox has {} on this server, and {} asked for; `walrelay reshard` changes the number",
        shards(*count),
        if *wanted == 1 { "one for all rows is".to_owned() } else { format!("{wanted} are") }
    )]
    OtherNumber {
        /// The existing number of shards.
        count: u32,
        /// The requested number of shards.
        wanted: u32,
    },

    /// The requested shard does not fit the existing number of shards, or no shard was named.
    #[error(
        "the outbox has {} on this server, and {}",
        shards(*count),
        if wanted.is_whole() { "--shard says which".to_owned() } else { format!("{wanted} is none of them") }
    )]
    OtherShard {
        /// The existing number of shards.
        count: u32,
        /// The requested shard.
        wanted: Shard,
    },

    /// The server is a standby.
    #[error("the server is in recovery")]
    InRecovery,

    /// The server has no capacity for the request.
    #[error("{0}")]
    NoRoom(String),

    /// The name is not a valid slot name.
    #[error("{name:?} cannot name a slot: lower-case letters, digits and underscores, at most 63")]
    SlotName {
        /// The name.
        name: String,
    },

    /// The server is too old for a feature.
    #[error("{feature} needs Postgres {needs}; this server is {has}")]
    ServerTooOld {
        /// Name of the feature.
        feature: &'static str,
        /// The first version with the feature.
        needs: u32,
        /// The server's version.
        has: u32,
    },
}

/// Describes a number of shards.
pub(crate) fn shards(count: u32) -> String {
    match count {
        1 => "one slot for all rows".to_owned(),
        _ => format!("{count} shards"),
    }
}

impl StoreError {
    /// Returns a function for `map_err` that adds the action.
    pub(crate) fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql { action, source }
    }

    /// Returns the server's code if the server refused a statement.
    #[must_use]
    pub fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Sql { source, .. } => source.code(),
            Self::UnexpectedValue { .. }
            | Self::OutOfRange { .. }
            | Self::NoFreeEventId { .. }
            | Self::UnknownEvent { .. }
            | Self::AlreadyFinished { .. }
            | Self::WithoutHeaders { .. }
            | Self::WithoutValue { .. }
            | Self::RowsHidden { .. }
            | Self::SlotMissing { .. }
            | Self::SlotLost { .. }
            | Self::SlotUnusable { .. }
            | Self::SlotBeforePublication { .. }
            | Self::SlotName { .. }
            | Self::AnchorMissing { .. }
            | Self::AnchorLost { .. }
            | Self::NotLost { .. }
            | Self::OperationUnfinished { .. }
            | Self::UpgradeBegun { .. }
            | Self::UpgradePrepared { .. }
            | Self::SlotHeld { .. }
            | Self::NoTimeColumn { .. }
            | Self::OtherDatabase { .. }
            | Self::Abandoned { .. }
            | Self::OtherNumber { .. }
            | Self::OtherShard { .. }
            | Self::InRecovery
            | Self::NoRoom(_)
            | Self::ServerTooOld { .. } => None,
        }
    }

    /// Returns the relay's table that the role lacks a privilege on, if that is why the server
    /// refused.
    #[must_use]
    pub fn closed_table(&self) -> Option<&'static str> {
        let Self::Sql { source, .. } = self else { return None };
        let refusal = source.as_db_error()?;
        // The server names the table only in its message, but in every language.
        let is_named = |table: &&&str| refusal.message().contains(**table);
        let closed = *refusal.code() == SqlState::INSUFFICIENT_PRIVILEGE;
        RELAY_TABLES.iter().find(is_named).filter(|_| closed).copied()
    }

    /// Returns the meaning of the server's refusal.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        let Self::Sql { source, .. } = self else { return None };
        source.as_db_error().map(|answer| ServerError::from(answer).kind())
    }

    /// Returns whether the same statement can be run again. The server chose it as the victim of a
    /// deadlock or of a conflict between transactions.
    #[must_use]
    pub fn is_transient_conflict(&self) -> bool {
        matches!(
            self.sql_state(),
            Some(
                &SqlState::T_R_DEADLOCK_DETECTED
                    | &SqlState::T_R_SERIALIZATION_FAILURE
                    | &SqlState::LOCK_NOT_AVAILABLE
            )
        )
    }

    /// Returns whether the connection is lost, so that only a new connection works.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_closed() || source.code().is_none())
    }
}

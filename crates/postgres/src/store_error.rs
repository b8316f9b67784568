//! What can go wrong with tables, slots and publications, split by who has to act.

use tokio_postgres::error::SqlState;

use crate::error::{ServerError, ServerErrorKind};
use crate::names::quote_identifier;
use crate::shard::Shard;

/// What to do about a slot that is lost, in every place that says so.
pub const LOST_SLOT_FIX: &str = "walrelay slot recover, which has what may be missing published from the table: \
     docs/operations.md, Lost slot; or give that up and start anew: walrelay init --accept-loss";

/// What to do about a slot that was dropped for an upgrade, before it, after it and without it.
pub const UPGRADE_FIX: &str = "upgrade the server, then walrelay slot recover, which has what was written meanwhile \
     published from the table, or walrelay run --on-slot-lost recover; without an upgrade slot recover goes on here";

/// The tables that a session writes, longer names before those they begin with.
const RELAY_TABLES: [&str; 4] =
    ["app_outbox_dispatch", "app_outbox_relay_time", "app_outbox_relay", "app_outbox_hold"];

/// The statements that open one of the relay's tables to this role.
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
        /// What was being done, and to what.
        action: String,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },

    /// A column holds what this version does not understand.
    #[error("{column} holds {value:?}, which is not {expected}")]
    UnexpectedValue {
        /// The column, with its table.
        column: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },

    /// A number that the table cannot hold.
    #[error("{what} {value} is more than the table can hold")]
    OutOfRange {
        /// What the number counts.
        what: &'static str,
        /// The number.
        value: u64,
    },

    /// No free event id was found for a row; only rows made to provoke this get here.
    #[error("no free id for event {event_id:?} in dispatch state after {tries} tries")]
    NoFreeEventId {
        /// The last id tried.
        event_id: String,
        /// How many ids were tried.
        tries: u32,
    },

    /// Dispatch state of this slot does not hold the event.
    #[error(
        "slot {slot:?} holds no event {event_id:?} in dispatch state; \"walrelay dispatch list\" shows what it holds"
    )]
    UnknownEvent {
        /// The relay's slot.
        slot: String,
        /// The id asked for.
        event_id: String,
    },

    /// The event is finished, so it can neither be retried, nor edited, nor discarded.
    #[error("event {event_id:?} is already {status}; it can no longer be {action}")]
    AlreadyFinished {
        /// The id asked for.
        event_id: String,
        /// `published` or `discarded`.
        status: String,
        /// What was asked for, as a participle.
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

    /// What would be read is not what is there.
    #[error(
        "row level security hides the rows of {tables} from role {role}: nothing can be said of them; as their \
         owner: {policies}"
    )]
    RowsHidden {
        /// The tables.
        tables: String,
        /// Who asks.
        role: String,
        /// The statements that show them.
        policies: String,
    },

    /// There is no such slot.
    #[error("slot {slot:?} does not exist")]
    SlotMissing {
        /// Its name.
        slot: String,
    },

    /// The slot is on record in `app_outbox_relay`, and is missing or invalidated.
    #[error("slot {slot:?} {problem}; {LOST_SLOT_FIX}")]
    SlotLost {
        /// Its name.
        slot: String,
        /// What became of it.
        problem: String,
    },

    /// A slot of this name exists, and cannot be used.
    #[error("slot {slot:?} exists but {problem}; choose another name with --slot")]
    SlotUnusable {
        /// Its name.
        slot: String,
        /// Why not.
        problem: String,
    },

    /// Creating the publication now would break the slot for ever.
    #[error(
        "slot {slot:?} is older than publication {publication:?}, which does not exist: it would fail on every \
         change in between; correct --publication, or choose a new slot with --slot"
    )]
    SlotBeforePublication {
        /// The slot that exists.
        slot: String,
        /// The publication that does not.
        publication: String,
    },

    /// There is no anchor of this name.
    #[error("there is no anchor {anchor:?}; there are: {}", if others.is_empty() { "none" } else { others })]
    AnchorMissing {
        /// Its name.
        anchor: String,
        /// Those that exist.
        others: String,
    },

    /// The server dropped log that the anchor needed.
    #[error(
        "anchor {anchor:?} is invalidated: the log it kept was removed; drop it and create another"
    )]
    AnchorLost {
        /// Its name.
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

    /// A moment was named, and the table does not say when its events were.
    #[error(
        "{table} has no column of the event's time, so --since cannot select its rows: --column-occurred-at"
    )]
    NoTimeColumn {
        /// The table.
        table: String,
    },

    /// Nothing on record holds in this database.
    #[error(
        "slot {slot:?} is on record as one of another database: neither its positions nor its transaction ids \
         mean anything here, so nobody knows which rows were published"
    )]
    OtherDatabase {
        /// The slot.
        slot: String,
    },

    /// Something was begun with the slot, and stands in the way until it is finished.
    #[error("{what} was begun with slot {slot:?} and is not finished")]
    OperationUnfinished {
        /// The slot.
        slot: String,
        /// What was begun.
        what: String,
    },

    /// An upgrade of the server is being prepared, and the slot is still there.
    #[error("{what} was begun with slot {slot:?}")]
    UpgradeBegun {
        /// The slot.
        slot: String,
        /// What was begun, and whether somebody is at it.
        what: String,
    },

    /// The slot was dropped for an upgrade of the server, which has still to be recovered from.
    #[error("slot {slot:?} was dropped for an upgrade of the server")]
    UpgradePrepared {
        /// The slot.
        slot: String,
    },

    /// Somebody holds the slot, and who that is was found out.
    #[error("slot {slot:?} is held by {holder}")]
    SlotHeld {
        /// The slot.
        slot: String,
        /// Who holds it, and what it does.
        holder: String,
    },

    /// A new slot was begun by a process that is gone, and the server does not let us end what is left.
    #[error(
        "slot {slot:?} is still being made by server process {pid}, whose client is gone; end it as a superuser \
         or as its role: SELECT pg_terminate_backend({pid})"
    )]
    Abandoned {
        /// The slot.
        slot: String,
        /// The server process.
        pid: i32,
    },

    /// The outbox is divided into another number of shards.
    #[error(
        "the outbox has {} on this server, and {} asked for; `walrelay reshard` changes the number",
        shards(*count),
        if *wanted == 1 { "one for all rows is".to_owned() } else { format!("{wanted} are") }
    )]
    OtherNumber {
        /// How many there are.
        count: u32,
        /// How many were asked for.
        wanted: u32,
    },

    /// A shard was named of another number of shards than there are, or none was and there are some.
    #[error(
        "the outbox has {} on this server, and {}",
        shards(*count),
        if wanted.is_whole() { "--shard says which".to_owned() } else { format!("{wanted} is none of them") }
    )]
    OtherShard {
        /// How many there are.
        count: u32,
        /// Which was asked for.
        wanted: Shard,
    },

    /// The server is a standby.
    #[error("the server is in recovery")]
    InRecovery,

    /// The server has no room for what was asked for.
    #[error("{0}")]
    NoRoom(String),

    /// The name cannot be a slot's.
    #[error("{name:?} cannot name a slot: lower-case letters, digits and underscores, at most 63")]
    SlotName {
        /// The name.
        name: String,
    },

    /// The server is too old for what was asked.
    #[error("{feature} needs Postgres {needs}; this server is {has}")]
    ServerTooOld {
        /// What was asked for.
        feature: &'static str,
        /// The first version that has it.
        needs: u32,
        /// The server's version.
        has: u32,
    },
}

/// A number of shards, in words.
pub(crate) fn shards(count: u32) -> String {
    match count {
        1 => "one slot for all rows".to_owned(),
        _ => format!("{count} shards"),
    }
}

impl StoreError {
    /// For `map_err`: names what was being done.
    pub(crate) fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql { action, source }
    }

    /// The server's code, when the server refused a statement.
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

    /// The relay's table that the role has no privilege on, where that is why the server refused.
    #[must_use]
    pub fn closed_table(&self) -> Option<&'static str> {
        let Self::Sql { source, .. } = self else { return None };
        let refusal = source.as_db_error()?;
        // The server names the table in its message alone, and in every language by its name.
        let is_named = |table: &&&str| refusal.message().contains(**table);
        let closed = *refusal.code() == SqlState::INSUFFICIENT_PRIVILEGE;
        RELAY_TABLES.iter().find(is_named).filter(|_| closed).copied()
    }

    /// What the server's refusal means.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        let Self::Sql { source, .. } = self else { return None };
        source.as_db_error().map(|answer| ServerError::from(answer).kind())
    }

    /// Whether the same statement may simply be run again: the server chose it as the victim of a
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

    /// Whether the connection is gone, so that only a new one helps.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Sql { source, .. } if source.is_closed() || source.code().is_none())
    }
}

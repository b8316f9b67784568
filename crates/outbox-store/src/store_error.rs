//! A failure to read or write the tables of the outbox.

use tokio_postgres::error::SqlState;
use walrelay_errors::{Code, Coded};
use walrelay_pg_client::{ServerErrorKind, SqlError, quote_identifier};
use walrelay_pg_replication::SlotError;

/// The tables that a session writes, longer names before those they begin with.
const SESSION_TABLES: [&str; 4] =
    ["app_outbox_dispatch", "app_outbox_relay_time", "app_outbox_relay", "app_outbox_hold"];

/// The statements that open one of the relay's tables to this role.
#[must_use]
pub fn grant_on(table: &str, role: &str) -> String {
    let role = quote_identifier(role);
    // spliced: the role's name, in a text for a person.
    format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}, and where a policy is missing CREATE POLICY \
         walrelay ON {table} TO {role} USING (true) WITH CHECK (true)"
    )
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Sql(#[from] SqlError),

    #[error(transparent)]
    Slot(#[from] SlotError),

    /// No free event id was found for a row. Only rows that are made to provoke this error cause it.
    #[error("no free id for event {event_id:?} in dispatch state after {tries} tries")]
    NoFreeEventId { event_id: String, tries: u32 },

    #[error("dispatch state of slot {slot:?} has no event {event_id:?}")]
    UnknownEvent { slot: String, event_id: String },

    #[error("event {event_id:?} is already {status}; it can no longer be {action}")]
    AlreadyFinished {
        event_id: String,
        /// `published` or `discarded`.
        status: String,
        /// The refused action, as a participle.
        action: &'static str,
    },

    /// The message of a row lacks its headers, so it can only be edited.
    #[error(
        "event {event_id:?} was recorded without its headers, which could not be read, and would be published without \
         them"
    )]
    WithoutHeaders { event_id: String },

    /// The message of a row lacks a value that is too large, so it can only be edited.
    #[error(
        "event {event_id:?} was recorded without a value that is too large for Pub/Sub, and cannot be published \
         without it"
    )]
    WithoutValue { event_id: String },

    #[error("there is no anchor {anchor:?}; there are: {}", if others.is_empty() { "none" } else { others })]
    AnchorMissing { anchor: String, others: String },

    #[error("anchor {anchor:?} is lost: the server has removed WAL that it retained")]
    AnchorLost { anchor: String },
}

impl StoreError {
    /// For `map_err`: names the action that failed.
    pub fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql(SqlError::Sql { action, source })
    }

    /// The failed statement, if this is one.
    #[must_use]
    pub fn as_sql(&self) -> Option<&SqlError> {
        match self {
            Self::Sql(error) | Self::Slot(SlotError::Sql(error)) => Some(error),
            Self::Slot(
                SlotError::SlotMissing { .. }
                | SlotError::SlotName { .. }
                | SlotError::ServerTooOld { .. },
            )
            | Self::NoFreeEventId { .. }
            | Self::UnknownEvent { .. }
            | Self::AlreadyFinished { .. }
            | Self::WithoutHeaders { .. }
            | Self::WithoutValue { .. }
            | Self::AnchorMissing { .. }
            | Self::AnchorLost { .. } => None,
        }
    }

    /// The server's code, when the server refused a statement.
    #[must_use]
    pub fn sql_state(&self) -> Option<&SqlState> {
        self.as_sql().and_then(SqlError::sql_state)
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

    /// The relay's table that the role has no privilege on, where that is why the server refused.
    #[must_use]
    pub fn closed_table(&self) -> Option<&'static str> {
        let Some(SqlError::Sql { source, .. }) = self.as_sql() else { return None };
        let refusal = source.as_db_error()?;
        // The server names the table in its message alone, and in every language by its name.
        let is_named = |table: &&&str| refusal.message().contains(**table);
        let closed = *refusal.code() == SqlState::INSUFFICIENT_PRIVILEGE;
        SESSION_TABLES.iter().find(is_named).filter(|_| closed).copied()
    }
}

impl Coded for StoreError {
    fn code(&self) -> Code {
        match self {
            Self::Sql(error) => error.code(),
            Self::Slot(error) => error.code(),
            Self::NoFreeEventId { .. } => Code::ValueNotRecordable,
            Self::UnknownEvent { .. } => Code::EventNotFound,
            Self::AlreadyFinished { .. } => Code::EventAlreadyFinished,
            Self::WithoutHeaders { .. } | Self::WithoutValue { .. } => Code::EventIncomplete,
            Self::AnchorMissing { .. } => Code::AnchorNotFound,
            Self::AnchorLost { .. } => Code::AnchorLost,
        }
    }
}

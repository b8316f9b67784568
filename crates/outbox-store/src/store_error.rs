//! A failure to read or write the tables of the outbox.

use tokio_postgres::error::SqlState;
use walrelay_pg_client::SqlError;
use walrelay_pg_replication::SlotError;

/// A statement on the tables of the outbox failed, or was refused before it ran.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A statement failed.
    #[error(transparent)]
    Sql(#[from] SqlError),

    /// A slot cannot be read.
    #[error(transparent)]
    Slot(#[from] SlotError),

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
            | Self::WithoutHeaders { .. } => None,
        }
    }

    /// The server's code, when the server refused a statement.
    #[must_use]
    pub fn sql_state(&self) -> Option<&SqlState> {
        self.as_sql().and_then(SqlError::sql_state)
    }

    /// Whether the connection is gone, so that only a new one helps.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.as_sql().is_some_and(SqlError::is_disconnected)
    }
}

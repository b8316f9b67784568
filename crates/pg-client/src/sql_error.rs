//! A failure of an SQL statement.

use tokio_postgres::error::SqlState;

use walrelay_errors::{Code, Coded};

use crate::server_error::{ServerError, ServerErrorKind};

/// A statement failed, or its answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The server refused a statement, or the connection ended.
    #[error("{action}")]
    Sql {
        /// The failed action and its object.
        action: String,
        /// The server's error.
        #[source]
        source: tokio_postgres::Error,
    },

    /// A column holds a value that this version does not know.
    #[error("{column} holds {value:?}, which is not {expected}")]
    UnexpectedValue {
        /// The column, with its table.
        column: &'static str,
        /// The value.
        value: String,
        /// The expected values.
        expected: &'static str,
    },

    /// A number that the table cannot hold.
    #[error("{what} {value} is more than the table can hold")]
    OutOfRange {
        /// The counted things.
        what: &'static str,
        /// The number.
        value: u64,
    },

    /// Row level security hides rows, so a read would be incomplete.
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
}

impl SqlError {
    /// For `map_err`: names the failed action.
    pub fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql { action, source }
    }

    /// The server's code, when the server refused a statement.
    #[must_use]
    pub fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Sql { source, .. } => source.code(),
            Self::UnexpectedValue { .. } | Self::OutOfRange { .. } | Self::RowsHidden { .. } => {
                None
            }
        }
    }

    /// The meaning of the server's refusal.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        self.server_answer().map(|answer| answer.kind())
    }

    /// The server's refusal of a statement.
    #[must_use]
    pub fn server_answer(&self) -> Option<ServerError> {
        let Self::Sql { source, .. } = self else { return None };
        source.as_db_error().map(ServerError::from)
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

impl Coded for SqlError {
    fn code(&self) -> Code {
        match self {
            Self::Sql { .. } => {
                self.server_kind().map_or(Code::ConnectionBroken, ServerErrorKind::code)
            }
            Self::RowsHidden { .. } => Code::RowsHidden,
            Self::UnexpectedValue { .. } => Code::ServerUnknown,
            Self::OutOfRange { .. } => Code::ValueNotRecordable,
        }
    }
}

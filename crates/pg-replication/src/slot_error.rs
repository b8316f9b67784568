//! A failure of a statement about a slot or a publication.

use walrelay_errors::{Code, Coded};
use walrelay_pg_client::{ServerErrorKind, SqlError};

/// A slot or a publication cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// A statement failed.
    #[error(transparent)]
    Sql(#[from] SqlError),

    #[error("slot {slot:?} does not exist")]
    SlotMissing { slot: String },

    /// The name cannot be a slot's.
    #[error("{name:?} cannot name a slot: lower-case letters, digits and underscores, at most 63")]
    SlotName { name: String },

    /// The server is too old for the requested feature.
    #[error("{feature} needs Postgres {needs}; this server is {has}")]
    ServerTooOld {
        feature: &'static str,
        /// The first version that has it.
        needs: u32,
        /// The server's version.
        has: u32,
    },
}

impl SlotError {
    /// For `map_err`: names the action that failed.
    pub fn sql(action: impl Into<String>) -> impl FnOnce(tokio_postgres::Error) -> Self {
        let action = action.into();
        |source| Self::Sql(SqlError::Sql { action, source })
    }

    /// The meaning of the server's refusal.
    #[must_use]
    pub fn server_kind(&self) -> Option<ServerErrorKind> {
        match self {
            Self::Sql(error) => error.server_kind(),
            Self::SlotMissing { .. } | Self::SlotName { .. } | Self::ServerTooOld { .. } => None,
        }
    }
}

impl Coded for SlotError {
    fn code(&self) -> Code {
        match self {
            Self::Sql(error) => error.code(),
            Self::SlotMissing { .. } => Code::SlotMissing,
            Self::SlotName { .. } => Code::ArgumentInvalid,
            Self::ServerTooOld { .. } => Code::ServerUnsuitable,
        }
    }
}

//! The kinds of Postgres' errors.

use walrelay_outbox_admin::AdminError;
use walrelay_outbox_store::StoreError;
use walrelay_pg_client::{PgError, ServerError, ServerErrorKind, SqlError, TlsError};
use walrelay_pg_replication::SlotError;

use super::{Kind, is_cut};

impl Kind {
    /// The kind of a connection's error.
    #[must_use]
    pub fn of_postgres(error: &PgError) -> Self {
        match error {
            PgError::Resolve { .. } | PgError::Connect { .. } => Self::Unreachable,
            PgError::ConnectTimeout { .. } => Self::Unanswered,
            // One address that may yet answer is enough to wait for.
            PgError::Unreachable { failures } => {
                let may_answer =
                    failures.iter().any(|it| Self::of_postgres(it) == Self::Unanswered);
                if may_answer { Self::Unanswered } else { Self::Unreachable }
            }
            PgError::Tls { source, .. } => match source {
                TlsError::NotOffered => Self::TlsNotOffered,
                TlsError::Handshake(cut) if is_cut(cut) => Self::Broken,
                TlsError::Handshake(_) => Self::TlsUntrusted,
                TlsError::RootFile { .. } | TlsError::RootPem { .. } => Self::TlsRoots,
                TlsError::Unexpected(_)
                | TlsError::HostName { .. }
                | TlsError::Configuration(_) => Self::Tls,
            },
            PgError::Server(answer) => Self::of_server(answer.kind()),
            PgError::Pooler => Self::Pooler,
            PgError::AuthenticationMethod { .. } => Self::AuthenticationMethod,
            PgError::PasswordMissing => Self::PasswordMissing,
            PgError::PasswordFile { .. } => Self::PasswordFile,
            PgError::Scram { .. } => Self::ServerUnproven,
            PgError::WrongSession { .. } => Self::WrongSession,
            PgError::PublicationSkipped(_) => Self::PublicationSkipped,
            PgError::EndedByServer
            | PgError::Disconnected
            | PgError::Io { .. }
            | PgError::Silent { .. }
            | PgError::WriteTimeout { .. }
            | PgError::FinishTimeout { .. }
            | PgError::Sql(_) => Self::Broken,
            PgError::MessageTooLarge { .. } | PgError::Protocol { .. } | PgError::Frame(_) => {
                Self::Protocol
            }
        }
    }

    /// The kind of an error while a slot is streamed. A slot that is "not in a state" was then
    /// invalidated, because everything else about the slot was checked before.
    #[must_use]
    pub fn of_stream(error: &PgError) -> Self {
        match error.server().map(ServerError::kind) {
            Some(ServerErrorKind::NotInState)
                if !matches!(error, PgError::PublicationSkipped(_)) =>
            {
                Self::SlotLost
            }
            Some(_) | None => Self::of_postgres(error),
        }
    }

    /// The kind of a server's answer.
    #[must_use]
    pub const fn of_server(kind: ServerErrorKind) -> Self {
        match kind {
            ServerErrorKind::SlotActive { .. } => Self::SlotHeld,
            ServerErrorKind::Missing => Self::Missing,
            ServerErrorKind::TableMissing => Self::TableMissing,
            ServerErrorKind::NotInState => Self::ServerUnfit,
            ServerErrorKind::SlotsExhausted => Self::SlotsExhausted,
            ServerErrorKind::ConnectionsExhausted => Self::ConnectionsExhausted,
            ServerErrorKind::Privilege => Self::Privilege,
            ServerErrorKind::AdminShutdown | ServerErrorKind::NotAccepting => Self::NotAccepting,
            ServerErrorKind::Authentication => Self::Authentication,
            ServerErrorKind::DatabaseMissing => Self::DatabaseMissing,
            ServerErrorKind::InvalidName => Self::InvalidName,
            ServerErrorKind::Syntax => Self::Syntax,
            ServerErrorKind::WalRemoved => Self::SlotLost,
            ServerErrorKind::OutboxUnfit => Self::OutboxUnfit,
            ServerErrorKind::ReadOnly => Self::ReadOnly,
            ServerErrorKind::Other => Self::Refused,
        }
    }
}

impl From<&SqlError> for Kind {
    fn from(error: &SqlError) -> Self {
        match error {
            SqlError::Sql { .. } => error.server_kind().map_or(Self::Broken, Self::of_server),
            SqlError::RowsHidden { .. } => Self::RowsHidden,
            SqlError::UnexpectedValue { .. } => Self::ServerUnknown,
            SqlError::OutOfRange { .. } => Self::Unrecordable,
        }
    }
}

impl From<&SlotError> for Kind {
    fn from(error: &SlotError) -> Self {
        match error {
            SlotError::Sql(error) => error.into(),
            SlotError::SlotMissing { .. } => Self::SlotMissing,
            SlotError::ServerTooOld { .. } => Self::ServerUnfit,
            SlotError::SlotName { .. } => Self::Argument,
        }
    }
}

impl From<&StoreError> for Kind {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Sql(error) => error.into(),
            StoreError::Slot(error) => error.into(),
            StoreError::NoFreeEventId { .. } => Self::Unrecordable,
            StoreError::UnknownEvent { .. }
            | StoreError::AlreadyFinished { .. }
            | StoreError::WithoutHeaders { .. }
            | StoreError::WithoutValue { .. }
            | StoreError::AnchorMissing { .. }
            | StoreError::AnchorLost { .. } => Self::Argument,
        }
    }
}

impl From<&AdminError> for Kind {
    fn from(error: &AdminError) -> Self {
        match error {
            AdminError::Sql(error) => error.into(),
            AdminError::Slot(error) => error.into(),
            AdminError::Store(error) => error.into(),
            AdminError::SlotLost { .. } => Self::SlotLost,
            AdminError::SlotUnusable { .. } | AdminError::SlotBeforePublication { .. } => {
                Self::SlotUnfit
            }
            AdminError::OtherNumber { .. } | AdminError::OtherShard { .. } => Self::ShardsDiffer,
            AdminError::NoTimeColumn { .. } => Self::Argument,
            AdminError::NotLost { .. } => Self::NotLost,
            AdminError::UpgradeBegun { .. } => Self::UpgradeBegun,
            AdminError::UpgradePrepared { .. } => Self::UpgradePrepared,
            AdminError::OtherDatabase { .. } => Self::OtherDatabase,
            AdminError::OperationUnfinished { .. } | AdminError::Abandoned { .. } => {
                Self::OperationUnfinished
            }
            AdminError::SlotHeld { .. } => Self::SlotHeld,
            AdminError::InRecovery => Self::InRecovery,
            AdminError::NoRoom(_) => Self::NoRoom,
        }
    }
}

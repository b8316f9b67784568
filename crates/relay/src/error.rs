//! What can end a session of the relay, and whether another may follow.

use walrelay_postgres::{PgError, ServerErrorKind, StoreError, StoreFailure};

use crate::policy::{Disposition, Exit};
use crate::stream::pipeline::PipelineError;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Connecting, or taking the slot.
    #[error("no replication connection")]
    Connect(#[source] PgError),
    /// The first connection of this process: the address is more likely wrong than the server down.
    #[error("postgres cannot be reached")]
    Unreachable(#[source] PgError),
    /// The session broke off.
    #[error(transparent)]
    Session(#[from] PipelineError),
    /// Dispatch state cannot be read.
    #[error("dispatch state cannot be read")]
    Store(#[source] StoreFailure),
    /// What the server is set up for cannot be read.
    #[error("the set-up of the server cannot be read")]
    Survey(#[source] StoreError),
    /// An ordinary statement failed.
    #[error("{action}")]
    Sql {
        /// What it was for.
        action: &'static str,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// `--take-over-after`, and the server does not let us.
    #[error("the session of {holder} cannot be ended")]
    TakeOver {
        /// Who holds the slot.
        holder: String,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The server is a standby, or has just started as one: it may be promoted any moment.
    #[error("the server is in recovery: it is a standby, or is not promoted yet")]
    InRecovery,
    /// The server is not set up for this relay.
    #[error("postgres is not set up for this relay: {summary}")]
    Setup {
        /// Each finding with its fix.
        summary: String,
    },
    /// There was a slot and it is gone or unusable.
    #[error("the slot is lost: {summary}")]
    SlotLost {
        /// What happened and what to do.
        summary: String,
    },
}

impl RelayError {
    /// For `map_err`: what a statement was for.
    pub fn sql(action: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { action, source }
    }

    /// What the supervisor does about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Connect(error) | Self::Session(PipelineError::Stream(error)) => {
                of_postgres(error)
            }
            Self::Unreachable(error) => Disposition::stop(
                Exit::PostgresSetup,
                error.hint().unwrap_or(
                    "check host, port and network; once connected, the relay reconnects by itself",
                ),
            ),
            Self::Session(
                PipelineError::Decode { .. } | PipelineError::Row(_) | PipelineError::Columns(_),
            ) => Disposition::stop(
                Exit::PostgresSetup,
                "nothing was confirmed past this row; mend the table or the --column-… options and \
                 start again",
            ),
            Self::Session(PipelineError::NotInsertOnly { .. }) => Disposition::stop(
                Exit::PostgresSetup,
                "ALTER PUBLICATION … SET (publish = 'insert'), then start again",
            ),
            Self::Session(PipelineError::ServerStops)
            | Self::Sql { .. }
            | Self::Survey(_)
            | Self::Store(_)
            | Self::InRecovery => Disposition::Reconnect,
            Self::TakeOver { .. } => Disposition::stop(
                Exit::SlotHeld,
                "only the same role, or a member of pg_signal_backend, may end it",
            ),
            Self::Setup { .. } => Disposition::stop(Exit::PostgresSetup, "run `walrelay check`"),
            Self::SlotLost { .. } => Disposition::stop(
                Exit::SlotLost,
                "see docs/operations.md, \"Lost slot\"; rows since then are still in the outbox table",
            ),
        }
    }

    /// A word for the metric `reconnects_total`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) | Self::Unreachable(_) => "connect",
            Self::Session(PipelineError::Stream(PgError::Silent { .. })) => "silent",
            Self::Session(PipelineError::Stream(PgError::Server(_))) => "server_error",
            Self::Session(PipelineError::Stream(PgError::EndedByServer)) => "ended_by_server",
            Self::Session(PipelineError::Stream(_)) => "disconnected",
            Self::Session(PipelineError::ServerStops) => "server_shutdown",
            Self::Session(_) => "stream",
            Self::Store(_) | Self::Survey(_) | Self::Sql { .. } => "sql",
            Self::InRecovery => "in_recovery",
            Self::TakeOver { .. } | Self::Setup { .. } | Self::SlotLost { .. } => "setup",
        }
    }

    /// The same for the first connection of the process, where a server that cannot be reached is
    /// most likely misnamed. One that is starting up or shutting down is there, and will be.
    #[must_use]
    pub fn at_first(self) -> Self {
        let Self::Connect(error) = self else { return self };
        match (of_postgres(&error), kind(&error)) {
            (Disposition::Reconnect, None) => Self::Unreachable(error),
            (Disposition::Reconnect | Disposition::Stop { .. }, _) => Self::Connect(error),
        }
    }
}

fn kind(error: &PgError) -> Option<ServerErrorKind> {
    error.server().map(walrelay_postgres::ServerError::kind)
}

/// Configuration, rights and missing things stop; everything else may pass.
fn of_postgres(error: &PgError) -> Disposition {
    let hint = error.hint().unwrap_or_default();
    let setup = || Disposition::stop(Exit::PostgresSetup, hint);
    let is_setup = matches!(
        error,
        PgError::Pooler
            | PgError::AuthenticationMethod { .. }
            | PgError::PasswordMissing
            | PgError::PublicationSkipped(_)
    );
    if is_setup {
        return setup();
    }
    match kind(error) {
        Some(
            ServerErrorKind::Missing
            | ServerErrorKind::Privilege
            | ServerErrorKind::Authentication
            | ServerErrorKind::DatabaseMissing
            | ServerErrorKind::InvalidName
            | ServerErrorKind::Syntax,
        ) => setup(),
        Some(ServerErrorKind::NotInState | ServerErrorKind::WalRemoved) => Disposition::stop(
            Exit::SlotLost,
            "the server dropped log that this slot needed; see docs/operations.md, \"Lost slot\"",
        ),
        Some(
            ServerErrorKind::SlotActive { .. }
            | ServerErrorKind::SlotsExhausted
            | ServerErrorKind::ConnectionsExhausted
            | ServerErrorKind::AdminShutdown
            | ServerErrorKind::NotAccepting
            | ServerErrorKind::Other,
        )
        | None => Disposition::Reconnect,
    }
}

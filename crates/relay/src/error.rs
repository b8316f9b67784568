//! What can end a session of the relay, and whether another may follow.

use walrelay_outbox_admin::AdminError;
use walrelay_outbox_store::StoreError;
use walrelay_outbox_store::StoreFailure;
use walrelay_pg_client::{PgError, ServerError};

use crate::policy::{Disposition, Exit, Kind, Met};
use crate::stream::pipeline_error::{PipelineError, Unsent};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Connecting, or taking the slot.
    #[error("no replication connection")]
    Connect(#[source] PgError),
    /// Connecting before that had ever worked in this process, where less is waited for.
    #[error(transparent)]
    AtFirst(Box<RelayError>),
    /// The session broke off.
    #[error(transparent)]
    Session(#[from] PipelineError),
    /// The session broke off at the same place as the sessions before it, with the same error.
    #[error(transparent)]
    Unsendable(Box<RepeatedSendFailure>),
    /// Dispatch state cannot be read.
    #[error("dispatch state cannot be read")]
    Store(#[source] StoreFailure),
    /// What the server is set up for cannot be read.
    #[error("the set-up of the server cannot be read")]
    Survey(#[source] AdminError),
    /// The table could not be streamed.
    #[error("the table could not be streamed")]
    TableStream {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An ordinary statement failed.
    #[error("{action}")]
    Sql {
        /// What the statement was for.
        action: &'static str,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The slot was to be taken over, and the server does not let us end the holder's session.
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
    /// The server is not what the configuration says, or the slot is lost.
    #[error("{}: {summary}", if kind.exit() == Exit::SlotLost { "the slot is lost" } else { "postgres is not set up for this relay" })]
    Setup {
        /// The gravest kind among the findings.
        kind: Kind,
        /// Each finding with its fix.
        summary: String,
    },
}

/// Sessions ended at one place, one after the other, because the server cannot send what is there.
#[derive(Debug, thiserror::Error)]
#[error("the server cannot send {at}{rows}: {attempts} sessions ended there, one after the other")]
pub struct RepeatedSendFailure {
    /// Where.
    pub at: Unsent,
    /// How many sessions.
    pub attempts: u32,
    /// The rows, where they were found in the table: `, which is event …`.
    pub rows: String,
    /// What the server said.
    #[source]
    pub source: PgError,
}

/// Every word that [`reason`](RelayError::reason) has.
pub(crate) const RECONNECT_REASONS: [&str; 12] = [
    "connect",
    "disconnected",
    "ended_by_server",
    "in_recovery",
    "operation",
    "other_history",
    "server_error",
    "server_shutdown",
    "setup",
    "silent",
    "sql",
    "stream",
];

impl RelayError {
    /// For `map_err`: wraps a statement's error with what the statement was for.
    pub fn sql(action: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { action, source }
    }

    /// For `map_err`: an operator's step was refused, or failed.
    pub fn survey(error: impl Into<AdminError>) -> Self {
        Self::Survey(error.into())
    }

    /// What the supervisor does about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::AtFirst(error) => error.kind().disposition(Met::AtFirst),
            Self::Connect(_)
            | Self::Session(_)
            | Self::Unsendable(_)
            | Self::Store(_)
            | Self::Survey(_)
            | Self::TableStream { .. }
            | Self::Sql { .. }
            | Self::TakeOver { .. }
            | Self::InRecovery
            | Self::Setup { .. } => self.kind().disposition(Met::Running),
        }
    }

    /// What it is, for the policy.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::AtFirst(error) => error.kind(),
            Self::Connect(error) | Self::Session(PipelineError::Stream(error)) => {
                Kind::of_stream(error)
            }
            Self::Session(
                PipelineError::Decode { .. } | PipelineError::Row(_) | PipelineError::Columns(_),
            ) => Kind::Unreadable,
            // Once may be an accident; the supervisor counts.
            Self::Session(PipelineError::Unsendable { .. }) => Kind::Refused,
            Self::Unsendable(_) => Kind::Unsendable,
            Self::Session(PipelineError::PublicationChanged { .. }) => Kind::PublicationChanged,
            Self::Session(PipelineError::ServerStops) => Kind::NotAccepting,
            Self::Store(failure) | Self::Session(PipelineError::Store(failure)) => {
                of_failure(failure)
            }
            Self::Session(PipelineError::NotOnRecord { .. }) => Kind::Refused,
            Self::Survey(error) => error.into(),
            Self::Sql { source, .. } => match source.as_db_error() {
                Some(answer) => Kind::of_server(ServerError::from(answer).kind()),
                None => Kind::Broken,
            },
            Self::TableStream { .. } => Kind::Broken,
            Self::TakeOver { .. } => Kind::TakeOverRefused,
            Self::InRecovery => Kind::InRecovery,
            Self::Setup { kind, .. } => *kind,
        }
    }

    /// A word for the metric `reconnects_total`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::AtFirst(error) => error.reason(),
            Self::Connect(_) => "connect",
            Self::Session(PipelineError::Stream(PgError::Silent { .. })) => "silent",
            Self::Session(
                PipelineError::Unsendable { .. } | PipelineError::Stream(PgError::Server(_)),
            )
            | Self::Unsendable(_) => "server_error",
            Self::Session(PipelineError::Stream(PgError::EndedByServer)) => "ended_by_server",
            Self::Session(PipelineError::Stream(_)) => "disconnected",
            Self::Session(PipelineError::ServerStops) => "server_shutdown",
            Self::Session(PipelineError::Store(_)) => "other_history",
            Self::Session(_) => "stream",
            Self::Survey(AdminError::OperationUnfinished { .. }) => "operation",
            Self::Store(_) | Self::Survey(_) | Self::Sql { .. } | Self::TableStream { .. } => "sql",
            Self::InRecovery => "in_recovery",
            Self::TakeOver { .. } | Self::Setup { .. } => "setup",
        }
    }

    /// The same, met before anything had worked: a server that cannot be reached is then most likely
    /// misnamed. One that is starting up or shutting down is there, and will be.
    #[must_use]
    pub fn at_first(self) -> Self {
        if matches!(self, Self::Connect(_)) { Self::AtFirst(Box::new(self)) } else { self }
    }
}

fn of_failure(failure: &StoreFailure) -> Kind {
    match failure {
        StoreFailure::Unavailable(cause) => {
            cause.downcast_ref::<StoreError>().map_or(Kind::Refused, Kind::from)
        }
        StoreFailure::ShuttingDown => Kind::NotAccepting,
        StoreFailure::OtherHistory(_) => Kind::Refused,
        StoreFailure::NotRecorded(_) => Kind::NotReplayed,
        StoreFailure::TablesOutdated(_) => Kind::TableMissing,
    }
}

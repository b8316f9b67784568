//! The errors that end a session of the relay, and whether the relay may open another one.

use pgoutput_parser::Lsn;
use walrelay_errors::{Action, BoxedError, Code, Coded, ErrorContext, Exit};
use walrelay_outbox_store::{StoreError, StoreFailure};
use walrelay_pg_client::{PgError, ServerError, SqlError};
use walrelay_pg_replication::SlotError;

use crate::stream::pipeline_error::{PipelineError, SendFailurePosition};

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Connecting or starting replication failed.
    #[error("no replication connection")]
    Connect(#[source] PgError),
    /// The first error of this process. Fewer kinds of errors are retried at that point.
    #[error(transparent)]
    AtFirst(Box<RelayError>),
    #[error(transparent)]
    Session(#[from] PipelineError),
    /// Several sessions in a row ended at the same row with the same error.
    #[error(transparent)]
    Unsendable(Box<RepeatedSendFailure>),
    #[error("dispatch state cannot be read")]
    Store(#[source] StoreFailure),
    #[error("the set-up of the server cannot be read")]
    Survey(#[source] BoxedError),
    #[error("the table could not be streamed")]
    TableStream {
        #[source]
        source: std::io::Error,
    },
    #[error("{action}")]
    Sql {
        action: &'static str,
        #[source]
        source: tokio_postgres::Error,
    },
    /// The relay tried to take the slot over, but the server did not let it end the holder's
    /// session.
    #[error("the session of {holder} cannot be ended")]
    TakeOver {
        holder: String,
        #[source]
        source: tokio_postgres::Error,
    },
    /// The server is a standby, or has just started as one. It may be promoted at any moment.
    #[error("the server is in recovery: it is a standby, or is not promoted yet")]
    InRecovery,
    #[error(
        "the server's WAL ended at {wal_end}, before {read_to}, which this relay has read from it: the server was \
         restored from a disk snapshot"
    )]
    ServerRestored {
        wal_end: Lsn,
        /// The last position that was read from the server.
        read_to: Lsn,
    },
    #[error("{}: {summary}", if code.exit() == Exit::SlotLost { "the slot is lost" } else { "postgres is not set up for this relay" })]
    Setup {
        /// The gravest code among the findings.
        code: Code,
        /// Each finding with its fix.
        summary: String,
    },
}

/// A refusal or a failed statement outside of the data path.
macro_rules! from_survey {
    ($($error:ty),+) => {
        $(impl From<$error> for RelayError {
            fn from(error: $error) -> Self {
                Self::survey(error)
            }
        })+
    };
}

from_survey!(StoreError, SlotError, SqlError);

/// Several sessions in a row that ended at one place, because the server cannot send the next row.
#[derive(Debug, thiserror::Error)]
#[error("the server cannot send {at}{rows}: {attempts} sessions ended there, one after the other")]
pub struct RepeatedSendFailure {
    pub at: SendFailurePosition,
    pub attempts: u32,
    /// The rows as error text, if the relay found them in the table: `, which is event …`.
    pub rows: String,
    #[source]
    pub source: PgError,
}

/// The codes of an operation on the slot that another process must finish.
const UNFINISHED: [Code; 3] =
    [Code::OperationUnfinished, Code::ReleaseInProgress, Code::SlotReleased];

/// Every value that [`reason`](RelayError::reason) returns.
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
    /// For `map_err`: wraps the error of a statement with the purpose of the statement.
    pub fn sql(action: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { action, source }
    }

    /// For `map_err`: an operator's step was refused, or failed.
    pub fn survey(error: impl Coded) -> Self {
        Self::Survey(BoxedError::new(error))
    }

    /// The supervisor's reaction to the error.
    #[must_use]
    pub fn action(&self) -> Action {
        let context = match self {
            Self::AtFirst(_) => ErrorContext::FirstStart,
            Self::Connect(_)
            | Self::Session(_)
            | Self::Unsendable(_)
            | Self::Store(_)
            | Self::Survey(_)
            | Self::TableStream { .. }
            | Self::Sql { .. }
            | Self::TakeOver { .. }
            | Self::InRecovery
            | Self::ServerRestored { .. }
            | Self::Setup { .. } => ErrorContext::Running,
        };
        self.code().action(context)
    }

    /// Returns the value of the label `reason` of the metric `reconnects_total`.
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
            Self::Session(PipelineError::Store(_)) | Self::ServerRestored { .. } => "other_history",
            Self::Session(_) => "stream",
            Self::Survey(error) if UNFINISHED.contains(&error.code()) => "operation",
            Self::Store(_) | Self::Survey(_) | Self::Sql { .. } | Self::TableStream { .. } => "sql",
            Self::InRecovery => "in_recovery",
            Self::TakeOver { .. } | Self::Setup { .. } => "setup",
        }
    }

    /// Marks the first error of this process. An unreachable server is then most likely misnamed,
    /// and a missing table was never created. A server that answers that it is starting up or
    /// shutting down is retried as usual.
    #[must_use]
    pub fn at_first(self) -> Self {
        let may_be_misnamed = matches!(self, Self::Connect(_) | Self::Setup { .. });
        if may_be_misnamed { Self::AtFirst(Box::new(self)) } else { self }
    }

    /// Returns whether the first connection of this process failed.
    #[must_use]
    pub fn is_first_connection(&self) -> bool {
        matches!(self, Self::AtFirst(error) if matches!(**error, Self::Connect(_)))
    }
}

impl Coded for RelayError {
    fn code(&self) -> Code {
        match self {
            Self::AtFirst(error) => error.code(),
            Self::Connect(error) => error.code_while_streaming(),
            Self::Session(error) => error.code(),
            Self::Unsendable(_) => Code::RowUnsendable,
            Self::Store(failure) => failure.code(),
            Self::Survey(error) => error.code(),
            Self::Sql { source, .. } => source
                .as_db_error()
                .map_or(Code::ConnectionBroken, |answer| ServerError::from(answer).kind().code()),
            Self::TableStream { .. } => Code::ConnectionBroken,
            Self::TakeOver { .. } => Code::TakeOverRefused,
            Self::InRecovery => Code::ServerIsStandby,
            Self::ServerRestored { .. } => Code::ServerRestored,
            Self::Setup { code, .. } => *code,
        }
    }
}

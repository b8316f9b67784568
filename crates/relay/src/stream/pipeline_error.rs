//! The errors that end a session.

use std::fmt;

use pgoutput_parser::{DecodeError, Lsn, Position};
use walrelay_core::{MissingColumn, RouteError, Watermark};
use walrelay_errors::{Chain, Code, Coded};
use walrelay_outbox_store::{Reason, ReasonKind, StoreFailure};
use walrelay_pg_client::PgError;

use crate::stream::outbox_tables::OtherTable;

#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The connection, or the server behind it, failed.
    #[error("the replication stream ended")]
    Stream(#[from] PgError),
    /// The server cannot send the next row, nor any later one.
    #[error("the server cannot send {at}")]
    Unsendable {
        at: SendFailurePosition,
        #[source]
        source: PgError,
    },
    /// The server sent a message that we cannot decode. No later position is confirmed (I7).
    #[error("the message at {at} cannot be decoded")]
    Decode {
        at: Lsn,
        #[source]
        source: DecodeError,
    },
    /// The session knows nearly as many tables as it may. A new session knows only those in use.
    #[error("the server has described nearly as many tables as one session remembers")]
    ManyTables,
    #[error("an outbox table does not have the columns it should")]
    Columns(#[from] MissingColumn),
    /// The publication lists a table that is not an outbox table, and sent its rows.
    #[error(transparent)]
    OtherTable(#[from] OtherTable),
    #[error("an outbox row cannot be read")]
    Row(#[from] RouteError),
    /// The publication, or one of its tables, was changed during the session.
    #[error("{what}")]
    PublicationChanged {
        /// The change, and whether rows may be missing.
        what: String,
    },
    /// The server shuts down and waits for us, although nothing is left to confirm.
    #[error("the database server is shutting down")]
    ServerStops,
    /// The session ended before the last settled rows were on record.
    #[error(
        "settled up to {settled}, but only {watermark} is on record; the rows in between come again"
    )]
    NotOnRecord {
        /// The recorded and confirmed position.
        watermark: Watermark,
        settled: Watermark,
    },
    /// Dispatch state belongs to another server, or to another generation than at the start of the
    /// session.
    #[error("the session's history is over")]
    Store(#[source] StoreFailure),
}

/// The place of a stream that the server cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailurePosition {
    /// At this row of a transaction.
    Row {
        /// The position that the row would have.
        position: Position,
        xid: u32,
    },
    /// Before the first row of a transaction. The server did not name the transaction.
    Behind(Position),
}

impl fmt::Display for SendFailurePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { position, xid } => write!(f, "the row at {position} of transaction {xid}"),
            Self::Behind(position) => write!(f, "the transaction behind {position}"),
        }
    }
}

impl SendFailurePosition {
    /// Returns the reason why rows do not flow, with the position if it is that of a row.
    pub(crate) fn reason(self, error: &(dyn std::error::Error + 'static)) -> Reason {
        let reason = Reason::new(ReasonKind::UnsendableRow, Chain(error).to_string());
        match self {
            Self::Row { position, .. } => reason.about(position.to_string()),
            Self::Behind(_) => reason,
        }
    }

    /// Returns the position of the row, or of the last one before it.
    #[must_use]
    pub const fn position(self) -> Position {
        match self {
            Self::Row { position, .. } | Self::Behind(position) => position,
        }
    }
}

impl PipelineError {
    /// Returns the error of a stream that ended. `next` is the position of the next row within an
    /// open transaction, `last` is the last row that arrived.
    pub(crate) fn of_stream(error: PgError, next: Option<(Position, u32)>, last: Position) -> Self {
        let is_permanent = matches!(&error, PgError::Server(answer) if answer.is_permanent());
        if !is_permanent {
            return Self::Stream(error);
        }
        let row = next.map(|(position, xid)| SendFailurePosition::Row { position, xid });
        Self::Unsendable { at: row.unwrap_or(SendFailurePosition::Behind(last)), source: error }
    }

    /// Returns whether the cause is a row or message, while the server and the connection work. The
    /// rows before it are then finished.
    pub(crate) const fn is_row_error(&self) -> bool {
        match self {
            Self::Unsendable { .. }
            | Self::Decode { .. }
            | Self::ManyTables
            | Self::Columns(_)
            | Self::OtherTable(_)
            | Self::Row(_) => true,
            Self::Stream(_)
            | Self::PublicationChanged { .. }
            | Self::NotOnRecord { .. }
            | Self::Store(_)
            | Self::ServerStops => false,
        }
    }

    /// Returns the error of a session whose dispatch state failed.
    pub(crate) fn of_store(failure: StoreFailure) -> Self {
        match failure {
            StoreFailure::ShuttingDown => Self::ServerStops,
            StoreFailure::Unavailable(_)
            | StoreFailure::OtherHistory(_)
            | StoreFailure::NotRecorded(_)
            | StoreFailure::TablesMissing(_) => Self::Store(failure),
        }
    }
}

impl Coded for PipelineError {
    fn code(&self) -> Code {
        match self {
            Self::Stream(error) => error.code_while_streaming(),
            Self::Decode { .. } | Self::Row(_) | Self::Columns(_) => Code::RowUnreadable,
            // A single occurrence may be an accident. The supervisor counts.
            Self::Unsendable { .. } | Self::NotOnRecord { .. } => Code::ServerError,
            Self::OtherTable(_) => Code::PublicationUnsuitable,
            Self::PublicationChanged { .. } => Code::PublicationChanged,
            Self::ServerStops => Code::ServerNotAccepting,
            Self::ManyTables => Code::ConnectionBroken,
            Self::Store(failure) => failure.code(),
        }
    }
}

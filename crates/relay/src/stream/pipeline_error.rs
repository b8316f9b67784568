//! Why a session broke off.

use std::fmt;

use pgoutput_parser::{DecodeError, Lsn, Position};
use walrelay_core::{MissingColumn, RouteError, Watermark};
use walrelay_outbox_store::StoreFailure;
use walrelay_pg_client::PgError;

/// Why a session broke off.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The connection, or the server behind it.
    #[error("the replication stream ended")]
    Stream(#[from] PgError),
    /// The server cannot send what comes next, and nothing behind it.
    #[error("the server cannot send {at}")]
    Unsendable {
        /// Where the stream ends.
        at: Unsent,
        /// What the server said.
        #[source]
        source: PgError,
    },
    /// The server sent what we cannot read; nothing is confirmed past it (I7).
    #[error("the message at {at} cannot be decoded")]
    Decode {
        /// Where in the log.
        at: Lsn,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// An outbox table lacks a column.
    #[error("an outbox table does not have the columns it should")]
    Columns(#[from] MissingColumn),
    /// A row cannot be read.
    #[error("an outbox row cannot be read")]
    Row(#[from] RouteError),
    /// The publication, or a table of it, was changed under us.
    #[error("{what}: rows inserted since may be missing from the stream")]
    PublicationChanged {
        /// What happened.
        what: String,
    },
    /// The server shuts down and waits for us, although there is nothing left to confirm.
    #[error("the database server is shutting down")]
    ServerStops,
    /// The end came before the last rows were on record as settled.
    #[error(
        "settled up to {settled}, but only {watermark} is on record; the rows in between come again"
    )]
    NotOnRecord {
        /// How far it is on record, and confirmed.
        watermark: Watermark,
        /// How far it is settled.
        settled: Watermark,
    },
    /// Dispatch state is another server's, or of another generation than when the session began.
    #[error("the session's history is over")]
    Store(#[source] StoreFailure),
}

/// Where a stream ends that the server cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// Within a transaction, at this row of it.
    Row {
        /// The position that the row would have.
        position: Position,
        /// The transaction's id.
        xid: u32,
    },
    /// Before the first row of a transaction: of which one, the server has not said.
    Behind(Position),
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { position, xid } => write!(f, "the row at {position} of transaction {xid}"),
            Self::Behind(position) => write!(f, "the transaction behind {position}"),
        }
    }
}

impl Unsent {
    /// The position of the row, or of the last one before it.
    #[must_use]
    pub const fn position(self) -> Position {
        match self {
            Self::Row { position, .. } | Self::Behind(position) => position,
        }
    }
}

impl PipelineError {
    /// The stream broke off. `next` is where its next row would be, within a transaction; `last` is the last
    /// row that came.
    pub(crate) fn of_stream(error: PgError, next: Option<(Position, u32)>, last: Position) -> Self {
        let is_permanent = matches!(&error, PgError::Server(answer) if answer.is_permanent());
        if !is_permanent {
            return Self::Stream(error);
        }
        let row = next.map(|(position, xid)| Unsent::Row { position, xid });
        Self::Unsendable { at: row.unwrap_or(Unsent::Behind(last)), source: error }
    }

    /// Whether a session ends for what came, with server and connection well.
    pub(crate) const fn is_of_a_row(&self) -> bool {
        match self {
            Self::Unsendable { .. } | Self::Decode { .. } | Self::Columns(_) | Self::Row(_) => true,
            Self::Stream(_)
            | Self::PublicationChanged { .. }
            | Self::NotOnRecord { .. }
            | Self::Store(_)
            | Self::ServerStops => false,
        }
    }

    /// Dispatch state cannot go on.
    pub(crate) fn of_store(failure: StoreFailure) -> Self {
        match failure {
            StoreFailure::ShuttingDown => Self::ServerStops,
            StoreFailure::Unavailable(_)
            | StoreFailure::OtherHistory(_)
            | StoreFailure::NotRecorded(_)
            | StoreFailure::TablesOutdated(_) => Self::Store(failure),
        }
    }
}

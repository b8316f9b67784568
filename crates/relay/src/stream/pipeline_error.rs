//! Why a session broke off.

use pgoutput_parser::{DecodeError, Lsn};
use walrelay_core::{MissingColumn, RouteError, Watermark};
use walrelay_outbox_store::StoreFailure;
use walrelay_pg_client::PgError;

/// Why a session broke off.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The connection, or the server behind it.
    #[error("the replication stream ended")]
    Stream(#[from] PgError),
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
    /// The publication was changed while the relay was running.
    #[error("the publication sent {what} at {at}; it must publish inserts only")]
    NotInsertOnly {
        /// The operation that was sent.
        what: &'static str,
        /// Where in the log.
        at: Lsn,
    },
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

impl PipelineError {
    /// The publication sent what it should not.
    pub(crate) fn not_insert_only(what: &'static str, at: Lsn) -> Self {
        Self::NotInsertOnly { what, at }
    }

    /// Whether a session ends for what came, with server and connection well.
    pub(crate) const fn is_of_a_row(&self) -> bool {
        match self {
            Self::Decode { .. } | Self::Columns(_) | Self::Row(_) | Self::NotInsertOnly { .. } => {
                true
            }
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

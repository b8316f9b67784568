//! The traits between the start of a session and the database. The crate outbox-admin implements
//! them for Postgres.
//!
//! Everything here is thin: each method sends one query and returns its answer. The decisions are
//! in [`session`](super::session), [`standby`](super::standby) and
//! [`supervisor`](super::supervisor), which the simulation runs over a scripted server.

use std::fmt;
use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio::io::{AsyncRead, AsyncWrite};
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_outbox_store::{Condition, Store};
use walrelay_pg_replication::{ReplicationConnection, SystemIdentity};

use crate::error::RelayError;
use crate::stream::outbox_tables::OutboxTables;
use crate::stream::wal_end::WalEnd;

pub trait Server: Sync {
    /// The transport of the replication connection.
    type Socket: AsyncRead + AsyncWrite + Unpin + Send;
    type Database: Database;

    /// Opens both connections.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<Connected<Self::Socket, Self::Database>, RelayError>> + Send;

    /// Records why the relay waits, for `walrelay status`, while no session is open. Nothing else
    /// depends on the record, so a failure is only logged. Returns whether it was recorded.
    fn note_wait(&self, _condition: &Condition) -> impl Future<Output = bool> + Send {
        std::future::ready(true)
    }
}

/// Both connections to one server.
#[derive(Debug)]
pub struct Connected<S, D> {
    /// Authenticated, not streaming yet.
    pub replication: ReplicationConnection<S>,
    /// Runs the checks first, and serves dispatch state later.
    pub database: D,
}

/// The queries and statements of a start over the ordinary connection.
pub trait Database: Send {
    /// Dispatch state, once this relay holds the slot.
    type Store: Store;

    /// Finishes the operation on record. Fails while another process works on the operation.
    fn finish_operation(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send {
        async { Ok(()) }
    }

    /// Rejects a server that is not set up for this relay. A stream without a live slot has fewer
    /// requirements, and nothing to check.
    fn check(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send {
        async { Ok(()) }
    }

    /// Returns the holder of the slot, if there is one. A slot of this connection alone has none.
    fn holder(&mut self) -> impl Future<Output = Result<Option<Holder>, RelayError>> + Send {
        async { Ok(None) }
    }

    /// Ends the session of a holder that [`holder`](Self::holder) has returned.
    fn end_holder(&mut self, _: &Holder) -> impl Future<Output = Result<(), RelayError>> + Send {
        async { Ok(()) }
    }

    /// Returns the settled position on the relay's own record. If the slot is behind that position,
    /// the stream starts there: a server before 17 moves the slot back at a clean restart. The
    /// commit of the record is after that position in the WAL. A server that has the record
    /// therefore has all WAL up to the position (I11).
    fn settled(&mut self) -> impl Future<Output = Result<Lsn, RelayError>> + Send;

    /// Returns the transaction index of the first row that the stream sends. A stream of the table
    /// may continue in the middle of a transaction.
    fn first_index(&self) -> u32 {
        0
    }

    /// Returns the outbox tables, if the stream may have rows of other tables also.
    fn outbox_tables(
        &mut self,
    ) -> impl Future<Output = Result<Option<OutboxTables>, RelayError>> + Send {
        async { Ok(None) }
    }

    /// Returns the position of the slot and the end of WAL.
    fn positions(&mut self) -> impl Future<Output = Result<Positions, RelayError>> + Send;

    /// Starts to measure the end of WAL until the receiver is dropped. The measurements become more
    /// frequent near `budget`. A stream with a fixed end has nothing to measure.
    fn measure_wal(&self, _: WalBudgetLimit) -> WalEnd {
        WalEnd::measured(async |_| {})
    }

    /// Opens dispatch state for the new session, on this server.
    fn into_store(
        self,
        identity: SystemIdentity,
    ) -> impl Future<Output = Result<Self::Store, RelayError>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// The position of the slot.
    pub confirmed_flush: Lsn,
    pub wal_end: Lsn,
    /// The amount of WAL that the server retains for a slot.
    pub retention: WalRetentionLimit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    /// The holder's `application_name`, if our role may read it.
    pub application_name: Option<String>,
    pub signs: SignsOfLife,
}

/// A holder's signs of life. A change of any of them proves that the holder is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignsOfLife {
    /// The confirmed position of the slot.
    pub confirmed_flush: Option<Lsn>,
    /// The time of the holder's last status update, if our role may read it.
    pub replied_at: Option<SystemTime>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.application_name {
            Some(name) => write!(f, "{name} (server process {})", self.pid),
            None => write!(f, "server process {}", self.pid),
        }
    }
}

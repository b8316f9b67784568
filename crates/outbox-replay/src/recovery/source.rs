//! Sessions over the table: an in-memory socket serves the stream, and dispatch state is the
//! relay's own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::io::DuplexStream;
use tokio::task::JoinSet;
use walrelay_core::WalRetentionLimit;
use walrelay_errors::Chain;
use walrelay_outbox_store::{DispatchStore, RecordedRow, SessionStore, read_relay_row};
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_outbox, sql};
use walrelay_pg_replication::{
    ReplicationConnection, ServerIdentity, Startup, SystemIdentity, read_server_identity,
};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Positions, Server};
use walrelay_relay::settings::Settings;

use super::progress::Progress;
use super::progress_reporting::ProgressReporting;
use super::read_failures::ReadFailures;
use super::reader::{PostgresRowReader, RowReader};
use super::recovery_work::RecoveryWork;
use super::stream::TableStream;
use super::transaction_grouping::TransactionGrouping;
use crate::relay_connection::lease_of;
use crate::rows::source_row::read_server_text;
use crate::rows::unsettled_rows::SourceTable;

/// The buffer of the in-memory socket in bytes. A full buffer creates back-pressure.
const SOCKET_BYTES: usize = 256 << 10;

/// The table in place of the slot.
#[derive(Debug)]
pub(super) struct TableSource<'a> {
    settings: &'a Settings,
    rest: RecoveryWork,
    tables: Vec<SourceTable>,
    progress: Progress,
    serving: TableStreamServer,
}

impl<'a> TableSource<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        rest: RecoveryWork,
        (tables, progress): (Vec<SourceTable>, Progress),
    ) -> Self {
        Self { settings, rest, tables, progress, serving: TableStreamServer::default() }
    }

    /// Returns the rows to read that dispatch state already has, at their positions in the stream.
    /// There may be millions.
    async fn recorded(&self, client: &SqlClient) -> Result<Arc<[RecordedRow]>, RelayError> {
        let slot = self.settings.relay.outbox.slot.as_str();
        let place = self.progress.place();
        let (first, mut before) = match &place {
            Some(place) => (place.tables.len().saturating_sub(1), place.number),
            None => (0, 0),
        };
        let mut recorded = Vec::new();
        for (number, table) in self.tables.iter().enumerate().skip(first) {
            let mut gap = self.rest.gap.clone();
            let from = place.as_ref().filter(|_| number == first);
            gap.scope.from = from.map(|at| at.row.clone());
            let rows = gap.count(client, table).await?;
            let known = gap.recorded(client, (table, slot), &self.tables).await?;
            tracing::info!(table = %table.name, rows, recorded = known.len(), "rows that may not have been settled");
            recorded.extend(known.into_iter().map(|(n, event_id)| {
                let position =
                    Position { commit_lsn: self.rest.commit_lsn(), tx_index: before + n };
                RecordedRow { position, event_id, parks: None }
            }));
            before += u32::try_from(rows).unwrap_or(u32::MAX);
        }
        Ok(recorded.into())
    }
}

impl Server for TableSource<'_> {
    type Socket = DuplexStream;
    type Database = TableDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, TableDatabase>, RelayError> {
        let Settings { connect, relay, pubsub, .. } = self.settings;
        let reading = reading(connect).await?;
        let server = read_server_identity(&reading.client).await?;
        let sql = connect_outbox(connect).await.map_err(RelayError::Connect)?;
        let row = read_relay_row(&sql, &relay.outbox.slot).await?;
        let recorded = self.recorded(&reading.client).await?;
        let commit_lsn = self.rest.commit_lsn();
        self.progress.begin(commit_lsn, recorded);
        let first_index = self.progress.number();
        let read = (self.rest.gap.clone(), self.tables.clone());
        let batches = TransactionGrouping::One { commit_lsn, progress: self.progress.clone() };
        let stream = TableStream::new(reading, read, self.rest.consistent_point, batches);
        let replication = self.serving.serve(stream).await?;
        let store = DispatchStore::new(relay.outbox.slot.clone()).with_on_dead(relay.on_dead);
        let store = store.before(self.rest.consistent_point);
        Ok(Connected {
            replication,
            database: TableDatabase {
                sql,
                connect: connect.clone(),
                store,
                server,
                lease: lease_of(pubsub),
                generation: row.map(|row| row.generation),
                consistent_point: self.rest.consistent_point,
                first_index,
                progress: self.progress.clone(),
            },
        })
    }
}

/// Opens a connection that reads rows as text in the formats that the router reads, as a
/// replication connection does.
pub(crate) async fn reading(connect: &ConnectConfig) -> Result<PostgresRowReader, RelayError> {
    let client = connect_outbox(connect).await.map_err(RelayError::Connect)?;
    client
        .batch_execute(sql!("source.sql", "session"))
        .await
        .map_err(RelayError::sql("set up the session"))?;
    let text = read_server_text(&client).await?;
    Ok(PostgresRowReader { client, text })
}

/// Serves the other side of an in-memory socket, one stream at a time.
#[derive(Debug, Default)]
pub struct TableStreamServer {
    streams: Mutex<JoinSet<()>>,
    failures: ReadFailures,
}

impl TableStreamServer {
    /// Serves a stream, and connects to it. The stream of the previous session is dropped.
    ///
    /// # Errors
    ///
    /// The connection failed, or earlier streams failed so often at one row that this one would
    /// fail also.
    pub async fn serve<R: RowReader>(
        &self,
        stream: TableStream<R>,
    ) -> Result<ReplicationConnection<DuplexStream>, RelayError> {
        self.failures.begin()?;
        let (ours, theirs) = tokio::io::duplex(SOCKET_BYTES);
        {
            let mut serving = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            *serving = JoinSet::new();
            serving.spawn(serve(stream.telling(self.failures.clone()), theirs));
        }
        let replication = ReplicationConnection::handshake(ours, &Startup::default()).await;
        replication.map_err(RelayError::Connect)
    }
}

async fn serve<R: RowReader>(stream: TableStream<R>, socket: DuplexStream) {
    if let Err(error) = stream.serve(socket).await {
        tracing::warn!(error = %Chain(&error), "the table is no longer read");
    }
}

/// The ordinary connection beside the stream.
#[derive(Debug)]
pub(super) struct TableDatabase {
    sql: SqlClient,
    connect: ConnectConfig,
    store: DispatchStore,
    server: ServerIdentity,
    lease: Duration,
    generation: Option<u64>,
    consistent_point: Lsn,
    first_index: u32,
    progress: Progress,
}

impl Database for TableDatabase {
    type Store = ProgressReporting<SessionStore>;

    fn first_index(&self) -> u32 {
        self.first_index
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(Lsn::ZERO)
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let wal_end = self.consistent_point;
        let confirmed_flush = Lsn::new(wal_end.as_u64() - 1);
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    async fn into_store(
        self,
        _: SystemIdentity,
    ) -> Result<ProgressReporting<SessionStore>, RelayError> {
        let Self { sql, connect, store, server, lease, generation, progress, .. } = self;
        let begun = SessionStore::begin(connect, sql, store, server, lease).await;
        let begun = begun.map_err(RelayError::Store)?;
        Ok(ProgressReporting::new(begun.of_generation(generation), progress))
    }
}

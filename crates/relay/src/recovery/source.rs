//! Sessions over the table: the socket is one in memory, dispatch state is the relay's own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::io::DuplexStream;
use tokio::task::JoinSet;
use walrelay_core::{Retention, WalBudgetLimit};
use walrelay_postgres::{
    ConnectConfig, DispatchStore, GapTable, RecordedRow, ReplicationConnection, ServerIdentity,
    SessionStore, SqlClient, Startup, SystemIdentity, connect_sql, read_relay_row,
    read_server_identity,
};

use super::batches::Batches;
use super::rest::Rest;
use super::stream::TableStream;
use crate::error::RelayError;
use crate::lifecycle::server::{Connected, Database, Holder, Positions, Server, lease_of};
use crate::policy::Chain;
use crate::settings::Settings;
use crate::stream::wal_end::WalEnd;

/// What a row and its frame take at most beside what the loop reads at once: back-pressure.
const SOCKET_BYTES: usize = 256 << 10;

/// The table in place of the slot.
#[derive(Debug)]
pub(super) struct TableSource<'a> {
    settings: &'a Settings,
    rest: Rest,
    tables: Vec<GapTable>,
    /// There may be millions: one list for every session.
    recorded: Arc<[RecordedRow]>,
    /// The other end of the socket, one at a time.
    serving: Serving,
}

impl<'a> TableSource<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        rest: Rest,
        (tables, recorded): (Vec<GapTable>, Arc<[RecordedRow]>),
    ) -> Self {
        Self { settings, rest, tables, recorded, serving: Serving::default() }
    }
}

impl Server for TableSource<'_> {
    type Socket = DuplexStream;
    type Database = TableDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, TableDatabase>, RelayError> {
        let Settings { connect, relay, pubsub, .. } = self.settings;
        let reading = reading(connect).await?;
        let server = read_server_identity(&reading).await.map_err(RelayError::Survey)?;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        let row = read_relay_row(&sql, &relay.outbox.slot).await.map_err(RelayError::Survey)?;
        let stream = TableStream {
            client: reading,
            gap: self.rest.gap.clone(),
            tables: self.tables.clone(),
            end: self.rest.consistent_point,
            batches: Batches::One { commit_lsn: Lsn::new(self.rest.consistent_point.as_u64() - 1) },
        };
        let replication = self.serving.serve(stream).await?;
        let store = DispatchStore::new(relay.outbox.slot.clone()).with_on_dead(relay.on_dead);
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
                recorded: Arc::clone(&self.recorded),
            },
        })
    }
}

/// A connection that reads rows as text in the forms the router reads, as over a replication connection.
pub(crate) async fn reading(connect: &ConnectConfig) -> Result<SqlClient, RelayError> {
    let client = connect_sql(connect).await.map_err(RelayError::Connect)?;
    let settings = "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET bytea_output = 'hex';
                    SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0";
    client.batch_execute(settings).await.map_err(RelayError::sql("set up the session"))?;
    Ok(client)
}

/// The other end of a socket in memory, one at a time.
#[derive(Debug, Default)]
pub struct Serving(Mutex<JoinSet<()>>);

impl Serving {
    /// Serves a stream, and connects to it. The session before is over, and so is its stream.
    pub(crate) async fn serve(
        &self,
        stream: TableStream,
    ) -> Result<ReplicationConnection<DuplexStream>, RelayError> {
        let (ours, theirs) = tokio::io::duplex(SOCKET_BYTES);
        {
            let mut serving = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *serving = JoinSet::new();
            serving.spawn(serve(stream, theirs));
        }
        let startup =
            Startup { user: "", database: "", application_name: "", password: None, options: "" };
        let replication = ReplicationConnection::handshake(ours, &startup).await;
        replication.map_err(RelayError::Connect)
    }
}

async fn serve(stream: TableStream, socket: DuplexStream) {
    if let Err(error) = stream.serve(socket).await {
        tracing::warn!(error = %Chain(&error), "the table is no longer read");
    }
}

/// The ordinary connection beside it.
#[derive(Debug)]
pub(super) struct TableDatabase {
    sql: SqlClient,
    connect: ConnectConfig,
    store: DispatchStore,
    server: ServerIdentity,
    lease: Duration,
    generation: Option<u64>,
    consistent_point: Lsn,
    recorded: Arc<[RecordedRow]>,
}

impl Database for TableDatabase {
    type Store = SessionStore;

    async fn check(&mut self) -> Result<(), RelayError> {
        Ok(())
    }

    async fn holder(&mut self) -> Result<Option<Holder>, RelayError> {
        Ok(None)
    }

    async fn end_holder(&mut self, _: &Holder) -> Result<(), RelayError> {
        Ok(())
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(Lsn::ZERO)
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let wal_end = self.consistent_point;
        let confirmed_flush = Lsn::new(wal_end.as_u64() - 1);
        Ok(Positions { confirmed_flush, wal_end, retention: Retention::Unlimited })
    }

    fn measure_log(&self, _: WalBudgetLimit) -> WalEnd {
        WalEnd::measured(async |_| {})
    }

    async fn into_store(self, _: SystemIdentity) -> Result<SessionStore, RelayError> {
        let Self { sql, connect, store, server, lease, generation, recorded, .. } = self;
        let begun = SessionStore::begin(connect, sql, store, server, lease).await;
        let begun = begun.map_err(RelayError::Store)?;
        Ok(begun.of_generation(generation).having_recorded(recorded))
    }
}

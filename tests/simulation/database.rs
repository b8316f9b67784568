//! The database at the start of a relay: the scripted server, and the table beside it.

use std::sync::Mutex;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_pg_client::PgError;
use walrelay_pg_replication::{ReplicationConnection, Startup, SystemIdentity};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{
    Connected, Database, Holder, Positions, Server, SignsOfLife,
};

use walrelay_relay::stream::wal_end::{Measured, WalEnd, WalMeasurementSender};
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use crate::harness::Harness;
use crate::judge::Event;
use crate::plan::Plan;
use crate::table::SessionTable;
use crate::world::{InboxDatabase, locked};

/// The scripted server, as one process connects to it.
pub(crate) struct SimulatedServer<'a, F> {
    pub(crate) world: &'a InboxDatabase<F>,
    pub(crate) process: u64,
}

/// An ordinary connection to the scripted server.
pub(crate) struct SimulatedDatabase<'a, F> {
    world: &'a InboxDatabase<F>,
    process: u64,
    /// The generation on record, read before the check for an operation on record.
    generation: u64,
}

/// As in production.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn gone() -> RelayError {
    RelayError::Connect(PgError::EndedByServer)
}

impl<'a, F: Harness> Server for SimulatedServer<'a, F> {
    type Socket = DuplexStream;
    type Database = SimulatedDatabase<'a, F>;

    async fn connect(&self) -> Result<Connected<DuplexStream, Self::Database>, RelayError> {
        let (world, process) = (self.world, self.process);
        let replication = world.connect(process).await?;
        let database = SimulatedDatabase { world, process, generation: 0 };
        Ok(Connected { replication, database })
    }
}

impl<F: Harness> InboxDatabase<F> {
    /// Opens a replication connection for this process.
    pub(crate) async fn connect(
        &self,
        process: u64,
    ) -> Result<ReplicationConnection<DuplexStream>, RelayError> {
        let seed = locked(&self.seed).fork();
        connect(&self.server, (&self.plan, seed), &self.connections, process).await
    }
}

/// Opens a replication connection to the server for this process.
pub(crate) async fn connect(
    server: &ScriptedServer,
    (plan, seed): (&Plan, Seed),
    connections: &Mutex<JoinSet<()>>,
    process: u64,
) -> Result<ReplicationConnection<DuplexStream>, RelayError> {
    if !server.is_up() {
        return Err(gone());
    }
    let (ours, theirs) = duplex(plan.socket_bytes);
    let (server, manners) = (server.clone(), plan.manners);
    {
        let mut connections = locked(connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move { server.serve(theirs, manners, seed).await });
    }
    let application_name = process.to_string();
    let startup = Startup {
        user: "walrelay",
        database: "app",
        application_name: &application_name,
        password: None,
        options: "",
        ..Startup::default()
    };
    let handshake = ReplicationConnection::handshake(ours, &startup);
    let connected = timeout(CONNECT_TIMEOUT, handshake).await.map_err(|_| gone())?;
    connected.map_err(RelayError::Connect)
}

impl<F: Harness> SimulatedDatabase<'_, F> {
    fn answer<T>(&self, answer: T) -> Result<T, RelayError> {
        match self.world.server.is_up() {
            true => Ok(answer),
            false => Err(gone()),
        }
    }
}

impl<'a, F: Harness> Database for SimulatedDatabase<'a, F> {
    type Store = F::Store;

    async fn finish_operation(&mut self) -> Result<(), RelayError> {
        self.generation = self.answer(self.world.table.generation())?;
        self.world.finish_reset(self.process).await
    }

    async fn check(&mut self) -> Result<(), RelayError> {
        if self.world.fitting.reads_parked_keys_early() {
            self.world.table.read_early(self.process);
        }
        match self.world.server.is_in_recovery() {
            true => Err(RelayError::InRecovery),
            false => self.answer(()),
        }
    }

    async fn holder(&mut self) -> Result<Option<Holder>, RelayError> {
        let server = &self.world.server;
        let signs = SignsOfLife {
            confirmed_flush: Some(Lsn::new(server.confirmed_flush())),
            replied_at: server.replied_at(),
        };
        self.answer(server.holder().map(|holder| Holder {
            pid: holder.pid,
            application_name: Some(holder.application_name),
            signs,
        }))
    }

    async fn end_holder(&mut self, holder: &Holder) -> Result<(), RelayError> {
        self.world.judge.took_over(holder.pid);
        self.world.server.end_session(holder.pid);
        self.answer(())
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        let settled = self.answer(self.world.table.settled())?;
        self.world.judge.record_was_read(self.process, settled.as_u64());
        match self.world.fitting.disregards_the_record() {
            true => Ok(Lsn::ZERO),
            false => Ok(settled),
        }
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let server = &self.world.server;
        let confirmed_flush = Lsn::new(server.confirmed_flush());
        let wal_end = Lsn::new(server.wal_end());
        self.answer(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    fn measure_wal(&self, _: WalBudgetLimit) -> WalEnd {
        let server = self.world.server.clone();
        let limit = WalRetentionLimit::Unlimited;
        WalEnd::measured(async move |teller| measure_wal(&server, limit, &teller).await)
    }

    async fn into_store(self, _: SystemIdentity) -> Result<F::Store, RelayError> {
        let Self { world, process, generation } = self;
        world.judge.note(Event::Opened { process });
        let table = SessionTable::new(world.table.clone(), process).of_generation(generation);
        self.answer(world.fitting.store(table))
    }
}

/// Measures like the service, but always at the interval that is used near the budget.
pub(crate) async fn measure_wal(
    server: &ScriptedServer,
    limit: WalRetentionLimit,
    teller: &WalMeasurementSender,
) {
    loop {
        sleep(Duration::from_millis(100)).await;
        if server.is_up() {
            let wal_end = Lsn::new(server.wal_end());
            teller.send_replace(Measured::new(wal_end, limit));
        }
    }
}

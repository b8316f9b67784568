//! The new slot, as one process streams it, and the producers that write beside the recovery.

use std::sync::Arc;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::io::DuplexStream;
use tokio::time::sleep;
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_pg_replication::SystemIdentity;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Positions, Server};
use walrelay_relay::stream::wal_end::WalEnd;
use walrelay_testkit::walsender::{Log, RowRecord};

use super::disk::Row;
use super::table::values_of;
use super::world::{BUDGET_BYTES, InboxDatabase, random_key};
use crate::database::{connect, measure_wal};
use crate::judge::Fault;
use crate::table::SessionTable;
use crate::world::locked;

/// The WAL that the server retains for a slot.
const LIMIT_BYTES: u64 = 2 * BUDGET_BYTES;
const LIMIT: WalRetentionLimit = WalRetentionLimit::Bytes(LIMIT_BYTES);

/// The pause between two writes of the producers.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

/// What producers write while a process starts: it connects, and takes a second of refusals for an outage.
const WRITTEN_AT_START: u64 = BUDGET_BYTES;

impl InboxDatabase {
    /// Commits a row to the table and to the WAL.
    pub(super) fn commit(&self, key: u32) -> Row {
        let row = self.disk.commit(key);
        let columns: Vec<Option<String>> = values_of(&row).map(Some).into();
        let mut transaction = self.server.write(Log::begin);
        self.server.write(|log| log.insert(&mut transaction, columns, RowRecord::Own));
        self.server.write(|log| log.commit(transaction));
        self.judge.committed(row);
        row
    }

    /// Drops the slot once nobody holds it.
    pub(super) async fn drop_slot(&self) {
        while self.server.drop_slot().is_err() {
            self.server.cut();
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Writes rows and other WAL beside a process. Some rows are deleted at once.
    pub(super) async fn write_beside(&self) {
        loop {
            sleep(WRITE_PAUSE).await;
            self.steps.pass().await;
            let (key, is_row, is_deleted, bytes) = {
                let mut seed = locked(&self.seed);
                let key = random_key(&mut seed);
                (key, seed.chance(300), seed.chance(500), seed.between(0, 8 << 10))
            };
            self.server.write(|log| log.write(bytes));
            if !self.disk.has_slot() {
                continue;
            }
            let row = is_row.then(|| self.commit(key));
            if let Some(row) = row.filter(|_| is_deleted) {
                self.disk.delete(row);
            }
            let retained = self.server.wal_end() - self.server.confirmed_flush();
            if retained > LIMIT_BYTES + WRITTEN_AT_START {
                self.judge.find(Fault::OverWalBudget, format!("{retained} bytes"));
            }
        }
    }
}

/// The slot in place of the table.
pub(super) struct SlotServer {
    pub(super) world: Arc<InboxDatabase>,
    pub(super) process: u64,
    /// Rows at this position and later wait until the recovery is finished.
    pub(super) point: u64,
}

impl Server for SlotServer {
    type Socket = DuplexStream;
    type Database = SlotDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, SlotDatabase>, RelayError> {
        let Self { world, process, point } = self;
        world.steps.pass().await;
        let seed = locked(&world.seed).fork();
        let plan = (&world.plan, seed);
        let replication = connect(&world.server, plan, &world.connections, *process).await?;
        let database = SlotDatabase { world: Arc::clone(world), process: *process, point: *point };
        Ok(Connected { replication, database })
    }
}

/// The ordinary connection beside the slot.
pub(super) struct SlotDatabase {
    world: Arc<InboxDatabase>,
    process: u64,
    point: u64,
}

impl Database for SlotDatabase {
    type Store = SessionTable;

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(self.world.dispatch.settled())
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let server = &self.world.server;
        let confirmed_flush = Lsn::new(server.confirmed_flush());
        Ok(Positions { confirmed_flush, wal_end: Lsn::new(server.wal_end()), retention: LIMIT })
    }

    fn measure_wal(&self, _: WalBudgetLimit) -> WalEnd {
        let server = self.world.server.clone();
        WalEnd::measured(async move |teller| measure_wal(&server, LIMIT, &teller).await)
    }

    async fn into_store(self, _: SystemIdentity) -> Result<SessionTable, RelayError> {
        self.world.steps.pass().await;
        Ok(SessionTable::new(self.world.dispatch.clone().before(self.point), self.process))
    }
}

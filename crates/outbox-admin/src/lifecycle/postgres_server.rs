//! The Postgres server of a relay: each method sends one query and returns its answer.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio_postgres::types::PgLsn;
use walrelay_core::WalBudgetLimit;
use walrelay_errors::{BoxedError, Chain, Code, Coded};
use walrelay_outbox_replay::operation_resumer::OperationResumer;
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::{lease_of, open_replication};
use walrelay_outbox_store::{
    Condition, DispatchStore, Outbox, PublicationWatch, SessionStore, note_wait, read_relay_row,
    read_table_ids,
};
use walrelay_pg_client::{ConnectConfig, SqlClient, Stream, connect_outbox, connect_sql, sql};
use walrelay_pg_replication::{RETENTION, ServerIdentity, SystemIdentity, retention_of};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{
    Connected, Database, Holder, Positions, Server, SignsOfLife,
};
use walrelay_relay::observe::health::Health;
use walrelay_relay::settings::{RelaySettings, Settings};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::outbox_tables::OutboxTables;
use walrelay_relay::stream::wal_end::WalEnd;

use crate::lifecycle::{preflight_check, wal_monitor};

/// The time limit for recording why the relay waits.
const NOTE_WAIT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Postgres<'a> {
    settings: &'a Settings,
    health: Health,
    purpose: SessionPurpose,
}

/// The purpose of streaming the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPurpose {
    /// The service. It finishes an operation on record first.
    Service,
    /// A command that has begun an operation. The session is a part of that operation.
    Command,
    /// The recovery on record, whose new slot begins at this position. The session records the rows
    /// of the slot.
    Recovery {
        /// Rows at this position and later wait until the recovery is finished.
        point: Lsn,
    },
}

impl<'a> Postgres<'a> {
    /// Connects to the server in `settings`. `health` receives the operation on record.
    #[must_use]
    pub fn new(settings: &'a Settings, health: Health) -> Self {
        Self { settings, health, purpose: SessionPurpose::Service }
    }

    /// Returns the same server for the command that has begun the operation on record.
    #[must_use]
    pub fn for_a_command(self) -> Self {
        Self { purpose: SessionPurpose::Command, ..self }
    }

    /// Returns the same server for the recovery on record, whose new slot begins at this position.
    #[must_use]
    pub fn during_recovery(self, point: Lsn) -> Self {
        Self { purpose: SessionPurpose::Recovery { point }, ..self }
    }
}

impl Server for Postgres<'_> {
    type Socket = Stream;
    type Database = PostgresDatabase;

    async fn connect(&self) -> Result<Connected<Stream, PostgresDatabase>, RelayError> {
        let Settings { connect, relay, pubsub, .. } = self.settings;
        let sql = connect_outbox(connect).await.map_err(RelayError::Connect)?;
        let mut replication = open_replication(connect, relay).await?;
        // This comes first, because it recognises a pooler.
        let system = replication.identify_system().await.map_err(RelayError::Connect)?;
        let server = replication.server_identity(&system).await.map_err(RelayError::Connect)?;
        let store = DispatchStore::new(relay.outbox.slot.clone()).with_on_dead(relay.on_dead);
        let store = match self.purpose {
            SessionPurpose::Service | SessionPurpose::Command => store,
            SessionPurpose::Recovery { point } => store.before(point),
        };
        let lease = lease_of(pubsub);
        let (connect, relay) = (connect.clone(), relay.clone());
        // A slot of this name may be new, with a new publication. The record shows what has changed
        // since the session before.
        let Outbox { publication, tables, .. } = relay.outbox.clone();
        let watch = PublicationWatch::new(publication, tables);
        Ok(Connected {
            replication,
            database: PostgresDatabase {
                sql,
                connect,
                relay,
                health: self.health.clone(),
                purpose: self.purpose,
                store,
                server,
                lease,
                watch,
                checked_from: Lsn::ZERO,
                generation: None,
            },
        })
    }

    async fn note_wait(&self, condition: &Condition) -> bool {
        let (connect, slot) = (&self.settings.connect, &self.settings.relay.outbox.slot);
        let noting = async {
            let client = connect_sql(connect).await.map_err(RelayError::Connect)?;
            let noted = note_wait(&client, slot, condition).await;
            client.close().await;
            noted.map_err(|error| RelayError::Survey(BoxedError::new(error)))
        };
        match tokio::time::timeout(NOTE_WAIT_TIMEOUT, noting).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::debug!(error = %Chain(&error), "the wait is not recorded"),
            Err(_) => tracing::debug!("the wait is not recorded: no answer in time"),
        }
        false
    }
}

/// An ordinary connection to the server.
#[derive(Debug)]
pub struct PostgresDatabase {
    sql: SqlClient,
    connect: ConnectConfig,
    relay: RelaySettings,
    health: Health,
    purpose: SessionPurpose,
    store: DispatchStore,
    /// The server that the replication connection reached.
    server: ServerIdentity,
    lease: Duration,
    watch: PublicationWatch,
    /// The end of WAL before the publication was checked.
    checked_from: Lsn,
    /// The generation of the relay's row, read before the check for an operation on record. An
    /// operation that begins later has another generation.
    generation: Option<u64>,
}

impl Database for PostgresDatabase {
    type Store = SessionStore;

    async fn finish_operation(&mut self) -> Result<(), RelayError> {
        let slot = &self.relay.outbox.slot;
        match read_relay_row(&self.sql, slot).await {
            Ok(row) => self.generation = row.map(|row| row.generation),
            // The check of everything else comes next and reports the missing part.
            Err(error) if matches!(error.code(), Code::TableMissing | Code::PermissionMissing) => {
                return Ok(());
            }
            Err(error) => return Err(RelayError::survey(error)),
        }
        match self.purpose {
            SessionPurpose::Service => {}
            SessionPurpose::Command | SessionPurpose::Recovery { .. } => return Ok(()),
        }
        let finisher = OperationResumer {
            client: &self.sql,
            connect: &self.connect,
            slot,
            health: &self.health,
            // The caller drops this future if the start is cancelled, so no stop signal is needed.
            stop: &Shutdown::new(),
        };
        match finisher.finish().await? {
            Outcome::Nothing
            | Outcome::Finished(_)
            | Outcome::ResetCancelled(_)
            | Outcome::ReleaseCancelled(_) => Ok(()),
            Outcome::Pending(recovery) => Err(RelayError::Setup {
                code: Code::RecoveryPending,
                summary: recovery.describe(slot),
            }),
            Outcome::Elsewhere { operation, what } => {
                Err(RelayError::survey(operation.unfinished(slot, what)))
            }
        }
    }

    async fn check(&mut self) -> Result<(), RelayError> {
        let read = self.sql.query_typed_one(sql!("postgres_server.sql", "end_of_wal"), &[]).await;
        let row = read.map_err(RelayError::sql("read the end of the WAL"))?;
        self.checked_from =
            row.get::<_, Option<PgLsn>>(0).map_or(Lsn::ZERO, |it| Lsn::new(it.into()));
        // Before the comparison with the record, so that no change between the two is missed.
        self.watch.begin(&self.sql).await?;
        preflight_check::gate(&self.sql, &self.relay).await
    }

    async fn outbox_tables(&mut self) -> Result<Option<OutboxTables>, RelayError> {
        let Outbox { tables: names, publication, .. } = self.relay.outbox.clone();
        let ids = read_table_ids(&self.sql, &names).await?;
        Ok(Some(OutboxTables { names, ids, publication, checked_from: self.checked_from }))
    }

    async fn holder(&mut self) -> Result<Option<Holder>, RelayError> {
        let row = self
            .sql
            .query_opt(sql!("postgres_server.sql", "holder"), &[&self.relay.outbox.slot])
            .await
            .map_err(RelayError::sql("read who holds the slot"))?;
        Ok(row.map(|row| {
            let confirmed_flush = row.get::<_, Option<PgLsn>>(2).map(|lsn| Lsn::new(lsn.into()));
            let signs = SignsOfLife { confirmed_flush, replied_at: row.get(3) };
            Holder { pid: row.get(0), application_name: row.get(1), signs }
        }))
    }

    async fn end_holder(&mut self, holder: &Holder) -> Result<(), RelayError> {
        self.sql
            .execute("SELECT pg_terminate_backend($1)", &[&holder.pid])
            .await
            .map(drop)
            .map_err(|source| RelayError::TakeOver { holder: holder.to_string(), source })
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        let row = read_relay_row(&self.sql, &self.relay.outbox.slot).await?;
        Ok(row.map_or(Lsn::ZERO, |row| row.settled_lsn))
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        // spliced: the expressions of the slot's retention.
        let sql = format!(
            "SELECT confirmed_flush_lsn, pg_current_wal_flush_lsn(), {RETENTION}
               FROM pg_replication_slots WHERE slot_name = $1"
        );
        let row = self
            .sql
            .query_one(&sql, &[&self.relay.outbox.slot])
            .await
            .map_err(RelayError::sql("read the slot's position"))?;
        let lsn = |at: PgLsn| Lsn::new(at.into());
        let retention = retention_of(row.get(2));
        Ok(Positions { confirmed_flush: lsn(row.get(0)), wal_end: lsn(row.get(1)), retention })
    }

    fn measure_wal(&self, budget: WalBudgetLimit) -> WalEnd {
        wal_monitor::start(self.connect.clone(), self.relay.outbox.slot.clone(), budget)
    }

    async fn into_store(self, _: SystemIdentity) -> Result<SessionStore, RelayError> {
        let Self { sql, connect, store, server, lease, watch, generation, .. } = self;
        let begun = SessionStore::begin(connect, sql, store, server, lease).await;
        Ok(begun.map_err(RelayError::Store)?.watching(watch).of_generation(generation))
    }
}

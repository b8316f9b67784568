//! The seam between a session's start and the database, and the real database behind it.
//!
//! Everything here is thin: a question, its answer. What the answers lead to is decided in
//! [`session`](super::session), [`standby`](super::standby) and [`supervisor`](super::supervisor),
//! which the simulation runs over a scripted server.

use std::fmt;
use std::time::{Duration, SystemTime};

use pgoutput_parser::Lsn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::types::PgLsn;
use walrelay_core::{Retention, WalBudgetLimit};
use walrelay_outbox_admin::AdminError;
use walrelay_outbox_store::{DispatchStore, PublicationWatch, SessionStore, Store, read_relay_row};
use walrelay_pg_client::{ConnectConfig, SqlClient, Stream, connect_sql};
use walrelay_pg_replication::{
    RETENTION, ReplicationConnection, ServerIdentity, SystemIdentity, retention_of,
};

use crate::error::RelayError;
use crate::lifecycle::finisher::Finisher;
use crate::lifecycle::operation::Outcome;
use crate::lifecycle::{gate, log_gauge};
use crate::observe::health::Health;
use crate::policy::Kind;
use crate::settings::{PubSubSettings, RelaySettings, Settings};
use crate::shutdown::Shutdown;
use crate::stream::wal_end::WalEnd;

/// Opens the connections of a session.
pub trait Server: Sync {
    /// What the replication connection runs over.
    type Socket: AsyncRead + AsyncWrite + Unpin + Send;
    /// The ordinary connection beside it.
    type Database: Database;

    /// Opens both connections.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<Connected<Self::Socket, Self::Database>, RelayError>> + Send;
}

/// Both connections to one server.
#[derive(Debug)]
pub struct Connected<S, D> {
    /// Authenticated, not streaming yet.
    pub replication: ReplicationConnection<S>,
    /// Used for checks first, and for dispatch state later.
    pub database: D,
}

/// What a start asks and does over the ordinary connection.
pub trait Database: Send {
    /// Dispatch state, once the slot is ours.
    type Store: Store;

    /// Finishes what an operator has begun with the slot; refuses to go on while another does.
    fn finish_operation(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send {
        async { Ok(()) }
    }

    /// Refuses a server that is not set up for this relay.
    fn check(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Who holds the slot, if somebody does.
    fn holder(&mut self) -> impl Future<Output = Result<Option<Holder>, RelayError>> + Send;

    /// Ends the holder's session.
    fn end_holder(
        &mut self,
        holder: &Holder,
    ) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// How far the slot is settled by the relay's own record: the stream starts there if the slot
    /// stands behind it, as it does after a clean restart of a server before 17. The record's own
    /// commit lies behind that position in the log, so whoever reads it has everything up to there
    /// (I11).
    fn settled(&mut self) -> impl Future<Output = Result<Lsn, RelayError>> + Send;

    /// The index of the first row that the stream sends in its transaction. A stream of the table may
    /// continue in the middle of one.
    fn first_index(&self) -> u32 {
        0
    }

    /// The positions of the slot and of the end of the log.
    fn positions(&mut self) -> impl Future<Output = Result<Positions, RelayError>> + Send;

    /// Begins to measure where the server writes; it ends with whoever listens. `budget` says how
    /// close to look.
    fn measure_log(&self, budget: WalBudgetLimit) -> WalEnd;

    /// Dispatch state of the session that begins, on this server.
    fn into_store(
        self,
        identity: SystemIdentity,
    ) -> impl Future<Output = Result<Self::Store, RelayError>> + Send;
}

/// Where a slot is, and how far the log reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// The slot's position.
    pub confirmed_flush: Lsn,
    /// The end of the log.
    pub wal_end: Lsn,
    /// How much log the server keeps for a slot.
    pub retention: Retention,
}

/// Who holds the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its server process.
    pub pid: i32,
    /// Its `application_name`, if our role may see it.
    pub application_name: Option<String>,
    /// Values that change while the holder is alive.
    pub signs: Signs,
}

/// A holder's signs of life; which of them moves does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signs {
    /// How far its slot is confirmed.
    pub confirmed_flush: Option<Lsn>,
    /// When its last status update was written, if our role may see it.
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

/// How long claimed rows stay ours: longer than a publish call may take.
pub(crate) fn lease_of(pubsub: &PubSubSettings) -> Duration {
    pubsub.publisher.request_timeout + Duration::from_secs(15)
}

/// The Postgres server of the service.
#[derive(Debug)]
pub struct Postgres<'a> {
    settings: &'a Settings,
    health: Health,
    purpose: Purpose,
    watch: PublicationWatch,
}

/// What the slot is streamed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The service: what has been begun with the slot comes first.
    Service,
    /// A command has begun something with the slot, and this is part of it.
    Command,
}

impl<'a> Postgres<'a> {
    /// The server that the settings name; `health` is told what has been begun with the slot.
    #[must_use]
    pub fn new(settings: &'a Settings, health: Health) -> Self {
        let outbox = &settings.relay.outbox;
        let watch = PublicationWatch::new(outbox.publication.clone(), outbox.tables.clone());
        Self { settings, health, purpose: Purpose::Service, watch }
    }

    /// The same, of the command that has begun what is on record about the slot.
    #[must_use]
    pub fn for_a_command(self) -> Self {
        Self { purpose: Purpose::Command, ..self }
    }
}

impl Server for Postgres<'_> {
    type Socket = Stream;
    type Database = PostgresDatabase;

    async fn connect(&self) -> Result<Connected<Stream, PostgresDatabase>, RelayError> {
        let Settings { connect, relay, pubsub, .. } = self.settings;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        // A relay has to record how far it is wherever the role may: otherwise the slot would retain WAL for ever.
        sql.batch_execute("SET default_transaction_read_only = off")
            .await
            .map_err(RelayError::sql("let the session write"))?;
        let mut replication = open_replication(connect, relay).await?;
        // First, because it recognises a pooler.
        let system = replication.identify_system().await.map_err(RelayError::Connect)?;
        let server = replication.server_identity(&system).await.map_err(RelayError::Connect)?;
        let store = DispatchStore::new(relay.outbox.slot.clone()).with_on_dead(relay.on_dead);
        let lease = lease_of(pubsub);
        let (connect, relay, watch) = (connect.clone(), relay.clone(), self.watch.clone());
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
                generation: None,
            },
        })
    }
}

/// A replication connection with the settings of its session.
pub(crate) async fn open_replication(
    connect: &ConnectConfig,
    relay: &RelaySettings,
) -> Result<ReplicationConnection<Stream>, RelayError> {
    let sender_timeout = format!("{}ms", relay.sender_timeout().as_millis());
    // Rows arrive as text in the forms the router reads, whatever the role's or database's
    // settings.
    let settings = [
        ("wal_sender_timeout", sender_timeout.as_str()),
        ("DateStyle", "ISO"),
        ("TimeZone", "UTC"),
        ("bytea_output", "hex"),
    ];
    ReplicationConnection::connect(connect, &settings).await.map_err(RelayError::Connect)
}

/// An ordinary connection to it.
#[derive(Debug)]
pub struct PostgresDatabase {
    sql: SqlClient,
    connect: ConnectConfig,
    relay: RelaySettings,
    health: Health,
    purpose: Purpose,
    store: DispatchStore,
    /// Where the replication connection is.
    server: ServerIdentity,
    lease: Duration,
    watch: PublicationWatch,
    /// Of the relay's row before it was looked whether something is begun: what is begun from then on has
    /// another.
    generation: Option<u64>,
}

impl Database for PostgresDatabase {
    type Store = SessionStore;

    async fn finish_operation(&mut self) -> Result<(), RelayError> {
        let slot = &self.relay.outbox.slot;
        match read_relay_row(&self.sql, slot).await {
            Ok(row) => self.generation = row.map(|row| row.generation),
            // The look at everything else, which comes next, says what is missing.
            Err(error) if matches!(Kind::from(&error), Kind::TableMissing | Kind::Privilege) => {
                return Ok(());
            }
            Err(error) => return Err(RelayError::survey(error)),
        }
        if self.purpose == Purpose::Command {
            return Ok(());
        }
        let finisher = Finisher {
            client: &self.sql,
            connect: &self.connect,
            slot,
            health: &self.health,
            // A start that is given up is dropped where it waits.
            stop: &Shutdown::new(),
        };
        match finisher.finish().await? {
            Outcome::Nothing
            | Outcome::Finished(_)
            | Outcome::GivenUp(_)
            | Outcome::CalledOff(_) => Ok(()),
            Outcome::Pending(recovery) => Err(RelayError::Setup {
                kind: Kind::RecoveryPending,
                summary: recovery.describe(slot),
            }),
            Outcome::Elsewhere { what } => {
                let slot = slot.clone();
                Err(RelayError::Survey(AdminError::OperationUnfinished { slot, what }))
            }
        }
    }

    async fn check(&mut self) -> Result<(), RelayError> {
        gate::gate(&self.sql, &self.relay).await
    }

    async fn holder(&mut self) -> Result<Option<Holder>, RelayError> {
        let row = self
            .sql
            .query_opt(
                "SELECT s.active_pid, nullif(a.application_name, ''), s.confirmed_flush_lsn,
                        r.reply_time
                   FROM pg_replication_slots s
                   LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
                   LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
                  WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL",
                &[&self.relay.outbox.slot],
            )
            .await
            .map_err(RelayError::sql("read who holds the slot"))?;
        Ok(row.map(|row| {
            let confirmed_flush = row.get::<_, Option<PgLsn>>(2).map(|lsn| Lsn::new(lsn.into()));
            let signs = Signs { confirmed_flush, replied_at: row.get(3) };
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
        let row =
            read_relay_row(&self.sql, &self.relay.outbox.slot).await.map_err(RelayError::survey)?;
        // A row from before timelines were on record may be of another history.
        let row = row.filter(|row| row.timeline > 0);
        Ok(row.map_or(Lsn::ZERO, |row| row.settled_lsn))
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let row = self
            .sql
            .query_one(
                &format!(
                    "SELECT confirmed_flush_lsn, pg_current_wal_flush_lsn(), {RETENTION}
                       FROM pg_replication_slots WHERE slot_name = $1"
                ),
                &[&self.relay.outbox.slot],
            )
            .await
            .map_err(RelayError::sql("read the slot's position"))?;
        let lsn = |at: PgLsn| Lsn::new(at.into());
        let retention = retention_of(row.get(2));
        Ok(Positions { confirmed_flush: lsn(row.get(0)), wal_end: lsn(row.get(1)), retention })
    }

    fn measure_log(&self, budget: WalBudgetLimit) -> WalEnd {
        log_gauge::start(self.connect.clone(), self.relay.outbox.slot.clone(), budget)
    }

    async fn into_store(self, _: SystemIdentity) -> Result<SessionStore, RelayError> {
        let Self { sql, connect, store, server, lease, watch, generation, .. } = self;
        let begun = SessionStore::begin(connect, sql, store, server, lease).await;
        Ok(begun.map_err(RelayError::Store)?.watching(watch).of_generation(generation))
    }
}

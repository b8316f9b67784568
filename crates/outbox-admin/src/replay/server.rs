//! A session over a temporary copy of an anchor, which is dropped with its connection.

use pgoutput_parser::Lsn;
use tokio_postgres::types::PgLsn;
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_outbox_store::StoreError;
use walrelay_pg_client::{
    ConnectConfig, PgError, ServerErrorKind, SqlClient, Stream, connect_sql, quote_literal,
};
use walrelay_pg_replication::{ServerIdentity, SystemIdentity};

use super::replay_progress::Tally;
use super::store::{Keeping, ProgressTable, ReplayStore};
use super::{Replay, replay_slot_name};
use crate::lifecycle::postgres_server::open_replication;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Holder, Positions, Server};
use walrelay_relay::settings::Settings;
use walrelay_relay::stream::wal_end::WalEnd;

/// The server of a replay. Each connection has its own copy of the anchor.
#[derive(Debug)]
pub struct AnchorCopy<'a> {
    /// The connection and relay settings.
    pub settings: &'a Settings,
    /// The replay.
    pub replay: &'a Replay,
    /// The progress.
    pub tally: Tally,
}

impl Server for AnchorCopy<'_> {
    type Socket = Stream;
    type Database = CopyDatabase;

    async fn connect(&self) -> Result<Connected<Stream, CopyDatabase>, RelayError> {
        let Settings { connect, relay, .. } = self.settings;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        let mut replication = open_replication(connect, relay).await?;
        let system = replication.identify_system().await.map_err(RelayError::Connect)?;
        let server = replication.server_identity(&system).await.map_err(RelayError::Connect)?;
        // The streaming connection creates the temporary slot, so the slot ends with that
        // connection.
        let slot = replay_slot_name(&relay.outbox.slot, &self.replay.id);
        let copy = format!(
            "SELECT pg_copy_logical_replication_slot({}, {}, true)",
            quote_literal(&self.replay.anchor_slot),
            quote_literal(&slot)
        );
        replication.simple_query(&copy).await.map_err(|error| self.of_copying(error))?;
        Ok(Connected {
            replication,
            database: CopyDatabase {
                sql,
                slot,
                connect: connect.clone(),
                server,
                replay: self.replay.clone(),
                tally: self.tally.clone(),
            },
        })
    }
}

impl AnchorCopy<'_> {
    fn of_copying(&self, error: PgError) -> RelayError {
        let kind = error.server().map(walrelay_pg_client::ServerError::kind);
        let anchor = self.replay.anchor_slot.clone();
        match kind {
            Some(ServerErrorKind::NotInState) => {
                RelayError::survey(crate::admin_error::AdminError::Store(StoreError::AnchorLost {
                    anchor,
                }))
            }
            Some(_) | None => RelayError::Connect(error),
        }
    }
}

/// The ordinary connection beside the stream.
#[derive(Debug)]
pub struct CopyDatabase {
    sql: SqlClient,
    /// The name of the temporary slot.
    slot: String,
    connect: ConnectConfig,
    server: ServerIdentity,
    replay: Replay,
    tally: Tally,
}

impl Database for CopyDatabase {
    type Store = ReplayStore<ProgressTable>;

    /// A replay has fewer requirements than `run`, so there is nothing to check.
    async fn check(&mut self) -> Result<(), RelayError> {
        Ok(())
    }

    /// The copy belongs to its own connection.
    async fn holder(&mut self) -> Result<Option<Holder>, RelayError> {
        Ok(None)
    }

    async fn end_holder(&mut self, _: &Holder) -> Result<(), RelayError> {
        Ok(())
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(self.replay.start.max(self.tally.settled()))
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let row = self
            .sql
            .query_one(
                "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1",
                &[&self.slot],
            )
            .await
            .map_err(RelayError::sql("read the position of the anchor's copy"))?;
        let confirmed_flush = Lsn::new(row.get::<_, PgLsn>(0).into());
        let wal_end = self.replay.goal;
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    fn measure_wal(&self, _: WalBudgetLimit) -> WalEnd {
        WalEnd::measured(async |_| {})
    }

    async fn into_store(self, _: SystemIdentity) -> Result<ReplayStore<ProgressTable>, RelayError> {
        let Self { sql, connect, server, replay, tally, .. } = self;
        let Replay { id, dead_rows, keeping, .. } = replay;
        let record = ProgressTable { connect, client: Some(sql), server, id };
        let progress = (keeping == Keeping::OnRecord).then_some(record);
        Ok(ReplayStore { progress, dead_rows, tally, marks: None })
    }
}

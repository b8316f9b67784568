//! The ordinary connection of a replay, beside its stream.

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use walrelay_core::WalRetentionLimit;
use walrelay_outbox_store::{Outbox, read_table_ids};
use walrelay_pg_client::{ConnectConfig, SqlClient, sql};
use walrelay_pg_replication::{ServerIdentity, SystemIdentity};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Database, Positions};
use walrelay_relay::stream::outbox_tables::OutboxTables;

use super::Replay;
use super::in_place::HistoryWriter;
use super::replay_progress::Tally;
use super::store::{Keeping, ProgressTable, ReplayStore};
use crate::recovery::ResumePoints;

/// The ordinary connection of a replay. Its slot is a copy that belongs to its own connection, or
/// there is none.
#[derive(Debug)]
pub(super) struct ReplayDatabase {
    pub(super) sql: SqlClient,
    pub(super) connect: ConnectConfig,
    pub(super) server: ServerIdentity,
    pub(super) replay: Replay,
    pub(super) tally: Tally,
    /// Everything before this position was published when the session connected.
    pub(super) start: Lsn,
    /// The copy of the anchor. `None` if the tables are read.
    pub(super) copy: Option<String>,
    pub(super) outbox: Outbox,
    /// The aggregates to resume at, if the tables are read.
    pub(super) marks: Option<ResumePoints>,
    /// Records dead rows of a replay in place.
    pub(super) history: Option<HistoryWriter>,
}

impl Database for ReplayDatabase {
    type Store = ReplayStore<ProgressTable>;

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(self.start)
    }

    async fn outbox_tables(&mut self) -> Result<Option<OutboxTables>, RelayError> {
        if self.copy.is_none() {
            return Ok(None);
        }
        let Outbox { tables: names, publication, .. } = self.outbox.clone();
        let ids = read_table_ids(&self.sql, &names).await?;
        // The relay has passed these rows, so the rows of other tables are ignored.
        let checked_from = Lsn::new(u64::MAX);
        Ok(Some(OutboxTables { names, ids, publication, checked_from }))
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let confirmed_flush = match &self.copy {
            None => self.start,
            Some(slot) => {
                let sql = sql!("replay_database.sql", "copy_position");
                let row = self.sql.query_typed_one(sql, &[(slot, Type::TEXT)]).await;
                let row = row.map_err(RelayError::sql("read the position of the anchor's copy"))?;
                Lsn::new(row.get::<_, PgLsn>(0).into())
            }
        };
        let wal_end = self.replay.goal;
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    async fn into_store(self, _: SystemIdentity) -> Result<Self::Store, RelayError> {
        let Self { sql, connect, server, replay, tally, marks, history, .. } = self;
        let Replay { id, dead_rows, keeping, .. } = replay;
        let record = ProgressTable { connect, client: Some(sql), server, id, history };
        let progress = (keeping == Keeping::OnRecord).then_some(record);
        Ok(ReplayStore { progress, dead_rows, tally, marks })
    }
}

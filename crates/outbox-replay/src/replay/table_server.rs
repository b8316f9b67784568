//! The server of a replay of the tables, in place of an anchor's copy.
//!
//! The rows form transactions of the stream, a hundred rows each. Their positions are artificial
//! and precede every position in the WAL. The last aggregate of each transaction marks the settled
//! rows, and a replay resumes there.

use pgoutput_parser::Lsn;
use tokio::io::DuplexStream;
use walrelay_core::{ColumnFilter, ReplaySelection};
use walrelay_outbox_store::DispatchStore;
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::read_server_identity;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Server};
use walrelay_relay::settings::Settings;

use super::Replay;
use super::in_place::HistoryWriter;
use super::record::{ReplayProgress, advance_replay};
use super::replay_database::ReplayDatabase;
use super::replay_progress::Tally;
use super::store::Keeping;
use crate::recovery::{ResumePoints, TableStream, TableStreamServer, TransactionGrouping, reading};
use crate::rows::unsettled_rows::{SourceTable, UnsettledRows};

/// An end behind the position of every row of the tables.
pub(super) const TABLE_END: Lsn = Lsn::new(1 << 40);

/// Returns a selection of the whole stream. The query on the tables already excludes other rows.
pub(super) fn whole_stream() -> ReplaySelection {
    let (from, to) = (Lsn::ZERO, Lsn::new(u64::MAX));
    ReplaySelection { from, to, since: None, until: None, matching: ColumnFilter::default() }
}

#[derive(Debug)]
pub(super) struct TableServer<'a> {
    pub(super) settings: &'a Settings,
    pub(super) replay: &'a Replay,
    pub(super) gap: UnsettledRows,
    pub(super) tables: Vec<SourceTable>,
    pub(super) tally: Tally,
    pub(super) history: Option<HistoryWriter>,
    pub(super) beginning: Beginning,
    pub(super) serving: TableStreamServer,
}

/// Where each connection starts.
#[derive(Debug, Clone)]
pub(super) enum Beginning {
    /// At the aggregate at which the previous connection stopped.
    Marked(ResumePoints),
    /// At the first row. Rows that earlier connections inserted are removed, so rows have the same
    /// positions every time.
    Anew(DispatchStore),
}

impl Server for TableServer<'_> {
    type Socket = DuplexStream;
    type Database = ReplayDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, ReplayDatabase>, RelayError> {
        let connect = &self.settings.connect;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        let server = read_server_identity(&sql).await?;
        let (start, marks) = match &self.beginning {
            Beginning::Marked(marks) => {
                (self.replay.start.max(self.tally.settled()), Some(marks.clone()))
            }
            Beginning::Anew(store) => {
                self.remove_added(store).await?;
                (Lsn::ZERO, None)
            }
        };
        let batches =
            TransactionGrouping::Many { after: start, marks: marks.clone().unwrap_or_default() };
        if marks.is_some() {
            self.note_beginning(&sql, batches.first(TABLE_END).commit_lsn()).await?;
        }
        let reader = reading(connect).await?;
        let read = (self.gap.clone(), self.tables.clone());
        let stream = TableStream::new(reader, read, TABLE_END, batches);
        Ok(Connected {
            replication: self.serving.serve(stream).await?,
            database: ReplayDatabase {
                sql,
                connect: connect.clone(),
                server,
                replay: self.replay.clone(),
                tally: self.tally.clone(),
                start,
                copy: None,
                outbox: self.settings.relay.outbox.clone(),
                marks,
                history: self.history.clone(),
            },
        })
    }
}

impl TableServer<'_> {
    /// Records the first position before any row uses it. A replay that resumes after a crash
    /// uses greater positions, even if no progress was recorded. Published positions are therefore
    /// never reused for other rows.
    async fn note_beginning(&self, sql: &SqlClient, first: Lsn) -> Result<(), RelayError> {
        self.tally.settled_to(first);
        if self.replay.keeping == Keeping::OnRecord {
            let rows = self.tally.published();
            let progress = ReplayProgress { settled: first, rows, resume_at: None };
            let noted = advance_replay(sql, &self.replay.id, &progress).await;
            noted?;
        }
        Ok(())
    }

    async fn remove_added(&self, store: &DispatchStore) -> Result<(), RelayError> {
        const FAILED: &str = "start the replay again";
        let mut client = connect_sql(&self.settings.connect).await.map_err(RelayError::Connect)?;
        let transaction = client.transaction().await.map_err(RelayError::sql(FAILED))?;
        let removed = store.remove_replayed(&transaction, &self.replay.id).await;
        removed?;
        transaction.commit().await.map_err(RelayError::sql(FAILED))?;
        client.close().await;
        Ok(())
    }
}

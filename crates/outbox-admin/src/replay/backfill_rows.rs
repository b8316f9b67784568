//! A backfill: rows of the table, instead of a range of WAL, to another topic.
//!
//! The rows form transactions of the stream, a thousand rows each. Their positions are artificial
//! and precede every position in the WAL. The last aggregate of each transaction marks the settled
//! rows, and a backfill resumes there.

use crate::replay_row::advance_replay;
use crate::rows::unsettled_rows::{AggregateKey, SourceTable, UnsettledRows};
use pgoutput_parser::{Lsn, PgTimestamp};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use walrelay_core::{ColumnFilter, ReplaySelection, WalBudgetLimit, WalRetentionLimit};
use walrelay_outbox_store::DispatchStore;
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::{ServerIdentity, SystemIdentity, read_server_identity};

use super::Replay;
use super::replay_progress::Tally;
use super::request::{Destination, Rate, UnreadableRequest};
use super::store::{DeadRows, Keeping, ProgressTable, ReplayStore};
use crate::recovery::{
    ResumePoint, ResumePoints, TableStream, TableStreamServer, TransactionGrouping,
};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Holder, Positions, Server};
use walrelay_relay::settings::Settings;
use walrelay_relay::stream::wal_end::WalEnd;

/// The request of a backfill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillRequest {
    /// The destination.
    pub destination: Destination,
    /// The snapshot (`pg_snapshot`) that sees the rows to publish.
    pub snapshot: String,
    /// Only events of this time or later.
    pub since: Option<PgTimestamp>,
    /// Only rows with these values.
    pub matching: ColumnFilter,
    /// Only rows with these event ids. Empty selects all rows.
    pub event_ids: Vec<String>,
    /// The columns that order the rows of an aggregate. Empty means version, time and id.
    pub order_by: Vec<String>,
    /// The rate limit.
    pub rate: Option<Rate>,
    /// The treatment of rows that Pub/Sub never accepts.
    pub dead_rows: DeadRows,
    /// The point to resume at. `None` is the first row.
    pub resumption: Option<ResumePoint>,
}

impl BackfillRequest {
    /// Returns the stored form.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!({
            "table": true,
            "to_topic": self.destination.topic(),
            "in_place": self.destination == Destination::InPlace,
            "snapshot": self.snapshot,
            "since": self.since.map(PgTimestamp::as_micros),
            "aggregate_types": self.matching.aggregate_types,
            "aggregate_ids": self.matching.aggregate_ids,
            "event_ids": self.event_ids,
            "order_by": self.order_by,
            "rate": self.rate.map(Rate::per_second),
            "skip_dead": self.dead_rows == DeadRows::LeaveOut,
        })
        .to_string()
    }

    /// Parses the stored form.
    ///
    /// # Errors
    ///
    /// This version does not write such text, or it belongs to a replay of the WAL.
    pub fn from_json(text: &str) -> Result<Self, UnreadableRequest> {
        let value: Value = serde_json::from_str(text).map_err(|_| UnreadableRequest::of("JSON"))?;
        let snapshot = value.get("snapshot").and_then(Value::as_str).map(str::to_owned);
        let words = |name: &'static str| {
            let words = value.get(name).and_then(Value::as_array);
            let words = words.ok_or(UnreadableRequest::of(name))?;
            let one = |item: &Value| item.as_str().map(str::to_owned);
            let all: Option<Vec<String>> = words.iter().map(one).collect();
            all.ok_or(UnreadableRequest::of(name))
        };
        let rate = value.get("rate").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let leaves_out = value.get("skip_dead").and_then(Value::as_bool).unwrap_or(false);
        let resumption = value.get("from").and_then(|from| {
            let part = |name| from.get(name).and_then(Value::as_str).map(str::to_owned);
            Some(ResumePoint {
                table: usize::try_from(from.get("table")?.as_u64()?).ok()?,
                key: AggregateKey {
                    aggregate_type: part("aggregate_type")?,
                    aggregate_id: part("aggregate_id")?,
                },
            })
        });
        Ok(Self {
            destination: Destination::of(&value)?,
            snapshot: snapshot.ok_or(UnreadableRequest::of("snapshot"))?,
            since: value.get("since").and_then(Value::as_i64).map(PgTimestamp::from_micros),
            matching: ColumnFilter {
                aggregate_types: words("aggregate_types")?,
                aggregate_ids: words("aggregate_ids")?,
                event_types: Vec::new(),
            },
            event_ids: words("event_ids")?,
            order_by: words("order_by")?,
            rate: rate.and_then(Rate::new),
            dead_rows: if leaves_out { DeadRows::LeaveOut } else { DeadRows::Stop },
            resumption,
        })
    }

    /// Returns a selection of the whole stream. The query on the table already excludes other rows.
    #[must_use]
    pub fn selection() -> ReplaySelection {
        let (from, to) = (Lsn::ZERO, Lsn::new(u64::MAX));
        ReplaySelection { from, to, since: None, until: None, matching: ColumnFilter::default() }
    }
}

/// An end behind the position of every row of a backfill.
pub const BACKFILL_END: Lsn = Lsn::new(1 << 40);

/// The tables in place of an anchor's copy.
#[derive(Debug)]
pub struct BackfillServer<'a> {
    /// The connection and relay settings.
    pub settings: &'a Settings,
    /// The backfill as a replay.
    pub replay: &'a Replay,
    /// The selection of the rows.
    pub gap: UnsettledRows,
    /// The tables.
    pub tables: Vec<SourceTable>,
    /// The progress.
    pub tally: Tally,
    /// Where each connection starts.
    pub beginning: Beginning,
    /// Serves the other side of the socket.
    pub serving: TableStreamServer,
}

/// Where each connection starts.
#[derive(Debug, Clone)]
pub enum Beginning {
    /// At the aggregate at which the previous connection stopped.
    Marked(ResumePoints),
    /// At the first row. Rows that earlier connections inserted are removed, so rows have the same
    /// positions every time.
    Anew(DispatchStore),
}

impl Server for BackfillServer<'_> {
    type Socket = DuplexStream;
    type Database = BackfillDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, BackfillDatabase>, RelayError> {
        let connect = &self.settings.connect;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        let server = read_server_identity(&sql).await.map_err(RelayError::survey)?;
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
            self.note_beginning(&sql, batches.first(BACKFILL_END).commit_lsn()).await?;
        }
        let reader = crate::recovery::reading(connect).await?;
        let read = (self.gap.clone(), self.tables.clone());
        let stream = TableStream::new(reader, read, BACKFILL_END, batches);
        Ok(Connected {
            replication: self.serving.serve(stream).await?,
            database: BackfillDatabase {
                sql,
                server,
                settings: self.settings.clone(),
                replay: self.replay.clone(),
                tally: self.tally.clone(),
                start,
                marks,
            },
        })
    }
}

impl BackfillServer<'_> {
    /// Records the first position before any row uses it. A backfill that resumes after a crash
    /// uses greater positions, even if no progress was recorded. Published positions are therefore
    /// never reused for other rows.
    async fn note_beginning(&self, sql: &SqlClient, first: Lsn) -> Result<(), RelayError> {
        self.tally.settled_to(first);
        if self.replay.keeping == Keeping::OnRecord {
            let noted = (first, self.tally.published());
            let noted = advance_replay(sql, &self.replay.id, noted).await;
            noted.map_err(RelayError::survey)?;
        }
        Ok(())
    }

    async fn remove_added(&self, store: &DispatchStore) -> Result<(), RelayError> {
        const FAILED: &str = "begin a backfill anew";
        let mut client = connect_sql(&self.settings.connect).await.map_err(RelayError::Connect)?;
        let transaction = client.transaction().await.map_err(RelayError::sql(FAILED))?;
        let removed = store.remove_replayed(&transaction, &self.replay.id).await;
        removed.map_err(RelayError::survey)?;
        transaction.commit().await.map_err(RelayError::sql(FAILED))?;
        client.close().await;
        Ok(())
    }
}

/// The ordinary connection beside the stream.
#[derive(Debug)]
pub struct BackfillDatabase {
    sql: SqlClient,
    server: ServerIdentity,
    settings: Settings,
    replay: Replay,
    tally: Tally,
    /// The start of this connection.
    start: Lsn,
    marks: Option<ResumePoints>,
}

impl Database for BackfillDatabase {
    type Store = ReplayStore<ProgressTable>;

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
        Ok(self.start)
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let (confirmed_flush, wal_end) = (self.start, BACKFILL_END);
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    fn measure_wal(&self, _: WalBudgetLimit) -> WalEnd {
        WalEnd::measured(async |_| {})
    }

    async fn into_store(self, _: SystemIdentity) -> Result<ReplayStore<ProgressTable>, RelayError> {
        let Self { sql, server, settings, replay, tally, marks, .. } = self;
        let Replay { id, dead_rows, keeping, .. } = replay;
        let record = ProgressTable { connect: settings.connect, client: Some(sql), server, id };
        let progress = (keeping == Keeping::OnRecord).then_some(record);
        Ok(ReplayStore { progress, dead_rows, tally, marks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_read_back_as_it_was() {
        let request = BackfillRequest {
            destination: Destination::InPlace,
            snapshot: "5:9:7".into(),
            since: Some(PgTimestamp::from_micros(-5)),
            matching: ColumnFilter {
                aggregate_ids: vec!["a\"b".into()],
                ..ColumnFilter::default()
            },
            event_ids: vec!["e-1".into()],
            order_by: vec!["n".into()],
            rate: Rate::new(250),
            dead_rows: DeadRows::Stop,
            resumption: None,
        };
        assert_eq!(BackfillRequest::from_json(&request.to_json()), Ok(request));
        assert!(BackfillRequest::from_json("{}").is_err());
    }
}

//! A backfill: rows of the table, instead of a stretch of the log, to another topic.
//!
//! The rows come as transactions of the stream, a thousand rows each, at positions of their own that lie
//! before everything in the log. What is settled of them is known by the aggregate that a transaction
//! ends with: from there it is resumed.

use pgoutput_parser::{Lsn, PgTimestamp};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use walrelay_core::{Matching, Retention, Selection, WalBudgetLimit};
use walrelay_outbox_admin::{AggregateKey, Gap, GapTable, advance_replay};
use walrelay_outbox_store::DispatchStore;
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::{ServerIdentity, SystemIdentity, read_server_identity};

use super::Replay;
use super::request::{Destination, Rate, UnreadableRequest};
use super::store::{DeadRows, Keeping, OnRecord, ReplayStore};
use super::tally::Tally;
use crate::error::RelayError;
use crate::lifecycle::server::{Connected, Database, Holder, Positions, Server};
use crate::recovery::{Batches, Marks, Resumption, Serving, TableStream};
use crate::settings::Settings;
use crate::stream::wal_end::WalEnd;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsRequest {
    /// Where it publishes.
    pub destination: Destination,
    /// What is published: what this snapshot sees (`pg_snapshot`).
    pub snapshot: String,
    /// Events of this moment or later.
    pub since: Option<PgTimestamp>,
    /// Rows with these values.
    pub matching: Matching,
    /// Rows with these event ids; all where none is named.
    pub event_ids: Vec<String>,
    /// Columns that give the order within an aggregate; version, time and id where none is named.
    pub order_by: Vec<String>,
    /// How fast.
    pub rate: Option<Rate>,
    /// What becomes of rows that Pub/Sub would never take.
    pub dead_rows: DeadRows,
    /// Where it goes on, once that is not the first row.
    pub resumption: Option<Resumption>,
}

impl RowsRequest {
    /// As it is stored.
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

    /// What is stored.
    ///
    /// # Errors
    ///
    /// It is not what this version writes, or it is a replay of the log.
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
            Some(Resumption {
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
            matching: Matching {
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

    /// Everything that the stream has: what is left out is left out when the table is read.
    #[must_use]
    pub fn selection() -> Selection {
        let (from, to) = (Lsn::ZERO, Lsn::new(u64::MAX));
        Selection { from, to, since: None, until: None, matching: Matching::default() }
    }
}

/// Behind every position that a row of a backfill has.
pub const BACKFILL_END: Lsn = Lsn::new(1 << 40);

/// The tables in place of an anchor's copy.
#[derive(Debug)]
pub struct TableRows<'a> {
    /// How to connect, and as what.
    pub settings: &'a Settings,
    /// What is published, as a replay.
    pub replay: &'a Replay,
    /// Which rows.
    pub gap: Gap,
    /// Of these tables.
    pub tables: Vec<GapTable>,
    /// How far it has come.
    pub tally: Tally,
    /// Where each connection begins.
    pub beginning: Beginning,
    /// The other end of the socket.
    pub serving: Serving,
}

/// Where each connection begins.
#[derive(Debug, Clone)]
pub enum Beginning {
    /// With the aggregate where the one before has stopped.
    Marked(Marks),
    /// With the first row, and nothing is left of what others have added: rows have the same positions
    /// each time then.
    Anew(DispatchStore),
}

impl Server for TableRows<'_> {
    type Socket = DuplexStream;
    type Database = RowsDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, RowsDatabase>, RelayError> {
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
        let batches = Batches::Many { after: start, marks: marks.clone().unwrap_or_default() };
        if marks.is_some() {
            self.note_beginning(&sql, batches.first(BACKFILL_END).commit_lsn()).await?;
        }
        let reader = crate::recovery::reading(connect).await?;
        let read = (self.gap.clone(), self.tables.clone());
        let stream = TableStream::new(reader, read, BACKFILL_END, batches);
        Ok(Connected {
            replication: self.serving.serve(stream).await?,
            database: RowsDatabase {
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

impl TableRows<'_> {
    /// Positions are on record before they are given away: what goes on after a crash gives greater ones, also
    /// where nothing was noted between, so that other rows never have those of rows that went out.
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

/// The ordinary connection beside it.
#[derive(Debug)]
pub struct RowsDatabase {
    sql: SqlClient,
    server: ServerIdentity,
    settings: Settings,
    replay: Replay,
    tally: Tally,
    /// Where this connection begins.
    start: Lsn,
    marks: Option<Marks>,
}

impl Database for RowsDatabase {
    type Store = ReplayStore<OnRecord>;

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
        Ok(Positions { confirmed_flush, wal_end, retention: Retention::Unlimited })
    }

    fn measure_log(&self, _: WalBudgetLimit) -> WalEnd {
        WalEnd::measured(async |_| {})
    }

    async fn into_store(self, _: SystemIdentity) -> Result<ReplayStore<OnRecord>, RelayError> {
        let Self { sql, server, settings, replay, tally, marks, .. } = self;
        let Replay { id, dead_rows, keeping, .. } = replay;
        let record = OnRecord { connect: settings.connect, client: Some(sql), server, id };
        let progress = (keeping == Keeping::OnRecord).then_some(record);
        Ok(ReplayStore { progress, dead_rows, tally, marks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_read_back_as_it_was() {
        let request = RowsRequest {
            destination: Destination::InPlace,
            snapshot: "5:9:7".into(),
            since: Some(PgTimestamp::from_micros(-5)),
            matching: Matching { aggregate_ids: vec!["a\"b".into()], ..Matching::default() },
            event_ids: vec!["e-1".into()],
            order_by: vec!["n".into()],
            rate: Rate::new(250),
            dead_rows: DeadRows::Stop,
            resumption: None,
        };
        assert_eq!(RowsRequest::from_json(&request.to_json()), Ok(request));
        assert!(RowsRequest::from_json("{}").is_err());
    }
}

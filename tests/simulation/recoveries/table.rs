//! The table, as a process reads it, and dispatch state beside it.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use pgoutput_parser::{Lsn, Position};
use tokio::io::DuplexStream;
use walrelay_core::WalRetentionLimit;
use walrelay_outbox_replay::recovery::{
    Progress, ProgressReporting, RowReader, Rows, TableStream, TableStreamServer,
    TransactionGrouping,
};
use walrelay_outbox_replay::{
    AggregateKey, Scope, SettledRows, SourceRow, SourceTable, SourceValue, UnsettledRows,
};
use walrelay_outbox_store::RecordedRow;
use walrelay_pg_client::{QualifiedName, TableColumn};
use walrelay_pg_replication::SystemIdentity;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Positions, Server};

use super::bug::Bug;
use super::disk::{CreatedSlot, Row};
use super::world::InboxDatabase;
use crate::rows::TABLE;
use crate::table::SessionTable;
use crate::world::locked;

/// Returns the description of the table.
pub(super) fn described() -> SourceTable {
    let column = |(name, type_oid): &(&str, u32)| TableColumn {
        name: (*name).to_owned(),
        type_oid: *type_oid,
        type_modifier: -1,
    };
    SourceTable {
        name: QualifiedName::new(TABLE.schema, TABLE.name),
        oid: TABLE.relation_id,
        columns: TABLE.columns.iter().map(column).collect(),
        aggregate_type: Some("aggregatetype".to_owned()),
        aggregate_id: Some("aggregateid".to_owned()),
        order: vec!["version".to_owned(), "id".to_owned()],
        id: "id".to_owned(),
        occurred_at: None,
        row_filter: None,
    }
}

fn key_of(row: &Row) -> AggregateKey {
    AggregateKey { aggregate_type: "video".to_owned(), aggregate_id: format!("k{:03}", row.key) }
}

/// Returns the columns of a row as text.
pub(super) fn values_of(row: &Row) -> [String; 9] {
    let AggregateKey { aggregate_type, aggregate_id } = key_of(row);
    [
        format!("e{}", row.number),
        aggregate_type,
        aggregate_id,
        "made_up".to_owned(),
        row.version.to_string(),
        "1".to_owned(),
        "{}".to_owned(),
        "{}".to_owned(),
        "2026-01-01 12:00:00.000001+00".to_owned(),
    ]
}

fn gap_row(row: &Row) -> SourceRow {
    let values = values_of(row).map(|value| SourceValue::Text(value.into_bytes())).into();
    SourceRow { values, key: Some(key_of(row)) }
}

/// The rows of a slot, as one session reads them.
pub(super) struct Reader {
    world: Arc<InboxDatabase>,
    made: CreatedSlot,
}

/// The number of rows between two steps of reading.
const ROWS_OF_STEP: u32 = 16;

impl RowReader for Reader {
    async fn is_visible(&self, _: &UnsettledRows) -> Result<bool, RelayError> {
        self.world.steps.pass().await;
        Ok(true)
    }

    async fn rows(&self, gap: &UnsettledRows, _: &SourceTable) -> Result<Rows, RelayError> {
        let from = gap.scope.from.clone();
        let is_wanted = |row: &&Row| {
            from.as_ref().is_none_or(|from| {
                let version = from.order.first().cloned().flatten();
                let version: u32 = version.and_then(|text| text.parse().ok()).unwrap_or_default();
                (key_of(row).aggregate_id, row.version) >= (from.key.aggregate_id.clone(), version)
            })
        };
        let rows: Vec<Row> = self.made.rows.iter().filter(is_wanted).copied().collect();
        let world = Arc::clone(&self.world);
        let breaks_at = {
            let mut seed = locked(&world.seed);
            seed.chance(300).then(|| seed.count(0, rows.len()))
        };
        let sent = stream::iter(rows.into_iter().enumerate()).then(move |(index, row)| {
            let broken_off =
                || RelayError::TableStream { source: std::io::Error::other("made up") };
            let failure = (breaks_at == Some(index)).then(broken_off);
            send(Arc::clone(&world), row, failure)
        });
        Ok(sent.boxed())
    }
}

/// Returns a row, or the failure in its place.
async fn send(
    world: Arc<InboxDatabase>,
    row: Row,
    failure: Option<RelayError>,
) -> Result<SourceRow, RelayError> {
    if row.number.is_multiple_of(ROWS_OF_STEP) {
        world.steps.pass().await;
    }
    failure.map_or_else(|| Ok(gap_row(&row)), Err)
}

/// The table in place of the slot.
pub(super) struct TableServer {
    pub(super) world: Arc<InboxDatabase>,
    pub(super) process: u64,
    pub(super) made: CreatedSlot,
    pub(super) progress: Progress,
    pub(super) serving: TableStreamServer,
}

impl Server for TableServer {
    type Socket = DuplexStream;
    type Database = TableDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, TableDatabase>, RelayError> {
        let Self { world, process, made, progress, .. } = self;
        world.steps.pass().await;
        let commit_lsn = Lsn::new(made.consistent_point - 1);
        let known = world.in_dispatch_state();
        let first = progress.number();
        let recorded: Vec<RecordedRow> = (0..)
            .zip(&made.rows)
            .filter(|(index, row)| *index >= first && known.contains(&row.number))
            .map(|(tx_index, row)| RecordedRow {
                position: Position { commit_lsn, tx_index },
                event_id: format!("e{}", row.number),
                parks: None,
            })
            .collect();
        progress.begin(commit_lsn, recorded.into());
        let first_read = progress.number();
        world.judge.recorded(known);
        world.judge.reads_from(first_read);
        let gap = UnsettledRows {
            snapshot: made.snapshot(),
            settled: SettledRows::None,
            scope: Scope::default(),
        };
        let reader = Reader { world: Arc::clone(world), made: made.clone() };
        let batches = TransactionGrouping::One { commit_lsn, progress: progress.clone() };
        let end = Lsn::new(made.consistent_point);
        let stream = TableStream::new(reader, (gap, vec![described()]), end, batches);
        let replication = self.serving.serve(stream).await?;
        let database = TableDatabase {
            world: Arc::clone(world),
            process: *process,
            consistent_point: end,
            first_index: if world.bug == Some(Bug::NumbersFromZero) { 0 } else { first_read },
            progress: progress.clone(),
        };
        Ok(Connected { replication, database })
    }
}

/// The ordinary connection beside the stream.
pub(super) struct TableDatabase {
    world: Arc<InboxDatabase>,
    process: u64,
    consistent_point: Lsn,
    first_index: u32,
    progress: Progress,
}

impl Database for TableDatabase {
    type Store = ProgressReporting<SessionTable>;

    fn first_index(&self) -> u32 {
        self.first_index
    }

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(Lsn::ZERO)
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let wal_end = self.consistent_point;
        let confirmed_flush = Lsn::new(wal_end.as_u64() - 1);
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    async fn into_store(self, _: SystemIdentity) -> Result<Self::Store, RelayError> {
        self.world.steps.pass().await;
        let point = match self.world.bug {
            Some(Bug::SeesRowsOfTheSlot) => u64::MAX,
            _ => self.consistent_point.as_u64(),
        };
        let table = SessionTable::new(self.world.dispatch.clone().before(point), self.process);
        Ok(ProgressReporting::new(table, self.progress))
    }
}

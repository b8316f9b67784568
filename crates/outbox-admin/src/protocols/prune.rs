//! Deletes outbox rows that are old, confirmed and not parked. Of a partitioned
//! outbox it drops whole partitions in which all rows may go.
//!
//! The table has no LSN, but every committed transaction below `settled_xid` of `app_outbox_relay`
//! is settled. Rows whose transaction id cannot be compared with `settled_xid` stay.

mod archiver;
mod condition;
mod partitions;
mod retaining_slot;

use std::time::Duration;

use serde::Serialize;
use walrelay_core::ColumnNames;
use walrelay_outbox_store::{Outbox, read_recorded_system_identifier};
use walrelay_pg_client::{
    PgError, QualifiedName, SqlClient, SqlError, TableAccess, in_schema, quote_literal,
    refuse_hidden_rows,
};

use archiver::{ArchivedRows, Archiver, PruneSession};
use condition::{Condition, may_go, refusal};
use partitions::{DroppedPartitions, drop_partitions, droppable_partitions};
use retaining_slot::log_retaining_slot;

use super::conflicts::{Facts, Wanted};
use super::operator::{AdminSession, Change, Operator, PrunableTable, Step};
use super::preconditions::{every_shard, refuse_unrecorded};
use super::protocol_error::ProtocolError;
use super::table_columns::{column_of, time_column_of};
use super::table_rows::TableRows;
use crate::archive::{Archive, ArchiveStore};
use crate::init::unstreamed_guard;
use crate::partitions::is_partitioned;
use walrelay_outbox_replay::AdminError;

/// Rows deleted in one transaction, few enough to hold locks only briefly.
const BATCH_ROWS: u64 = 10_000;

#[derive(Debug, Clone, Copy)]
pub struct PruneOrder<'a> {
    pub outbox: &'a Outbox,
    pub columns: &'a ColumnNames,
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// Whether rows are deleted or only counted, which needs other permissions.
    pub access: TableAccess,
    /// Where rows are written before they are deleted.
    pub archive: Option<&'a Archive>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PrunedTable {
    pub table: String,
    /// Number of deleted rows, without those of dropped partitions.
    pub deleted_rows: u64,
    pub dropped_partitions: Vec<String>,
    /// Rows that were archived, with those of dropped partitions.
    pub archived_rows: u64,
}

#[derive(Default)]
struct Deleted {
    rows: u64,
    archived: ArchivedRows,
    /// Whether rows may be left that are old enough.
    has_more: bool,
}

/// Deletes rows table by table. Returns `None` after a dry run.
///
/// # Errors
///
/// The relay has not recorded which rows are settled, or an operation or a replay needs old rows.
pub async fn prune<O: Operator>(
    session: &AdminSession<'_, O>,
    order: PruneOrder<'_>,
) -> Result<Option<Vec<PrunedTable>>, ProtocolError> {
    let client = session.client;
    refuse_unready(client, order).await?;
    let conditions = conditions_on(client, order).await?;
    let change = async || {
        let mut tables = Vec::new();
        for condition in &conditions {
            tables.push(prunable(client, condition).await?);
        }
        Ok(Change::Prune { tables })
    };
    if !session.agree(change).await? {
        return Ok(None);
    }
    let store = open_archive(order).await?;
    let deleting = PruneSession { client, archive: store.as_ref() };
    let mut pruned = Vec::new();
    for condition in &conditions {
        pruned.push(prune_table(session, &deleting, condition).await?);
    }
    Ok(Some(pruned))
}

async fn open_archive(order: PruneOrder<'_>) -> Result<Option<ArchiveStore>, ProtocolError> {
    match order.archive {
        Some(archive) => Ok(Some(ArchiveStore::open(archive).await?)),
        None => Ok(None),
    }
}

async fn prune_table<O: Operator>(
    session: &AdminSession<'_, O>,
    deleting: &PruneSession<'_>,
    condition: &Condition,
) -> Result<PrunedTable, ProtocolError> {
    let table = condition.table.to_string();
    let DroppedPartitions { names: dropped_partitions, later, archived } =
        drop_partitions(deleting, condition).await?;
    for partition in &dropped_partitions {
        let (table, partition) = (table.clone(), partition.clone());
        session.report(&Step::PartitionDropped { table, partition })?;
    }
    let (mut deleted_rows, mut archived_rows) = (0, archived.rows);
    loop {
        let deleted = deleting.delete_some(condition, &later).await?;
        deleted_rows += deleted.rows;
        archived_rows += deleted.archived.rows;
        if !deleted.has_more {
            break;
        }
    }
    log_retaining_slot(deleting.client, condition).await?;
    let deleted = TableRows { table: table.clone(), rows: deleted_rows };
    session.report(&Step::RowsDeleted(deleted))?;
    Ok(PrunedTable { table, deleted_rows, dropped_partitions, archived_rows })
}

/// The effect of one step of periodic retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PruneStep {
    pub(crate) rows: u64,
    pub(crate) partitions: u64,
    /// Rows archived, with those of dropped partitions.
    pub(crate) archived_rows: u64,
    /// Whether rows may be left that are old enough.
    pub(crate) has_more: bool,
}

/// A run of periodic retention, in steps.
pub(crate) struct PruneRun<'a> {
    order: PruneOrder<'a>,
    /// None before the first step, and without an archive.
    store: Option<ArchiveStore>,
    /// For each table, the partitions that a later run drops. None before the first step, which
    /// drops the partitions of this run.
    later: Option<Vec<Vec<String>>>,
}

impl<'a> PruneRun<'a> {
    pub(crate) const fn new(order: PruneOrder<'a>) -> Self {
        Self { order, store: None, later: None }
    }

    /// Checks the preconditions, and deletes some rows of each table in a short transaction. The
    /// first step also drops partitions.
    pub(crate) async fn step(&mut self, client: &SqlClient) -> Result<PruneStep, ProtocolError> {
        refuse_unready(client, self.order).await?;
        let conditions = conditions_on(client, self.order).await?;
        if self.store.is_none() {
            self.store = open_archive(self.order).await?;
        }
        let deleting = PruneSession { client, archive: self.store.as_ref() };
        let mut step = PruneStep { rows: 0, partitions: 0, archived_rows: 0, has_more: false };
        let later = match self.later.take() {
            Some(later) => later,
            None => drop_all(&deleting, &conditions, &mut step).await?,
        };
        for (condition, partitions) in conditions.iter().zip(&later) {
            let deleted = deleting.delete_some(condition, partitions).await?;
            step.rows += deleted.rows;
            step.archived_rows += deleted.archived.rows;
            step.has_more |= deleted.has_more;
        }
        self.later = Some(later);
        if !step.has_more {
            for condition in &conditions {
                log_retaining_slot(client, condition).await?;
            }
        }
        Ok(step)
    }
}

/// Drops the partitions of all tables in which all rows may go. Returns those that a later run
/// drops.
async fn drop_all(
    deleting: &PruneSession<'_>,
    conditions: &[Condition],
    step: &mut PruneStep,
) -> Result<Vec<Vec<String>>, ProtocolError> {
    let mut later = Vec::new();
    for condition in conditions {
        let dropped = drop_partitions(deleting, condition).await?;
        for partition in &dropped.names {
            tracing::info!(partition, "a partition with only old rows is dropped");
        }
        step.partitions += dropped.names.len() as u64;
        step.archived_rows += dropped.archived.rows;
        later.push(dropped.later);
    }
    Ok(later)
}

/// Refuses while rows may be needed, or it is not known which rows are settled.
async fn refuse_unready(client: &SqlClient, order: PruneOrder<'_>) -> Result<(), ProtocolError> {
    let Outbox { tables, .. } = order.outbox;
    // Each shard settles its own rows, and a shard that never ran has settled none.
    for shard in every_shard(client, order.outbox).await? {
        refuse_unrecorded(client, &shard.slot).await?;
        refuse_other_history(client, &shard.slot).await?;
    }
    refuse_hidden_rows(client, tables, order.access).await?;
    for table in tables {
        // Rows of inheritance children are never touched.
        if is_partitioned(client, table).await? {
            client.batch_execute(&unstreamed_guard::sql(table)).await.map_err(PgError::from)?;
        }
    }
    let facts = Facts::of_schema(client).await.map_err(|error| denied(tables, error))?;
    facts.refuse(client, Wanted::Prune).await
}

/// Names the permission to delete rows if the role may not even read what is under way.
fn denied(tables: &[QualifiedName], error: AdminError) -> ProtocolError {
    match (error, tables.first()) {
        (AdminError::Sql(SqlError::Sql { source, .. }), Some(table)) => refusal(table, source),
        (error, _) => error.into(),
    }
}

async fn conditions_on(
    client: &SqlClient,
    order: PruneOrder<'_>,
) -> Result<Vec<Condition>, ProtocolError> {
    let mut conditions = Vec::new();
    for table in &order.outbox.tables {
        conditions.push(condition_on(client, order, table).await?);
    }
    Ok(conditions)
}

async fn condition_on(
    client: &SqlClient,
    order: PruneOrder<'_>,
    table: &QualifiedName,
) -> Result<Condition, ProtocolError> {
    let id = column_of(client, table, &order.columns.id).await?;
    let (occurred_at, time) =
        time_column_of(client, table, order.columns.occurred_at.as_ref()).await?;
    let (may_go, seconds) = (may_go(table, &id), order.older_than.as_secs_f64());
    Ok(Condition { table: table.clone(), may_go, seconds, id, occurred_at, time })
}

/// Counts the rows that may be deleted, and finds the partitions that may be dropped.
async fn prunable(
    client: &SqlClient,
    condition: &Condition,
) -> Result<PrunableTable, ProtocolError> {
    let (Condition { table, seconds, .. }, text) = (condition, condition.text("$1"));
    let refused = |error| refusal(table, error);
    let DroppedPartitions { names: partitions, later, .. } =
        droppable_partitions(client, condition).await?;
    let excluded = without_partitions(&later);
    let statement = format!("SELECT count(*) FROM {table} c WHERE {text} AND {excluded}");
    let row = client.query_one(&statement, &[seconds]).await.map_err(refused)?;
    let rows = row.get::<_, i64>(0).unsigned_abs();
    Ok(PrunableTable { table: table.to_string(), rows, partitions })
}

/// Refuses if a relay's record is from another server: its transaction ids mean nothing here.
async fn refuse_other_history(client: &SqlClient, slot: &str) -> Result<(), ProtocolError> {
    let here = read_recorded_system_identifier(client, slot).await?;
    let statement = in_schema!(
        "SELECT slot FROM public.app_outbox_relay WHERE system_identifier <> $1 LIMIT 1"
    );
    let other = client.query_opt(statement, &[&here]).await.map_err(PgError::from)?;
    match other {
        None => Ok(()),
        Some(other) => {
            let problem = "is on record as one of another server: nobody knows which of its rows were published";
            Err(AdminError::SlotLost { slot: other.get(0), problem: problem.to_owned() }.into())
        }
    }
}

/// Returns an SQL condition on rows of `c` that are in none of these partitions.
fn without_partitions(partitions: &[String]) -> String {
    let names: Vec<String> =
        partitions.iter().map(|name| format!("to_regclass({})", quote_literal(name))).collect();
    match names.is_empty() {
        true => "true".to_owned(),
        // Another process may have dropped one of them, which is null then.
        false => format!("(c.tableoid IN ({})) IS NOT TRUE", names.join(", ")),
    }
}

impl PruneSession<'_> {
    /// Deletes rows in one transaction, at most [`BATCH_ROWS`], without those of the partitions that
    /// a later run drops.
    async fn delete_some(
        &self,
        condition: &Condition,
        later: &[String],
    ) -> Result<Deleted, ProtocolError> {
        let excluded = without_partitions(later);
        match self.archive {
            Some(archive) => {
                let archiver = Archiver::new(self.client, archive, condition).await?;
                let Some(object) = archiver.archive_some(&excluded).await? else {
                    return Ok(Deleted::default());
                };
                let rows = archiver.delete(&object).await?;
                Ok(Deleted { rows, archived: object.rows, has_more: object.has_more })
            }
            None => {
                let rows = self.delete_batch(condition, &excluded).await?;
                let has_more = rows == BATCH_ROWS;
                Ok(Deleted { rows, has_more, ..Deleted::default() })
            }
        }
    }

    /// Deletes rows by their place. The row's table is compared together with its ctid, because
    /// ctids are unique only within one partition.
    async fn delete_batch(
        &self,
        condition: &Condition,
        excluded: &str,
    ) -> Result<u64, ProtocolError> {
        let (Condition { table, seconds, .. }, text) = (condition, condition.text("$1"));
        // spliced: the table, and the condition on its rows.
        let statement = format!(
            "DELETE FROM {table} o USING (
               SELECT c.tableoid AS part, c.ctid AS place FROM {table} c
                WHERE {text} AND {excluded} LIMIT {BATCH_ROWS}) old
              WHERE o.tableoid = old.part AND o.ctid = old.place"
        );
        let deleted = self.client.execute(&statement, &[seconds]).await;
        deleted.map_err(|error| refusal(table, error))
    }
}

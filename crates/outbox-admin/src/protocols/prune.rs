//! Deletes outbox rows that are old, confirmed and not parked. Of a partitioned
//! outbox it drops whole partitions in which all rows may go.
//!
//! The table has no LSN, but every committed transaction below `settled_xid` of `app_outbox_relay`
//! is settled. Rows whose transaction id cannot be compared with `settled_xid` stay.

use std::time::Duration;

use walrelay_core::ColumnNames;
use walrelay_outbox_store::{Outbox, read_recorded_system_identifier, recovering_slot};
use walrelay_pg_client::{
    PgError, QualifiedName, ServerError, ServerErrorKind, SqlClient, TableAccess, quote_identifier,
    refuse_hidden_rows, sql,
};

use super::operator::{AdminSession, Change, Operator, PrunableTable, Step};
use super::preconditions::{every_shard, refuse_unrecorded};
use super::protocol_error::ProtocolError;
use super::table_columns::column_of;
use super::table_rows::TableRows;
use crate::admin_error::AdminError;
use crate::operation::read_operation;

/// Rows deleted in one transaction, few enough to hold locks only briefly.
const BATCH_ROWS: u64 = 10_000;

/// Timeouts for dropping a partition, because the lock blocks writers of all partitions. The check
/// and the DROP may each take the statement timeout.
const PARTITION_PATIENCE: &str =
    "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '5s'";

/// The rows to delete.
#[derive(Debug, Clone, Copy)]
pub struct PruneOrder<'a> {
    /// The outbox.
    pub outbox: &'a Outbox,
    /// The names of its columns.
    pub columns: &'a ColumnNames,
    /// Minimum age of rows to delete.
    pub older_than: Duration,
    /// Whether rows are deleted or only counted, which needs other permissions.
    pub access: TableAccess,
}

/// Rows and partitions that were deleted from a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedTable {
    /// The table.
    pub table: String,
    /// Number of deleted rows, without those of dropped partitions.
    pub rows: u64,
    /// Partitions that were dropped.
    pub partitions: Vec<String>,
}

/// The rows of a table that may be deleted.
struct Condition {
    table: QualifiedName,
    /// SQL condition on a row of `c`, where `$1` is the age in seconds.
    text: String,
    seconds: f64,
}

/// Deletes rows table by table. Returns `None` after a dry run.
///
/// # Errors
///
/// The relay has not recorded which rows are settled, or an operation or a replay needs old rows.
/// Also if the server refuses.
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
    let mut pruned = Vec::new();
    for condition in &conditions {
        let table = condition.table.to_string();
        let partitions = drop_partitions(client, condition).await?;
        for partition in &partitions {
            let (table, partition) = (table.clone(), partition.clone());
            session.report(&Step::PartitionDropped { table, partition })?;
        }
        let rows = delete(client, condition).await?;
        session.report(&Step::RowsDeleted(TableRows { table: table.clone(), rows }))?;
        pruned.push(PrunedTable { table, rows, partitions });
    }
    Ok(Some(pruned))
}

/// The effect of one step of periodic retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PruneStep {
    /// Rows deleted.
    pub(crate) rows: u64,
    /// Partitions dropped.
    pub(crate) partitions: u64,
    /// Whether rows may be left that are old enough.
    pub(crate) has_more: bool,
}

/// Checks the preconditions, and deletes some rows of each table in a short transaction.
pub(crate) async fn prune_step(
    client: &SqlClient,
    order: PruneOrder<'_>,
) -> Result<PruneStep, ProtocolError> {
    refuse_unready(client, order).await?;
    let mut step = PruneStep { rows: 0, partitions: 0, has_more: false };
    for condition in conditions_on(client, order).await? {
        for partition in drop_partitions(client, &condition).await? {
            tracing::info!(partition, "a partition with only old rows is dropped");
            step.partitions += 1;
        }
        let rows = delete_batch(client, &condition).await?;
        step.rows += rows;
        step.has_more |= rows == BATCH_ROWS;
    }
    Ok(step)
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
    // An unfinished recovery reads rows that are below `settled_xid`.
    if let Some(recovering) = recovering_slot(client).await? {
        let begun = read_operation(client, &recovering).await?;
        let what = begun.map_or_else(String::new, |begun| begun.describe(&recovering));
        return Err(AdminError::OperationUnfinished { slot: recovering, what }.into());
    }
    // A replay may still have to read the history of a paused key from the table.
    refuse_while_any_is_paused(client, tables).await?;
    refuse_while_any_reads_the_table(client, tables).await
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
    let occurred_at = match &order.columns.occurred_at {
        Some(names) => column_of(client, table, names).await?,
        None => String::new(),
    };
    let (text, seconds) = (condition(&id, &occurred_at), order.older_than.as_secs_f64());
    Ok(Condition { table: table.clone(), text, seconds })
}

/// Counts the rows that may be deleted, and finds the partitions that may be dropped.
async fn prunable(
    client: &SqlClient,
    condition: &Condition,
) -> Result<PrunableTable, ProtocolError> {
    let Condition { table, text, seconds } = condition;
    let refused = |error| refusal(table, error);
    let statement = format!("SELECT count(*) FROM {table} c WHERE {text}");
    let row = client.query_one(&statement, &[seconds]).await.map_err(refused)?;
    let mut partitions = Vec::new();
    for partition in read_partitions(client, table).await? {
        if is_all_old(client, &partition, condition).await? {
            partitions.push(partition);
        }
    }
    let rows = row.get::<_, i64>(0).unsigned_abs();
    Ok(PrunableTable { table: table.to_string(), rows, partitions })
}

/// Refuses while a replay in place pauses keys of any slot.
async fn refuse_while_any_is_paused(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), ProtocolError> {
    let Some(table) = tables.first() else { return Ok(()) };
    let statement = "SELECT slot, replay_id FROM public.app_outbox_hold LIMIT 1";
    let paused = client.query_opt(statement, &[]).await.map_err(|error| refusal(table, error))?;
    let Some(paused) = paused else { return Ok(()) };
    let (slot, id): (String, String) = (paused.get("slot"), paused.get("replay_id"));
    Err(ProtocolError::KeysPaused { slot, keys: None, id })
}

/// Refuses while a replay from the table to a topic is unfinished, because it has rows left to
/// read. Replays in place are excluded: they pause the keys whose rows they still have to read.
async fn refuse_while_any_reads_the_table(
    client: &SqlClient,
    tables: &[QualifiedName],
) -> Result<(), ProtocolError> {
    let Some(table) = tables.first() else { return Ok(()) };
    let open = client.query_opt(sql!("prune.sql", "replay_of_the_table"), &[]).await;
    match open.map_err(|error| refusal(table, error))? {
        None => Ok(()),
        Some(open) => {
            Err(ProtocolError::ReplayReadsTable { slot: open.get("slot"), id: open.get("id") })
        }
    }
}

/// Refuses if a relay's record is from another server: its transaction ids mean nothing here.
async fn refuse_other_history(client: &SqlClient, slot: &str) -> Result<(), ProtocolError> {
    let here = read_recorded_system_identifier(client, slot).await?;
    let statement =
        "SELECT slot FROM public.app_outbox_relay WHERE system_identifier <> $1 LIMIT 1";
    let other = client.query_opt(statement, &[&here]).await.map_err(PgError::from)?;
    match other {
        None => Ok(()),
        Some(other) => {
            let problem = "is on record as one of another server: nobody knows which of its rows were published";
            Err(AdminError::SlotLost { slot: other.get(0), problem: problem.to_owned() }.into())
        }
    }
}

/// Returns the SQL condition for rows that may be deleted. It uses the oldest `settled_xid` of all
/// relays, so that each relay can still recover its own rows.
fn condition(id: &str, occurred_at: &str) -> String {
    let (id, occurred_at) = (quote_identifier(id), quote_identifier(occurred_at));
    // spliced: the names of the columns.
    format!(
        "c.{occurred_at} < now() - make_interval(secs => $1)
         AND age(c.xmin) > (SELECT max(age(r.settled_xid::xid)) FROM public.app_outbox_relay r)
         AND NOT EXISTS (SELECT FROM public.app_outbox_dispatch d
                          WHERE d.event_id = c.{id}::text AND d.status IN ('retrying', 'dead'))"
    )
}

/// Deletes rows in batches, and returns their number.
async fn delete(client: &SqlClient, condition: &Condition) -> Result<u64, ProtocolError> {
    let mut total = 0;
    loop {
        let deleted = delete_batch(client, condition).await?;
        total += deleted;
        if deleted < BATCH_ROWS {
            return Ok(total);
        }
    }
}

/// Deletes rows in one transaction, at most [`BATCH_ROWS`]. The row's table is compared together
/// with its ctid, because ctids are unique only within one partition.
async fn delete_batch(client: &SqlClient, condition: &Condition) -> Result<u64, ProtocolError> {
    let Condition { table, text, seconds } = condition;
    // spliced: the table, and the condition on its rows.
    let statement = format!(
        "DELETE FROM {table} o USING (
           SELECT c.tableoid AS part, c.ctid AS place FROM {table} c WHERE {text} LIMIT {BATCH_ROWS}) old
          WHERE o.tableoid = old.part AND o.ctid = old.place"
    );
    client.execute(&statement, &[seconds]).await.map_err(|error| refusal(table, error))
}

/// Returns the leaf partitions in name order, without the default partition. Returns none for a
/// table without partitions.
async fn read_partitions(
    client: &SqlClient,
    table: &QualifiedName,
) -> Result<Vec<String>, ProtocolError> {
    let found = client.query(sql!("prune.sql", "partitions"), &[&table.to_string()]).await;
    Ok(found.map_err(PgError::from)?.iter().map(|row| row.get(0)).collect())
}

/// Returns whether a partition has rows, and all of them may go. An empty partition stays for rows
/// to come.
async fn is_all_old(
    client: &SqlClient,
    partition: &str,
    condition: &Condition,
) -> Result<bool, ProtocolError> {
    let Condition { table, text, seconds } = condition;
    let statement = format!(
        "SELECT EXISTS (SELECT FROM {partition}) AND NOT EXISTS (SELECT FROM {partition} c WHERE NOT ({text}))"
    );
    let refused = |error| refusal(table, error);
    Ok(client.query_one(&statement, &[seconds]).await.map_err(refused)?.get(0))
}

/// Drops partitions in which all rows may go, and returns their names. Checks each partition first
/// without a lock, and again under the lock that stops writers.
async fn drop_partitions(
    client: &SqlClient,
    condition: &Condition,
) -> Result<Vec<String>, ProtocolError> {
    let table = &condition.table;
    let mut dropped = Vec::new();
    for partition in read_partitions(client, table).await? {
        if !is_all_old(client, &partition, condition).await? {
            continue;
        }
        let locked =
            format!("BEGIN; {PARTITION_PATIENCE}; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        let is_dropped = match client.batch_execute(&locked).await {
            Err(error) => Err(refusal(table, error)),
            Ok(()) => drop_locked(client, &partition, condition).await,
        };
        let end = if matches!(is_dropped, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(end).await.map_err(PgError::from)?;
        match is_dropped {
            Ok(true) => dropped.push(partition),
            Ok(false) => {}
            // `delete_batch` then deletes the partition's rows like all other rows.
            Err(error) => tracing::warn!(%error, partition, "the partition is not dropped"),
        }
    }
    Ok(dropped)
}

async fn drop_locked(
    client: &SqlClient,
    partition: &str,
    condition: &Condition,
) -> Result<bool, ProtocolError> {
    if !is_all_old(client, partition, condition).await? {
        return Ok(false);
    }
    let refused = |error| refusal(&condition.table, error);
    client.batch_execute(&format!("DROP TABLE {partition}")).await.map_err(refused)?;
    Ok(true)
}

/// Maps a permission error: `prune` needs other permissions than the relay.
fn refusal(table: &QualifiedName, error: tokio_postgres::Error) -> ProtocolError {
    let error = PgError::from(error);
    let kind = error.server().map(ServerError::kind);
    match kind == Some(ServerErrorKind::Privilege) {
        true => ProtocolError::PruneDenied { table: table.to_string(), source: Box::new(error) },
        false => error.into(),
    }
}

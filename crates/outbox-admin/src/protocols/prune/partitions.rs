//! Partitions that `prune` drops whole.
//!
//! The function `app_outbox_drop_partition` checks the rows and drops, with the privileges of the
//! table's owner. A partition whose lock is not granted keeps its rows, so that a later run drops
//! it. Otherwise, prune would empty it row by row, which is slower and leaves an empty partition.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::error::SqlState;
use walrelay_errors::{Chain, Code};
use walrelay_pg_client::{PgError, SqlClient, sql};

use super::archiver::{ArchivedPartition, ArchivedRows, Archiver, PruneSession};
use super::condition::{Condition, refusal};
use crate::partitions::is_partitioned;
use crate::protocols::protocol_error::ProtocolError;

/// Attempts to lock a partition and its table. The SQL function waits 100 ms at each, because
/// producers queue behind it.
const LOCK_ATTEMPTS: usize = 5;

/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(200);

/// A partition that is not the DEFAULT partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Partition {
    /// Name, as SQL.
    name: String,
    /// Bounds, as Postgres prints times. None if the partition is not a range of times.
    bounds: Option<(String, String)>,
    /// Whether the relay keeps the partitions, and a later run drops this one.
    is_dropped_later: bool,
}

/// The partitions of a table that were dropped, and those whose rows are not deleted singly.
#[derive(Debug, Default)]
pub(super) struct DroppedPartitions {
    pub(super) names: Vec<String>,
    /// Partitions that are dropped whole by a later run.
    pub(super) later: Vec<String>,
    pub(super) archived: ArchivedRows,
}

/// Reads the partitions. Returns none for a table without partitions, and for a role that may not
/// call the functions: prune then deletes rows singly.
async fn read_partitions(
    client: &SqlClient,
    condition: &Condition,
) -> Result<Vec<Partition>, ProtocolError> {
    let Condition { table, seconds, .. } = condition;
    if !is_partitioned(client, table).await? {
        return Ok(Vec::new());
    }
    let name = table.to_string();
    match client.query(sql!("partitions.sql", "partitions"), &[&name, seconds]).await {
        Ok(rows) => Ok(rows.iter().map(partition_of).collect()),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let (error_code, error) = (Code::PrunePermissionMissing.name(), Chain(&error));
            tracing::warn!(error_code, %error, "partitions are not dropped whole");
            Ok(Vec::new())
        }
        Err(error) => Err(PgError::from(error).into()),
    }
}

fn partition_of(row: &tokio_postgres::Row) -> Partition {
    let bound = |column| row.get::<_, Option<String>>(column);
    Partition {
        name: row.get("name"),
        bounds: bound("lower_bound").zip(bound("upper_bound")),
        is_dropped_later: row.get("is_dropped_later"),
    }
}

/// Returns the partitions in which all rows may go, and those that a later run drops.
pub(super) async fn droppable_partitions(
    client: &SqlClient,
    condition: &Condition,
) -> Result<DroppedPartitions, ProtocolError> {
    let mut found = DroppedPartitions::default();
    for partition in read_partitions(client, condition).await? {
        if partition.is_dropped_later {
            found.later.push(partition.name);
            continue;
        }
        let check = DropCall { partition: &partition, condition, step: DropStep::Check };
        if matches!(check.call(client).await, Ok(true)) {
            found.names.push(partition.name);
        }
    }
    Ok(found)
}

/// Drops partitions in which all rows may go. With an archive, their rows are archived first.
pub(super) async fn drop_partitions(
    order: &PruneSession<'_>,
    condition: &Condition,
) -> Result<DroppedPartitions, ProtocolError> {
    let client = order.client;
    let mut dropped = DroppedPartitions::default();
    for partition in read_partitions(client, condition).await? {
        if partition.is_dropped_later {
            dropped.later.push(partition.name);
            continue;
        }
        let end = match drop_one(order, condition, &partition).await {
            Err(_) if !exists(client, &partition).await? => PartitionEnd::Gone,
            end => end?,
        };
        match end {
            PartitionEnd::Dropped(rows) => {
                dropped.archived.add(rows);
                dropped.names.push(partition.name);
            }
            PartitionEnd::Needed | PartitionEnd::Gone => {}
            PartitionEnd::Locked => {
                tracing::info!(
                    partition = partition.name,
                    "a lock is not granted, so a later run drops the partition"
                );
                dropped.later.push(partition.name);
            }
        }
    }
    Ok(dropped)
}

enum PartitionEnd {
    Dropped(ArchivedRows),
    /// Some of its rows must stay.
    Needed,
    /// A lock was not granted.
    Locked,
    /// Another process has dropped it.
    Gone,
}

/// Returns whether the partition is still there. Its name may outlive it for a moment, in the caches of this
/// session.
async fn exists(client: &SqlClient, partition: &Partition) -> Result<bool, ProtocolError> {
    let sql =
        "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass($1)) AS is_there";
    let row = client.query_one(sql, &[&partition.name]).await.map_err(PgError::from)?;
    Ok(row.get("is_there"))
}

async fn drop_one(
    order: &PruneSession<'_>,
    condition: &Condition,
    partition: &Partition,
) -> Result<PartitionEnd, ProtocolError> {
    let client = order.client;
    let step = |step| DropCall { partition, condition, step };
    match step(DropStep::Check).call(client).await {
        Ok(true) => {}
        Ok(false) => return Ok(PartitionEnd::Needed),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            return Err(refusal(&condition.table, error));
        }
        Err(error) => {
            let (error_code, error) = (Code::PrunePermissionMissing.name(), Chain(&error));
            tracing::warn!(error_code, %error, partition = partition.name, "the partition is not dropped");
            return Ok(PartitionEnd::Needed);
        }
    }
    let rows = match order.archive {
        Some(archive) => {
            let archiver = Archiver::new(client, archive, condition).await?;
            let partition =
                ArchivedPartition { name: &partition.name, bounds: partition.bounds.as_ref() };
            match archiver.archive_partition(&partition).await? {
                Some(rows) => Some(rows),
                // The other rows are archived and deleted one by one.
                None => return Ok(PartitionEnd::Needed),
            }
        }
        None => None,
    };
    for attempt in 1..=LOCK_ATTEMPTS {
        match step(DropStep::Drop { archived: rows.as_ref() }).call(client).await {
            Ok(true) => return Ok(PartitionEnd::Dropped(rows.unwrap_or_default())),
            Ok(false) => return Ok(PartitionEnd::Needed),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                if attempt < LOCK_ATTEMPTS {
                    sleep(LOCK_PAUSE).await;
                }
            }
            Err(error) => return Err(refusal(&condition.table, error)),
        }
    }
    Ok(PartitionEnd::Locked)
}

/// A call of `app_outbox_drop_partition`.
struct DropCall<'a> {
    partition: &'a Partition,
    condition: &'a Condition,
    step: DropStep<'a>,
}

enum DropStep<'a> {
    /// Only checks whether all rows may go.
    Check,
    /// Drops the partition. With archived rows, only if it contains exactly these.
    Drop { archived: Option<&'a ArchivedRows> },
}

impl DropCall<'_> {
    async fn call(&self, client: &SqlClient) -> Result<bool, tokio_postgres::Error> {
        let Condition { id, occurred_at, seconds, .. } = self.condition;
        let (is_check, archived) = match &self.step {
            DropStep::Check => (true, None),
            DropStep::Drop { archived } => (false, *archived),
        };
        let rows = archived.map(|it| i64::try_from(it.rows).unwrap_or(i64::MAX));
        let checksum = archived.map(|it| it.checksum.to_string());
        let name = &self.partition.name;
        let row = client
            .query_one(
                sql!("partitions.sql", "drop_partition"),
                &[name, id, occurred_at, seconds, &is_check, &rows, &checksum],
            )
            .await?;
        Ok(row.get(0))
    }
}

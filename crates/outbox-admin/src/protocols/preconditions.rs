//! Conditions that several protocols check before they touch a slot, and the WAL position of a time.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::types::Type;
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::{
    AdminError, Reset, SlotOperation, describe_unfinished, read_loss, read_operation,
    read_row_filter, recovery,
};
use walrelay_outbox_store::{
    Outbox, Shard, first_position_after, position_at, read_recorded_system_identifier,
    read_relay_row, relay_tables,
};
use walrelay_pg_client::{
    ServerErrorKind, SqlClient, SqlError, TableAccess, own_rows_sql, own_table, refuse_hidden_rows,
    sql,
};
use walrelay_pg_replication::read_slot;

use super::protocol_error::ProtocolError;
use super::table_rows::TableRows;
use crate::sharding::read_sharding;

/// A place in the WAL, as an operator names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Lsn(Lsn),
    Time(SystemTime),
}

impl Place {
    /// Returns the place that one of two options names.
    #[must_use]
    pub fn of(lsn: Option<Lsn>, time: Option<SystemTime>) -> Option<Self> {
        lsn.map(Self::Lsn).or(time.map(Self::Time))
    }
}

/// Returns the unfinished operation of the slot. Before the first `init` the table does not exist.
pub(super) async fn unfinished_operation(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<SlotOperation>, AdminError> {
    Ok(if_recorded(read_operation(client, slot).await)?.flatten())
}

/// Returns `None` if the relay's tables do not exist, because nothing is on record then.
pub(super) fn if_recorded<T>(
    done: Result<T, impl Into<AdminError>>,
) -> Result<Option<T>, AdminError> {
    match done.map_err(Into::into) {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => Ok(None),
        done => done.map(Some),
    }
}

/// Refuses while an operation on the slot is unfinished. In the middle of one, the slot may be
/// missing, or about to be replaced.
pub(super) async fn refuse_unfinished(client: &SqlClient, slot: &str) -> Result<(), AdminError> {
    match unfinished_operation(client, slot).await? {
        Some(operation) => Err(not_finished(client, slot, &operation).await?),
        None => Ok(()),
    }
}

/// Builds the error that reports the unfinished operation.
pub(super) async fn not_finished(
    client: &SqlClient,
    slot: &str,
    operation: &SlotOperation,
) -> Result<AdminError, AdminError> {
    let what = describe_unfinished(client, slot, operation).await?;
    Ok(operation.unfinished(slot, what))
}

/// Refuses if row level security hides the relay's own tables. Callers check this before they
/// report about the outbox or change it.
pub(super) async fn refuse_hidden_state(client: &SqlClient) -> Result<(), AdminError> {
    Ok(refuse_hidden_rows(client, &relay_tables(), TableAccess::Read).await?)
}

/// Returns every shard that exists or is recorded, whichever shard was named. Without shards it
/// returns the outbox itself. During a change of the shard count it returns the old and the new
/// shards.
///
/// # Errors
///
/// Row level security hides rows.
pub async fn every_shard(client: &SqlClient, outbox: &Outbox) -> Result<Vec<Outbox>, AdminError> {
    refuse_hidden_state(client).await?;
    let counts: Vec<u32> = read_sharding(client, outbox).await?.of_count.into_keys().collect();
    Ok(match counts.is_empty() {
        true => vec![outbox.clone()],
        false => counts.into_iter().flat_map(|count| outbox.shards(count)).collect(),
    })
}

/// Returns the number of shards and the named shard, if that is none of them.
pub(super) async fn other_shards(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<Option<(u32, Shard)>, AdminError> {
    let (sharding, wanted) = (read_sharding(client, outbox).await?, outbox.shard);
    let other = sharding.other_than(wanted.count()).filter(|_| !sharding.has(wanted.count()));
    Ok(other.map(|count| (count, wanted)))
}

/// Refuses a shard that does not exist, or no shard, when the outbox is sharded.
///
/// # Errors
///
/// The outbox has other shards, or row level security hides rows.
pub async fn refuse_other_shards(client: &SqlClient, outbox: &Outbox) -> Result<(), AdminError> {
    refuse_hidden_state(client).await?;
    match other_shards(client, outbox).await? {
        Some((count, wanted)) => Err(AdminError::OtherShard { count, wanted }),
        None => Ok(()),
    }
}

/// Refuses a database without the outbox tables. The user may have named the consumer's database,
/// where nobody should create an outbox.
pub async fn refuse_without_outbox(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<(), ProtocolError> {
    let mut names: Vec<String> = outbox.tables.iter().map(ToString::to_string).collect();
    names.push(own_table("app_outbox_relay").to_string());
    let missing = client.query_opt(sql!("preconditions.sql", "missing_table"), &[&names]).await;
    match missing.map_err(SqlError::sql("look for the outbox"))? {
        Some(row) => Err(ProtocolError::NoOutbox { table: row.get(0) }),
        None => Ok(()),
    }
}

/// Refuses a slot without a row in `app_outbox_relay`: only that row shows which rows are settled.
pub async fn refuse_unrecorded(client: &SqlClient, slot: &str) -> Result<(), ProtocolError> {
    match read_relay_row(client, slot).await? {
        Some(_) => Ok(()),
        None => Err(ProtocolError::SlotUnrecorded { slot: slot.to_owned() }),
    }
}

/// Returns a position before every commit of `time` or later.
///
/// # Errors
///
/// No position is known for the time.
pub async fn position_of_time(
    client: &SqlClient,
    slot: &str,
    time: SystemTime,
) -> Result<Lsn, ProtocolError> {
    let system = read_recorded_system_identifier(client, slot).await?;
    if let Some(noted) = position_at(client, &system, time).await? {
        return Ok(noted.lsn);
    }
    let earliest = first_position_after(client, &system, time).await?;
    Err(ProtocolError::TimeUnknown { time, earliest })
}

/// Builds the error for a cancelled reset whose anchor is gone. The slot is either unchanged or
/// lost.
pub(super) async fn reset_cancelled(
    client: &SqlClient,
    slot: &str,
    reset: &Reset,
) -> ProtocolError {
    let what = reset.describe(slot);
    match read_loss(client, slot).await {
        Err(error) => error.into(),
        Ok(Some(lost)) => {
            let problem = format!("{}; {what} was cancelled: its anchor is gone", lost.problem);
            AdminError::SlotLost { slot: slot.to_owned(), problem }.into()
        }
        Ok(None) => ProtocolError::ResetCancelled { what },
    }
}

/// Counts the rows that a first slot would not stream, without those that the row filter of the
/// publication leaves out. Returns no table if the slot exists or is on record, or if the role may
/// not read the rows.
pub(super) async fn count_earlier_rows(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<Vec<TableRows>, ProtocolError> {
    let mut counted = Vec::new();
    if !is_new_slot(client, outbox).await? {
        return Ok(counted);
    }
    for table in &outbox.tables {
        let name = table.to_string();
        if !may_read(client, &name).await? {
            continue;
        }
        let is_own = own_rows_sql(table, "t");
        let filter = read_row_filter(client, outbox, table).await?;
        let is_published = filter.as_deref().unwrap_or("true");
        // spliced: the name of the table, and its row filter.
        let counting =
            format!("SELECT count(*) AS rows FROM {table} t WHERE {is_own} AND ({is_published})");
        let row = client.query_typed_one(&counting, &[]).await;
        let row = row.map_err(SqlError::sql("count the rows of the outbox"))?;
        let rows = u64::try_from(row.get::<_, i64>("rows")).unwrap_or_default();
        if rows > 0 {
            counted.push(TableRows { table: name, rows });
        }
    }
    Ok(counted)
}

/// Returns whether the slot neither exists nor is on record.
pub(super) async fn is_new_slot(client: &SqlClient, outbox: &Outbox) -> Result<bool, AdminError> {
    let slot = &outbox.slot;
    Ok(read_slot(client, slot).await?.is_none()
        && if_recorded(read_relay_row(client, slot).await)?.flatten().is_none())
}

/// Refuses a server whose WAL cannot be decoded.
pub(super) async fn refuse_other_wal_level(client: &SqlClient) -> Result<(), ProtocolError> {
    let row = client.query_typed_one("SELECT current_setting('wal_level') AS level", &[]).await;
    let level: String = row.map_err(AdminError::sql("read wal_level"))?.get("level");
    match level.as_str() {
        "logical" => Ok(()),
        _ => Err(ProtocolError::WalLevel { level }),
    }
}

/// Returns whether the role may read every outbox table that exists.
pub(super) async fn may_read_rows(client: &SqlClient, outbox: &Outbox) -> Result<bool, AdminError> {
    for table in &outbox.tables {
        let sql = sql!("preconditions.sql", "is_denied");
        let row = client.query_typed_one(sql, &[(&table.to_string(), Type::TEXT)]).await;
        if row.map_err(SqlError::sql("look for the outbox"))?.get("is_denied") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the role may read the table. A table that does not exist cannot be read.
pub(super) async fn may_read(client: &SqlClient, table: &String) -> Result<bool, AdminError> {
    let sql = sql!("preconditions.sql", "may_read");
    let row = client.query_typed_one(sql, &[(table, Type::TEXT)]).await;
    Ok(row.map_err(SqlError::sql("look for the outbox"))?.get("may_read"))
}

/// Counts the rows of each table that are published before the slot streams.
pub(super) async fn count_unpublished_rows(
    client: &SqlClient,
    outbox: &Outbox,
    columns: &ColumnNames,
) -> Result<Vec<TableRows>, ProtocolError> {
    let mut counted = Vec::new();
    let Some((_, rest)) = recovery::rest(client, &outbox.slot).await? else {
        return Ok(counted);
    };
    for name in &outbox.tables {
        let table = recovery::published_table(client, (outbox, name), columns).await?;
        let rows = rest.gap.count(client, &table).await?;
        counted.push(TableRows { table: name.to_string(), rows });
    }
    Ok(counted)
}

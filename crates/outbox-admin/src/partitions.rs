//! The partitions of a partitioned outbox: `init` registers the table, the relay creates partitions
//! ahead, and `check` reports their state.
//!
//! All changes go through SQL functions that run with the privileges of the table's owner. A table
//! is registered in `app_outbox_partitioning`. Without a span there, somebody else creates its
//! partitions, and the relay only drops them.

use walrelay_pg_client::{QualifiedName, SCHEMA, SqlClient, quote_literal, sql};

use walrelay_outbox_replay::AdminError;

/// The time that one partition covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionSpan {
    /// A day, in UTC.
    Day,
    /// A week that starts on Monday.
    Week,
    /// A calendar month.
    Month,
}

impl PartitionSpan {
    const fn interval(self) -> &'static str {
        match self {
            Self::Day => "1 day",
            Self::Week => "7 days",
            Self::Month => "1 month",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddedPartitions {
    pub added: i32,
    /// Ranges whose rows are in the DEFAULT partition, so that they cannot get a partition.
    pub blocked: i32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PartitionState {
    /// The span of a partition, as Postgres prints it. None if the relay creates no partitions.
    pub span: Option<String>,
    pub partitions: i64,
    /// The end of the last partition, as Postgres prints it. None without such a partition.
    pub ready_until: Option<String>,
    /// The same as a Unix time.
    pub ready_until_seconds: Option<f64>,
    /// Whether the partitions reach at least one span into the future.
    pub is_ahead: bool,
    /// Rows in the DEFAULT partition, at most 10,000.
    pub default_rows: i64,
}

/// Returns SQL that registers an outbox table if it is partitioned, and creates its partitions. With
/// a span, the statement refuses a table that is not partitioned.
pub(crate) fn registration_sql(table: &QualifiedName, span: Option<PartitionSpan>) -> String {
    let name = quote_literal(&table.to_string());
    let (span, on_conflict, otherwise) = match span {
        Some(span) => (
            quote_literal(span.interval()),
            "DO UPDATE SET span = excluded.span",
            format!(
                "RAISE EXCEPTION '% exists and is not partitioned', {name}
      USING ERRCODE = 'WR001', HINT = 'app_outbox_to_partitions converts it.'"
            ),
        ),
        None => ("NULL".to_owned(), "DO NOTHING", "RETURN".to_owned()),
    };
    // spliced: the name of the table and the span, in a script that takes no parameters.
    format!(
        "DO $walrelay$
BEGIN
  IF (SELECT relkind FROM pg_catalog.pg_class WHERE oid = {name}::regclass) <> 'p' THEN
    {otherwise};
  END IF;
  INSERT INTO {SCHEMA}.app_outbox_partitioning (outbox, span) VALUES ({name}::regclass, {span}) ON CONFLICT (outbox) {on_conflict};
  PERFORM {SCHEMA}.app_outbox_add_partitions({name}::regclass);
END
$walrelay$;"
    )
}

/// Returns whether a table is partitioned, in a database with the functions for partitions.
pub async fn is_partitioned(client: &SqlClient, table: &QualifiedName) -> Result<bool, AdminError> {
    let found = client.query_opt(sql!("partitions.sql", "is_kept"), &[&table.to_string()]).await;
    let found = found.map_err(AdminError::sql(format!("look whether {table} is partitioned")))?;
    Ok(found.is_some_and(|row| row.get(0)))
}

/// Creates the partitions that are needed soon.
///
/// # Errors
///
/// The role may not call the function, or a lock was not granted in time.
pub async fn add_partitions(
    client: &SqlClient,
    table: &QualifiedName,
) -> Result<AddedPartitions, AdminError> {
    let row = client
        .query_one(sql!("partitions.sql", "add"), &[&table.to_string()])
        .await
        .map_err(AdminError::sql(format!("create partitions of {table}")))?;
    Ok(AddedPartitions { added: row.get("added"), blocked: row.get("blocked") })
}

pub async fn read_partition_state(
    client: &SqlClient,
    table: &QualifiedName,
) -> Result<PartitionState, AdminError> {
    let row = client
        .query_one(sql!("partitions.sql", "state"), &[&table.to_string()])
        .await
        .map_err(AdminError::sql(format!("read the partitions of {table}")))?;
    Ok(PartitionState {
        span: row.get("span"),
        partitions: row.get("partitions"),
        ready_until: row.get("ready_until"),
        ready_until_seconds: row.get("ready_until_seconds"),
        is_ahead: row.get("is_ahead"),
        default_rows: row.get("default_rows"),
    })
}

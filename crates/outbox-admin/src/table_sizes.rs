//! The size on disk of every table that may grow.

use serde::{Deserialize, Serialize};
use walrelay_outbox_store::migrations;
use walrelay_pg_client::{QualifiedName, SqlClient, own_table, sql};

use walrelay_outbox_replay::AdminError;

/// Tables of consumers, which may be in the same database.
const INBOX_TABLES: [&str; 3] = ["app_inbox", "app_inbox_key", "app_inbox_consumer"];

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableSize {
    pub table: String,
    /// Bytes on disk, with indexes, large values and partitions.
    pub bytes: u64,
}

/// Reads the sizes of the outbox tables, and of the other tables that exist in this database. Needs
/// no privilege on the tables.
pub async fn read_table_sizes(
    client: &SqlClient,
    outbox_tables: &[QualifiedName],
) -> Result<Vec<TableSize>, AdminError> {
    let own = migrations(outbox_tables).into_iter().flat_map(|migration| migration.tables);
    let inbox = INBOX_TABLES.into_iter().map(own_table);
    let names: Vec<String> = own.chain(inbox).map(|table| table.to_string()).collect();
    let rows = client
        .query(sql!("table_sizes.sql", "table_sizes"), &[&names])
        .await
        .map_err(AdminError::sql("read the sizes of the tables"))?;
    let size = |row: &tokio_postgres::Row| TableSize {
        table: row.get("table"),
        bytes: row.get::<_, i64>("bytes").unsigned_abs(),
    };
    Ok(rows.iter().map(size).collect())
}

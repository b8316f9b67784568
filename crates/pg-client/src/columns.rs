//! The columns of a table, from the catalog.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::names::QualifiedName;
use crate::sql_error::SqlError;

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_oid: u32,
    /// `atttypmod`.
    pub type_modifier: i32,
}

/// The columns of a table that replication would show.
///
/// # Errors
///
/// There is no such table, the server refused, or the connection ended.
pub async fn read_columns(
    client: &Client,
    table: &QualifiedName,
) -> Result<(u32, Vec<TableColumn>), SqlError> {
    let rows = client
        .query_typed(sql!("columns.sql", "read_columns"), &[(&table.to_string(), Type::TEXT)])
        .await
        .map_err(SqlError::sql(format!("read the columns of {table}")))?;
    let oid = rows.first().map_or(0, |row| row.get::<_, u32>("oid"));
    let columns = rows.iter().map(|row| TableColumn {
        name: row.get("name"),
        type_oid: row.get("type_oid"),
        type_modifier: row.get("type_modifier"),
    });
    Ok((oid, columns.collect()))
}

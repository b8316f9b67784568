//! Resolves which of a column's possible names a table has.

use walrelay_core::ColumnAliases;
use walrelay_pg_client::{PgError, QualifiedName, SqlClient, sql};

/// Returns the first of the names that is a column of the table. If the table has none of them, it
/// returns the first name, so that the server's error shows it.
///
/// # Errors
///
/// The catalog cannot be read.
pub async fn column_of(
    client: &SqlClient,
    table: &QualifiedName,
    names: &ColumnAliases,
) -> Result<String, PgError> {
    let names: Vec<&str> = names.iter().collect();
    let first = names.first().copied().unwrap_or_default().to_owned();
    if names.len() < 2 {
        return Ok(first);
    }
    let statement = sql!("table_columns.sql", "first_column");
    let rows = client.query(statement, &[&table.to_string(), &names]).await?;
    Ok(rows.first().map_or(first, |row| row.get(0)))
}

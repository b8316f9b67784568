//! Resolves which of a column's possible names a table has.

use walrelay_core::ColumnAliases;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{PgError, QualifiedName, SqlClient, TimeType, read_columns, sql};

use super::protocol_error::ProtocolError;

/// Returns the first of the names that is a column of the table. If the table has none of them, it
/// returns the first name, so that the server's error shows it.
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

/// Returns the column of the event's time, and its type.
///
/// # Errors
///
/// The table has no such column, or its values are not times.
pub async fn time_column_of(
    client: &SqlClient,
    table: &QualifiedName,
    names: Option<&ColumnAliases>,
) -> Result<(String, TimeType), ProtocolError> {
    let (_, columns) = read_columns(client, table).await?;
    let named = names.into_iter().flat_map(ColumnAliases::iter);
    let mut found = named.filter_map(|name| columns.iter().find(|column| column.name == name));
    let of_time =
        found.next().and_then(|column| Some((column.name.clone(), TimeType::of(column)?)));
    let missing = || AdminError::NoTimeColumn { table: table.to_string() };
    Ok(of_time.ok_or_else(missing)?)
}

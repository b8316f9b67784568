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
    /// Its type. Of a domain, the type below it.
    pub type_oid: u32,
    /// `atttypmod`.
    pub type_modifier: i32,
}

/// How a column holds a time. A `timestamp` is a time in UTC, in the stream and in the table. The time
/// zone of the server has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeType {
    /// `timestamp with time zone`.
    WithZone,
    /// `timestamp`, or `date`: midnight.
    WithoutZone,
}

impl TimeType {
    /// Returns the type of a column. `None` if its values are not times.
    #[must_use]
    pub const fn of(column: &TableColumn) -> Option<Self> {
        match column.type_oid {
            1184 => Some(Self::WithZone),
            1114 | 1082 => Some(Self::WithoutZone),
            _ => None,
        }
    }

    /// Returns SQL for a moment, an expression of type `timestamptz`, to compare the column with.
    /// The time zone of the session has no effect.
    #[must_use]
    pub fn moment_sql(self, moment: &str) -> String {
        match self {
            Self::WithZone => format!("({moment})"),
            Self::WithoutZone => format!("(({moment}) AT TIME ZONE 'UTC')"),
        }
    }

    /// Returns SQL for a value of the column as `timestamptz`.
    #[must_use]
    pub fn value_sql(self, value: &str) -> String {
        match self {
            Self::WithZone => value.to_owned(),
            Self::WithoutZone => format!("({value}::timestamp AT TIME ZONE 'UTC')"),
        }
    }
}

/// The columns of a table that replication would show.
///
/// # Errors
///
/// There is no such table.
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

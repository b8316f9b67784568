//! Tables below an outbox whose rows no slot streams.

use tokio_postgres::Row;
use walrelay_pg_client::{SqlText, sql};

/// SQL that returns the quoted names of the tables below `c`, a row of `pg_class`, whose rows are never
/// published. A slot streams a table and its partitions. Inheritance children are no part of it, and an
/// unlogged or foreign partition has no WAL.
pub static UNSTREAMED_SQL: SqlText = SqlText::new(|| sql!("unstreamed.sql", "unstreamed"));

/// Tables below an outbox whose rows are never published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unstreamed {
    /// Inheritance children, quoted.
    Children(Vec<String>),
    /// Partitions that are unlogged or foreign tables, quoted.
    Partitions(Vec<String>),
}

impl Unstreamed {
    /// Reads the columns `unstreamed`, see [`UNSTREAMED_SQL`], and `relkind`. None if there are no such
    /// tables.
    #[must_use]
    pub fn of_row(row: &Row) -> Option<Self> {
        let names: Vec<String> = row.get("unstreamed");
        if names.is_empty() {
            return None;
        }
        let is_partitioned = row.get::<_, Option<&str>>("relkind") == Some("p");
        Some(if is_partitioned { Self::Partitions(names) } else { Self::Children(names) })
    }

    /// Returns the quoted names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        let (Self::Children(names) | Self::Partitions(names)) = self;
        names
    }

    /// Returns the problem, to be read after the name of the outbox table.
    #[must_use]
    pub fn problem(&self) -> String {
        let what = match self {
            Self::Children(_) => "inheritance children",
            Self::Partitions(_) => "partitions that are unlogged or foreign tables",
        };
        format!("has {what}, whose rows are never published: {}", self.names().join(", "))
    }

    /// Returns the fix. The name of the outbox table is quoted.
    #[must_use]
    pub fn fix(&self, table: &str) -> String {
        let first = self.names().first().map_or("", String::as_str);
        // spliced: the names, in a text for a person.
        match self {
            Self::Children(_) => format!(
                "let producers write to {table}; then for each child, in one transaction: INSERT INTO {table} SELECT * FROM {first}, \
                 and ALTER TABLE {first} NO INHERIT {table}; a table of an extension that adds chunks cannot be an outbox: use a \
                 plain or a partitioned table"
            ),
            Self::Partitions(_) => format!(
                "for each partition, in one transaction: ALTER TABLE {first} SET LOGGED, and WITH moved AS (DELETE FROM {first} \
                 RETURNING *) INSERT INTO {table} SELECT * FROM moved; a foreign table cannot be a partition of an outbox: detach it"
            ),
        }
    }
}

//! Tables below an outbox whose rows no slot streams.

use tokio_postgres::Row;
use walrelay_pg_client::{SqlText, sql};

/// The tables below `c`, a row of `pg_class`, whose rows are never published, as the SQL columns
/// `relkind`, `unstreamed` and `own_columns`. A slot streams a table and its partitions. Inheritance
/// children are no part of it, and an unlogged or foreign partition has no WAL.
pub static UNSTREAMED_SQL: SqlText = SqlText::new(|| sql!("unstreamed.sql", "unstreamed"));

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstreamed {
    pub kind: UnstreamedKind,
    /// The quoted names.
    pub names: Vec<String>,
    /// The quoted columns of the outbox table that an INSERT may name, separated by commas.
    pub columns: String,
}

/// How tables are below an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnstreamedKind {
    Children,
    /// As partitions that are unlogged or foreign tables.
    Partitions,
}

impl Unstreamed {
    /// Reads the columns of [`UNSTREAMED_SQL`]. None if there are no such tables.
    #[must_use]
    pub fn of_row(row: &Row) -> Option<Self> {
        let names: Vec<String> = row.get("unstreamed");
        let is_partitioned = row.get::<_, Option<&str>>("relkind") == Some("p");
        let kind =
            if is_partitioned { UnstreamedKind::Partitions } else { UnstreamedKind::Children };
        (!names.is_empty()).then(|| Self { kind, names, columns: row.get("own_columns") })
    }

    /// Returns the problem, to be read after the name of the outbox table.
    #[must_use]
    pub fn problem(&self) -> String {
        let what = match self.kind {
            UnstreamedKind::Children => "inheritance children",
            UnstreamedKind::Partitions => "partitions that are unlogged or foreign tables",
        };
        let names = self.names.join(", ");
        match self.kind {
            UnstreamedKind::Children => {
                format!("has {what}, whose rows are never published: {names}")
            }
            UnstreamedKind::Partitions => {
                format!(
                    "has {what}, whose rows are never published, also not once it is logged: {names}"
                )
            }
        }
    }

    /// Returns the fix. The name of the outbox table is quoted.
    #[must_use]
    pub fn fix(&self, table: &str) -> String {
        let Self { kind, names, columns } = self;
        let first = names.first().map_or("", String::as_str);
        // spliced: the names, in a text for a person.
        let insert = |from: &str| {
            format!(
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {from}"
            )
        };
        match kind {
            UnstreamedKind::Children => format!(
                "let producers write to {table}; then for each child, in one transaction: {}, and ALTER TABLE {first} NO INHERIT {table}; \
                 a table of an extension that adds chunks cannot be an outbox: use a plain or a partitioned table",
                insert(&format!("ONLY {first}")),
            ),
            UnstreamedKind::Partitions => format!(
                "for each unlogged partition, in one transaction: ALTER TABLE {first} SET LOGGED, and WITH moved AS (DELETE FROM \
                 {first} RETURNING *) {}; for each foreign table: ALTER TABLE {table} DETACH PARTITION {first}, create a table as \
                 partition for its rows, and {}",
                insert("moved"),
                insert(first),
            ),
        }
    }
}

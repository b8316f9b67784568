//! The publication, which selects the tables whose inserts the slot delivers.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::slot_error::SlotError;
use walrelay_pg_client::{QualifiedName, quote_identifier, sql};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationState {
    pub name: String,
    pub scope: PublicationScope,
    pub publishes: Vec<Operation>,
    pub tables: Vec<PublishedTable>,
    /// Whether rows of partitions are published under the partitioned table's name.
    pub via_root: bool,
}

/// The tables that a publication includes beyond those it lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicationScope {
    /// `FOR ALL TABLES`.
    AllTables,
    /// Only the listed tables, and all tables of these schemas.
    Listed {
        /// `FOR TABLES IN SCHEMA`.
        schemas: Vec<String>,
    },
}

/// An operation that a publication can publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Insert,
    Update,
    Delete,
    Truncate,
}

/// A table that a publication lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    pub name: QualifiedName,
    /// Row filter. Only rows that match it are published.
    pub row_filter: Option<String>,
    /// Published columns. None means all.
    pub columns: Option<Vec<String>>,
}

impl PublicationState {
    #[must_use]
    pub fn listed(&self, table: &QualifiedName) -> Option<&PublishedTable> {
        self.tables.iter().find(|published| published.name == *table)
    }

    /// Returns whether the publication includes this table.
    #[must_use]
    pub fn covers(&self, table: &QualifiedName) -> bool {
        let beyond = match &self.scope {
            PublicationScope::AllTables => true,
            PublicationScope::Listed { schemas } => schemas.iter().any(|s| s == table.schema()),
        };
        beyond || self.listed(table).is_some()
    }
}

/// Drops a publication if it exists.
///
/// # Errors
///
/// The role does not own the publication.
pub async fn drop_publication(client: &Client, name: &str) -> Result<(), SlotError> {
    let sql = format!("DROP PUBLICATION IF EXISTS {}", quote_identifier(name));
    let dropped = client.batch_execute(&sql).await;
    dropped.map_err(SlotError::sql(format!("drop publication {name:?}")))
}

/// Reads the state of the publication of this name. None if it does not exist.
pub async fn read_publication(
    client: &Client,
    name: &str,
) -> Result<Option<PublicationState>, SlotError> {
    let failed = || SlotError::sql(format!("read publication {name:?}"));
    let Some(row) = client
        .query_typed_opt(sql!("publication.sql", "read_publication"), &[(&name, Type::TEXT)])
        .await
        .map_err(failed())?
    else {
        return Ok(None);
    };
    let tables = client
        .query_typed(sql!("publication.sql", "published_tables"), &[(&name, Type::TEXT)])
        .await
        .map_err(failed())?;
    let operations = [
        ("pubinsert", Operation::Insert),
        ("pubupdate", Operation::Update),
        ("pubdelete", Operation::Delete),
        ("pubtruncate", Operation::Truncate),
    ];
    let scope = if row.get("puballtables") {
        PublicationScope::AllTables
    } else {
        PublicationScope::Listed { schemas: row.get("schemas") }
    };
    Ok(Some(PublicationState {
        name: name.to_owned(),
        scope,
        publishes: operations.into_iter().filter(|(c, _)| row.get(c)).map(|(_, o)| o).collect(),
        tables: tables
            .iter()
            .map(|table| PublishedTable {
                name: QualifiedName::new(
                    table.get::<_, String>("schema"),
                    table.get::<_, String>("name"),
                ),
                row_filter: table.get("row_filter"),
                columns: table.get("columns"),
            })
            .collect(),
        via_root: row.get("pubviaroot"),
    }))
}

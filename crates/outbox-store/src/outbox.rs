//! The outbox on the server: its tables, their publication, and the slot.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::shard::Shard;
use crate::store_error::StoreError;
use walrelay_pg_client::{QualifiedName, sql};

/// The outbox of a command. The configuration defines it once, and it is passed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The replication slot, which also names its rows in dispatch state.
    pub slot: String,
    pub publication: String,
    /// The tables that producers insert into, without repetition.
    pub tables: Vec<QualifiedName>,
    pub shard: Shard,
}

impl Outbox {
    #[must_use]
    pub fn of_shard(&self, shard: Shard) -> Self {
        Self {
            slot: shard.name(self.base_slot()),
            publication: shard.name(self.shard.base(&self.publication)),
            tables: self.tables.clone(),
            shard,
        }
    }

    /// Returns all shards of this outbox, for a number of shards.
    ///
    /// # Panics
    ///
    /// The number is not valid.
    #[must_use]
    pub fn shards(&self, count: u32) -> Vec<Self> {
        Shard::all(count).map(|shard| self.of_shard(shard)).collect()
    }

    /// Returns the slot of the whole outbox. The names of all shards' slots begin with it.
    #[must_use]
    pub fn base_slot(&self) -> &str {
        self.shard.base(&self.slot)
    }
}

/// Returns the object ids of the tables that exist, and of their partitions.
pub async fn read_table_ids(
    client: &Client,
    tables: &[QualifiedName],
) -> Result<Vec<u32>, StoreError> {
    let schemas: Vec<&str> = tables.iter().map(QualifiedName::schema).collect();
    let names: Vec<&str> = tables.iter().map(QualifiedName::table).collect();
    let rows = client
        .query_typed(
            sql!("outbox.sql", "table_ids"),
            &[(&schemas, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY)],
        )
        .await
        .map_err(StoreError::sql("read the ids of the outbox tables"))?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

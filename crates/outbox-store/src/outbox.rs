//! The outbox on the server: its tables, their publication, and the slot.

use crate::shard::Shard;
use walrelay_pg_client::QualifiedName;

/// The outbox of a command. The configuration defines it once, and it is passed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The replication slot, which also names its rows in dispatch state.
    pub slot: String,
    /// The publication that the slot decodes.
    pub publication: String,
    /// The tables that producers insert into, without repetition.
    pub tables: Vec<QualifiedName>,
    /// The shard of the rows that the slot streams.
    pub shard: Shard,
}

impl Outbox {
    /// Returns another shard of this outbox.
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

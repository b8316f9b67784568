//! The outbox as the server knows it: its tables, their publication, and the slot that is read.

use crate::shard::Shard;
use walrelay_pg_client::QualifiedName;

/// Which outbox a command is about. Said once in the configuration, and passed on whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The replication slot; also the name of its rows in dispatch state.
    pub slot: String,
    /// The publication the slot is read through.
    pub publication: String,
    /// The tables producers insert into, without repetition.
    pub tables: Vec<QualifiedName>,
    /// Which of the rows the slot has.
    pub shard: Shard,
}

impl Outbox {
    /// The same outbox, as another shard of it.
    #[must_use]
    pub fn of_shard(&self, shard: Shard) -> Self {
        Self {
            slot: shard.name(self.base_slot()),
            publication: shard.name(self.shard.base(&self.publication)),
            tables: self.tables.clone(),
            shard,
        }
    }

    /// All shards of it, if there are so many.
    ///
    /// # Panics
    ///
    /// When there cannot be so many.
    #[must_use]
    pub fn shards(&self, count: u32) -> Vec<Self> {
        Shard::all(count).map(|shard| self.of_shard(shard)).collect()
    }

    /// The slot of the whole outbox, with which the names of all shards begin.
    #[must_use]
    pub fn base_slot(&self) -> &str {
        self.shard.base(&self.slot)
    }
}

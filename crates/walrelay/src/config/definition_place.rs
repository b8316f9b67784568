//! Where the definition of an outbox is on record.

use walrelay_pg_client::ConnectConfig;

/// Where the definition of an outbox is on record.
#[derive(Debug, Clone)]
pub(crate) struct DefinitionPlace {
    /// Connection settings.
    pub connect: ConnectConfig,
    /// The slot, without the number of a shard.
    pub slot: String,
}

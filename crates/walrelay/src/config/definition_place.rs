//! Where the definition of an outbox is on record.

use std::time::Duration;

use walrelay_pg_client::ConnectConfig;

/// Where the definition of an outbox is on record.
#[derive(Debug, Clone)]
pub(crate) struct DefinitionPlace {
    /// Connection settings.
    pub(crate) connect: ConnectConfig,
    /// The slot, without the number of a shard.
    pub(crate) slot: String,
    /// Whether the command works without the definition.
    pub(crate) need: DefinitionNeed,
}

/// Whether a command works without the definition of its outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefinitionNeed {
    /// The command needs it.
    Required,
    /// The command makes the definition, or waits for it.
    Optional,
    /// The command reports what keeps the definition from being read, after this time.
    Reported(Duration),
}

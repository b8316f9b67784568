//! Where the definition of an outbox is on record.

use std::time::Duration;

use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::Definition;
use walrelay_pg_client::ConnectConfig;

#[derive(Debug, Clone)]
pub(crate) struct DefinitionPlace {
    pub(crate) connect: ConnectConfig,
    /// The slot if it is named, without the number of a shard.
    pub(crate) slot: Option<String>,
    pub(crate) need: DefinitionNeed,
}

/// The outbox that a command is about.
#[derive(Debug)]
pub(crate) struct NamedOutbox {
    /// Its slot, without the number of a shard.
    pub(crate) slot: String,
    /// Its definition on record, or why there is none.
    pub(crate) definition: Result<Definition, AdminError>,
}

/// Whether a command works without the definition of its outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefinitionNeed {
    Required,
    /// The command makes the definition, or waits for it.
    Optional,
    /// The command reports what keeps the definition from being read, after this time.
    Reported(Duration),
}

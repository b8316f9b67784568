//! What an operator asks a rebuild to do.

use walrelay_core::RouterConfig;
use walrelay_outbox_replay::replay::DeadRows;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{ConnectConfig, QualifiedName};
use walrelay_pubsub::Endpoint;

/// A rebuild of a consumer's read model by a new generation of the inbox.
#[derive(Debug, Clone)]
pub struct ConsumerRebuild {
    pub consumer: String,
    /// The SQL that empties the handler's tables.
    pub reset_sql: Option<String>,
    /// Full name of the subscription to create. `None` derives the name from the old one and the
    /// generation.
    pub subscription: Option<String>,
    pub endpoint: Endpoint,
}

#[derive(Debug, Clone)]
pub struct OutboxRows {
    /// Opens connections to the database of the outbox.
    pub connect: ConnectConfig,
    pub outbox: Outbox,
    pub router: RouterConfig,
    pub endpoint: Endpoint,
    /// Only these aggregate types. Empty means all.
    pub aggregate_types: Vec<String>,
    /// The treatment of rows that can never be published.
    pub dead_rows: DeadRows,
}

#[derive(Debug, Clone)]
pub struct SchemaRebuild {
    pub rows: OutboxRows,
    /// The function that applies the rows.
    pub handler: String,
    /// The schema with the handler's tables.
    pub schema: String,
    /// The SQL that makes the tables live. Without it, the rebuilt rows replace those of the live
    /// tables.
    pub switch_sql: Option<String>,
}

#[derive(Debug, Clone)]
pub struct KeyRebuild {
    pub rows: OutboxRows,
    pub handler: String,
    pub keys: Vec<String>,
    /// The function that undoes the handler's changes of these keys.
    pub reset: QualifiedName,
}

//! Reads the record of an outbox over a connection of its own.

use crate::error::Error;
use walrelay_outbox_replay::existing_definition;
use walrelay_outbox_store::Definition;
use walrelay_pg_client::{ConnectConfig, connect_sql};

/// Reads the definition of the outbox with this slot, given without the number of a shard.
///
/// # Errors
///
/// Postgres cannot be reached, or has no definition of the outbox.
pub(crate) async fn definition_on_record(
    connect: &ConnectConfig,
    slot: &str,
) -> Result<Definition, Error> {
    let client = connect_sql(connect).await?;
    let found = existing_definition(&client, slot).await;
    client.close().await;
    Ok(found?)
}

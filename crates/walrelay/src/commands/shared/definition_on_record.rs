//! Reads the record of an outbox over a connection of its own.

use walrelay_outbox_replay::named_definition;
use walrelay_pg_client::{ConnectConfig, connect_sql};

use crate::config::NamedOutbox;
use crate::error::Error;

/// Finds the outbox with this slot, given without the number of a shard. Without a slot, it is the only
/// one of the schema.
///
/// # Errors
///
/// Postgres cannot be reached, or has several outboxes and none is named.
pub(crate) async fn named_outbox(
    connect: &ConnectConfig,
    given: Option<&str>,
) -> Result<NamedOutbox, Error> {
    let client = connect_sql(connect).await?;
    let found = named_definition(&client, given).await;
    client.close().await;
    found.map(|(slot, definition)| NamedOutbox { slot, definition }).map_err(Error::from)
}

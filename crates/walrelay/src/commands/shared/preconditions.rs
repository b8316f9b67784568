//! Conditions that commands check before they read or change the outbox.

use walrelay_outbox_admin::protocols;
pub(in crate::commands) use walrelay_outbox_admin::protocols::{
    every_shard, position_of_time as at_time, refuse_unfinished, refuse_unrecorded,
    refuse_without_outbox,
};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::SqlClient;

use crate::error::Error;

/// Refuses a shard that does not exist, or no shard, when the outbox is sharded.
pub(in crate::commands) async fn refuse_other_shards(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<(), Error> {
    Ok(protocols::refuse_other_shards(client, outbox).await?)
}

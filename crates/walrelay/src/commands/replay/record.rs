//! A session for the records of replays.

use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{SqlClient, connect_outbox};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::DatabaseConfig;
use crate::error::Error;

/// Runs `work` in a session of the outbox's database.
pub(super) async fn in_session(
    database: &DatabaseConfig,
    shutdown: &Shutdown,
    work: impl AsyncFnOnce(&mut SqlClient) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut client = connect_outbox(&database.connect).await?;
    let done = run_until_shutdown(work(&mut client), shutdown).await;
    client.close().await;
    done
}

/// Returns the slots whose replays a command is about: that of a shard, and that of the whole outbox.
pub(super) fn slots_of(outbox: &Outbox) -> [String; 2] {
    [outbox.base_slot().to_owned(), outbox.slot.clone()]
}

//! The record of a release: everything is published, and the slot is dropped on purpose.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::sql;

use crate::admin_error::AdminError;

/// A release of the slot: everything is published, and the slot is dropped. Nothing creates it
/// again before an operator asks for it, or the server is upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRelease {
    pub system_identifier: String,
    /// Version of that server, as `server_version_num`.
    pub version: i32,
    pub stage: ReleaseStage,
}

impl SlotRelease {
    /// Returns whether the server has been upgraded or replaced since.
    #[must_use]
    pub fn is_of_another_server(&self, system_identifier: &str, version: i32) -> bool {
        system_identifier != self.system_identifier || version != self.version
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseStage {
    /// The slot still exists, and relays can continue with it.
    Draining,
    /// The slot is dropped.
    Released,
}

/// Records a release, so that relays let go of the slot and wait.
/// Returns false if another operation is unfinished.
pub async fn begin_release(
    client: &Client,
    slot: &str,
    release: &SlotRelease,
) -> Result<bool, AdminError> {
    let written = client
        .execute_typed(
            sql!("operation.sql", "begin_release"),
            &[
                (&slot, Type::TEXT),
                (&release.system_identifier, Type::TEXT),
                (&release.version, Type::INT4),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

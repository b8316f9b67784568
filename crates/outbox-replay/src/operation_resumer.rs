//! The resources for finishing an operation, and the step that every operation starts with: the
//! relay releases the slot, and the slot is dropped.

mod new_slot;
pub mod outcome;
pub mod reset;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_pg_client::{ConnectConfig, ServerErrorKind, SqlClient};
use walrelay_pg_replication::{SlotError, drop_slot, read_slot};
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::health::Health;
use walrelay_relay::shutdown::Shutdown;

use crate::admin_error::AdminError;
use crate::lost_slot::refuse_other_slot;
use crate::slot_holder::{HolderActivity, end_session, read_slot_holder};

/// How long a relay may take to notice that it lost the slot and to release it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which the finisher checks whether the slot was released.
const PAUSE: Duration = Duration::from_millis(200);

/// Finishes an operation that was begun with a slot.
#[derive(Debug)]
pub struct OperationResumer<'a> {
    /// A separate session, which holds the lock of the operation.
    pub client: &'a SqlClient,
    /// Opens the additional connections.
    pub connect: &'a ConnectConfig,
    pub slot: &'a str,
    /// Receives the current operation and the reason for each wait.
    pub health: &'a Health,
    /// A shutdown request. The finisher then stops, and leaves no statement waiting on the server.
    pub stop: &'a Shutdown,
}

impl OperationResumer<'_> {
    /// Drops the slot as soon as no session holds it.
    ///
    /// A streaming relay releases the slot by itself once it sees the new generation. If a dead
    /// process left a slot creation behind, this method ends it: no client would use the new slot.
    ///
    /// # Errors
    ///
    /// A session holds the slot and does not release it.
    pub async fn drop_when_free(&self) -> Result<(), RelayError> {
        let Self { client, slot, .. } = self;
        let until = Instant::now() + RELEASE_TIMEOUT;
        loop {
            refuse_other_slot(client, slot).await?;
            let error = match drop_slot(client, slot).await {
                Ok(()) | Err(SlotError::SlotMissing { .. }) => return Ok(()),
                Err(error) => error,
            };
            match error.server_kind() {
                Some(ServerErrorKind::SlotActive { .. }) => {}
                // The slot was dropped between the check and the statement.
                Some(ServerErrorKind::Missing) => return Ok(()),
                Some(_) | None => return Err(RelayError::survey(error)),
            }
            self.check_holder(until).await?;
            sleep(PAUSE).await;
        }
    }

    /// Reports the session that holds the slot. Fails if the slot is still held at `until`.
    async fn check_holder(&self, until: Instant) -> Result<(), RelayError> {
        let Self { client, slot, health, .. } = self;
        let state = read_slot(client, slot).await?;
        let Some(pid) = state.and_then(|state| state.active_pid) else { return Ok(()) };
        let holder = read_slot_holder(client, pid).await?;
        health.waits_for(&format!("the slot is held by {holder}"));
        if holder.does == HolderActivity::Makes {
            return self.end_abandoned(pid).await;
        }
        match Instant::now() < until {
            true => Ok(()),
            false => Err(RelayError::survey(AdminError::SlotHeld {
                slot: (*slot).to_owned(),
                holder: holder.to_string(),
            })),
        }
    }

    /// This process holds the lock, so none of our processes waits for the slot.
    async fn end_abandoned(&self, pid: i32) -> Result<(), RelayError> {
        tracing::warn!(
            pid,
            slot = self.slot,
            "a new slot was begun by a process that is gone, and the server still makes it: ending that"
        );
        match end_session(self.client, pid).await {
            Ok(_) => Ok(()),
            Err(error) if error.server_kind() == Some(ServerErrorKind::Privilege) => {
                let slot = self.slot.to_owned();
                Err(RelayError::survey(AdminError::Abandoned { slot, pid }))
            }
            Err(error) => Err(RelayError::survey(error)),
        }
    }
}

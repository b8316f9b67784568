//! What finishing an operation needs, and the first thing that every one of them does: the slot is let go
//! of, and dropped.

use std::time::Duration;
use walrelay_pg_replication::{SlotError, drop_slot, read_slot};

use tokio::time::{Instant, sleep};
use walrelay_outbox_admin::{AdminError, SlotUse, end_session, read_slot_user};
use walrelay_pg_client::{ConnectConfig, ServerErrorKind, SqlClient};

use crate::error::RelayError;
use crate::observe::health::Health;
use crate::shutdown::Shutdown;

/// How long a relay may take to see that the slot is no longer its own, and to let go of it.
const LETTING_GO: Duration = Duration::from_secs(30);

/// How often it is looked whether it has.
const PAUSE: Duration = Duration::from_millis(200);

/// Whoever finishes what has been begun with a slot.
#[derive(Debug)]
pub struct Finisher<'a> {
    /// A session of its own, which holds the lock meanwhile.
    pub client: &'a SqlClient,
    /// For the connections that it needs besides.
    pub connect: &'a ConnectConfig,
    /// The slot.
    pub slot: &'a str,
    /// Told what is going on and what it waits for.
    pub health: &'a Health,
    /// Asks it to leave nothing behind that waits.
    pub stop: &'a Shutdown,
}

impl Finisher<'_> {
    /// A relay that streams lets go by itself once it sees the new generation. What a process that is gone
    /// has left half made is ended: the server would make it for nobody.
    ///
    /// # Errors
    ///
    /// Somebody holds the slot and does not let go, the server refuses, or the connection ended.
    pub async fn drop_when_free(&self) -> Result<(), RelayError> {
        let Self { client, slot, .. } = self;
        let until = Instant::now() + LETTING_GO;
        loop {
            let error = match drop_slot(client, slot).await {
                Ok(()) | Err(SlotError::SlotMissing { .. }) => return Ok(()),
                Err(error) => error,
            };
            match error.server_kind() {
                Some(ServerErrorKind::SlotActive { .. }) => {}
                // Dropped between our look and our statement.
                Some(ServerErrorKind::Missing) => return Ok(()),
                Some(_) | None => return Err(RelayError::survey(error)),
            }
            self.look_at_holder(until).await?;
            sleep(PAUSE).await;
        }
    }

    /// Whoever holds the slot, until then.
    async fn look_at_holder(&self, until: Instant) -> Result<(), RelayError> {
        let Self { client, slot, health, .. } = self;
        let state = read_slot(client, slot).await.map_err(RelayError::survey)?;
        let Some(pid) = state.and_then(|state| state.active_pid) else { return Ok(()) };
        let holder = read_slot_user(client, pid).await.map_err(RelayError::survey)?;
        health.waits_for(&format!("the slot is held by {holder}"));
        if holder.does == SlotUse::Makes {
            return self.end_abandoned(pid).await;
        }
        match Instant::now() < until {
            true => Ok(()),
            false => Err(RelayError::Survey(AdminError::SlotHeld {
                slot: (*slot).to_owned(),
                holder: holder.to_string(),
            })),
        }
    }

    /// We have the lock, so no process of ours waits for that slot.
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
                Err(RelayError::Survey(AdminError::Abandoned { slot, pid }))
            }
            Err(error) => Err(RelayError::survey(error)),
        }
    }
}

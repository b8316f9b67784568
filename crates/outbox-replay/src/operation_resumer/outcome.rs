//! Finishes operations that an operator has begun with the slot: a [reset](super::reset), or the
//! new slot of a recovery.

use walrelay_errors::Code;
use walrelay_outbox_store::{
    CopyLifetime, copy_slot, read_recorded_system_identifier, read_relay_row,
};
use walrelay_pg_client::{ConnectConfig, PgError, quote_identifier};
use walrelay_pg_replication::{Failover, ReplicationConnection, read_slot, read_version};
use walrelay_relay::error::RelayError;

use crate::operation::{
    Reset, SlotOperation, cancel_operation, finish_reset, read_operation, release_operation,
    take_operation,
};
use crate::operation_resumer::OperationResumer;
use crate::operation_resumer::new_slot;
use crate::operation_resumer::reset::{ResetEnd, ResetSteps, run_reset};
use crate::release::{ReleaseStage, SlotRelease};
use crate::slot_holder::describe_unfinished;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No operation was on record.
    Nothing,
    Finished(SlotOperation),
    /// The reset is cancelled because its anchor is gone. The slot stays as it is.
    ResetCancelled(Reset),
    /// No process worked on the release, and the slot was unchanged. The release is cancelled.
    ReleaseCancelled(SlotOperation),
    /// The slot exists. Rows that it does not stream must be published before the slot is used.
    Pending(SlotOperation),
    /// Another process works on the operation, or another command must finish it.
    Elsewhere {
        operation: SlotOperation,
        /// The operation, and the reason for its wait, in words.
        what: String,
    },
}

impl OperationResumer<'_> {
    /// Finishes the operation on record, unless another process works on it.
    ///
    /// # Errors
    ///
    /// A session holds the slot and does not release it, or a shutdown was requested.
    pub async fn finish(&self) -> Result<Outcome, RelayError> {
        let Self { client, slot, health, .. } = self;
        let Some(seen) = self.read().await? else {
            health.set_operation(None);
            return Ok(Outcome::Nothing);
        };
        health.set_operation(Some(seen.describe(slot)));
        if !take_operation(client, slot).await? {
            let what = describe_unfinished(client, slot, &seen).await?;
            health.set_operation(Some(what.clone()));
            return Ok(Outcome::Elsewhere { operation: seen, what });
        }
        let done = self.finish_taken().await;
        release_operation(client, slot).await?;
        match &done {
            Ok(
                Outcome::Nothing
                | Outcome::Finished(_)
                | Outcome::ResetCancelled(_)
                | Outcome::ReleaseCancelled(_),
            ) => {
                health.set_operation(None);
            }
            Ok(Outcome::Pending(pending)) => health.set_operation(Some(pending.describe(slot))),
            Ok(Outcome::Elsewhere { what, .. }) => health.set_operation(Some(what.clone())),
            Err(_) => {}
        }
        done
    }

    async fn read(&self) -> Result<Option<SlotOperation>, RelayError> {
        Ok(read_operation(self.client, self.slot).await?)
    }

    /// Reads the operation again: the previous holder of the lock may have finished it.
    async fn finish_taken(&self) -> Result<Outcome, RelayError> {
        match self.read().await? {
            Some(SlotOperation::Reset(begun)) => self.reset(begun).await,
            Some(SlotOperation::Recovery(begun)) => {
                let mut recovery = begun;
                // No slot was created yet, or it was lost again. The lower bound remains valid.
                if recovery.parts.is_empty() || !self.has_slot().await? {
                    let part = new_slot::create(self, &recovery).await?;
                    recovery.parts.push(part);
                }
                Ok(Outcome::Pending(SlotOperation::Recovery(recovery)))
            }
            Some(SlotOperation::Release(begun)) => self.check_release(begun).await,
            // Only the command sees the slots of both shard counts.
            Some(begun @ SlotOperation::Resharding(_)) => {
                Ok(Outcome::Elsewhere { what: begun.describe(self.slot), operation: begun })
            }
            None => Ok(Outcome::Nothing),
        }
    }

    /// Checks a recorded release. No process creates the slot again by itself before the server is
    /// upgraded, because a slot would block `pg_upgrade` or retain WAL. The process that releases a
    /// slot holds the lock. This process now has the lock, so that process is gone, and a release
    /// whose slot exists is cancelled.
    async fn check_release(&self, release: SlotRelease) -> Result<Outcome, RelayError> {
        let here = read_recorded_system_identifier(self.client, self.slot).await?;
        let version = read_version(self.client).await?;
        if release.is_of_another_server(&here, version) {
            return Ok(Outcome::Nothing);
        }
        let stage = release.stage;
        let begun = SlotOperation::Release(release);
        match stage {
            ReleaseStage::Draining => {
                let Self { client, slot, .. } = self;
                cancel_operation(client, slot).await?;
                tracing::warn!(
                    slot,
                    "the process that released the slot is gone: the release is cancelled, and the slot continues"
                );
                Ok(Outcome::ReleaseCancelled(begun))
            }
            ReleaseStage::Released => {
                Ok(Outcome::Elsewhere { what: begun.describe(self.slot), operation: begun })
            }
        }
    }

    /// Returns whether the slot that was created for a recovery still exists and is the same slot.
    /// Its WAL never begins after the settled position on record.
    pub(crate) async fn has_slot(&self) -> Result<bool, RelayError> {
        // In this order, because the record moves before the slot.
        let slot = read_slot(self.client, self.slot).await?;
        let row = read_relay_row(self.client, self.slot).await?;
        Ok(slot.zip(row).is_some_and(|(slot, row)| {
            let is_same = slot.restart_lsn.is_some_and(|restart| restart <= row.settled_lsn);
            is_same && !slot.is_lost()
        }))
    }

    async fn reset(&self, reset: Reset) -> Result<Outcome, RelayError> {
        let slot = self.slot;
        let what = reset.describe(slot);
        tracing::info!(slot, "finishing {what}");
        let mut steps = OnServer { finisher: self, reset: &reset };
        match run_reset(&mut steps).await? {
            ResetEnd::Done => {
                tracing::info!(slot, target = %reset.target, "the slot is reset");
                Ok(Outcome::Finished(SlotOperation::Reset(reset)))
            }
            ResetEnd::Cancelled => {
                tracing::error!(
                    error_code = Code::AnchorLost.name(),
                    slot,
                    "{what} is abandoned, because the anchor is gone. If the slot still exists, it continues \
                     where it was. Otherwise it is lost"
                );
                Ok(Outcome::ResetCancelled(reset))
            }
        }
    }
}

/// The steps of a reset, on a real server.
struct OnServer<'a> {
    finisher: &'a OperationResumer<'a>,
    reset: &'a Reset,
}

impl ResetSteps for OnServer<'_> {
    async fn has_anchor(&mut self) -> Result<bool, RelayError> {
        Ok(self.reset.has_anchor(self.finisher.client).await?)
    }

    async fn drop_live(&mut self) -> Result<(), RelayError> {
        self.finisher.drop_when_free().await
    }

    async fn copy_anchor(&mut self) -> Result<(), RelayError> {
        let OperationResumer { client, slot, .. } = self.finisher;
        let copied = copy_slot(client, &self.reset.anchor_slot, slot, CopyLifetime::Kept).await;
        Ok(copied.map(drop)?)
    }

    async fn restore_failover(&mut self) -> Result<(), RelayError> {
        let OperationResumer { connect, slot, .. } = self.finisher;
        match self.reset.failover {
            Failover::Yes => mark_failover(connect, slot).await.map_err(RelayError::Connect),
            Failover::No => Ok(()),
        }
    }

    async fn finish(&mut self) -> Result<(), RelayError> {
        let OperationResumer { client, slot, .. } = self.finisher;
        Ok(finish_reset(client, slot, self.reset).await?)
    }

    async fn cancel(&mut self) -> Result<(), RelayError> {
        let OperationResumer { client, slot, .. } = self.finisher;
        Ok(cancel_operation(client, slot).await?)
    }
}

/// Makes a slot a failover slot. Only a walsender can change the flag, and only while no session
/// holds the slot.
///
/// # Errors
///
/// The server is older than Postgres 17, or a session holds the slot.
pub async fn mark_failover(connect: &ConnectConfig, slot: &str) -> Result<(), PgError> {
    let mut replication = ReplicationConnection::connect(connect, &[]).await?;
    let sql = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", quote_identifier(slot));
    replication.simple_query(&sql).await.map(drop)
}

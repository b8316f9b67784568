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
use crate::release::ReleaseStage;
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

/// The next step of an operation that no other process works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// All steps of a reset, from the first.
    Reset,
    CreateSlot,
    /// The slot exists. The relay publishes the rows that it does not stream.
    Publish,
    CancelRelease,
    /// A recovery may begin on the upgraded server.
    Recover,
    /// Only a command continues it.
    Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    slot: FoundSlot,
    server: Server,
}

/// The slot of the name, beside the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundSlot {
    /// It is the slot on record, with its WAL.
    OnRecord,
    /// There is none, or it is lost, or another slot of this name.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    OnRecord,
    Upgraded,
}

/// Decides the next step. A stage is what the record says, and never what the slots look like. The
/// slot that a stage relies on has to be the one on record: otherwise the operation goes back to the
/// step that creates it.
fn next(operation: &SlotOperation, facts: Facts) -> Action {
    match operation {
        SlotOperation::Reset(_) => Action::Reset,
        SlotOperation::Recovery(begun) => match facts.slot {
            FoundSlot::OnRecord if !begun.parts.is_empty() => Action::Publish,
            FoundSlot::OnRecord | FoundSlot::Other => Action::CreateSlot,
        },
        SlotOperation::Release(begun) => match (facts.server, begun.stage) {
            (Server::Upgraded, _) => Action::Recover,
            // The process that releases a slot holds the lock. It is gone, because this one has it.
            (Server::OnRecord, ReleaseStage::Draining) => Action::CancelRelease,
            // A slot would block `pg_upgrade`, or retain WAL.
            (Server::OnRecord, ReleaseStage::Released) => Action::Wait,
        },
        // Only the command sees the slots of both shard counts.
        SlotOperation::Resharding(_) => Action::Wait,
    }
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
        let Some(operation) = self.read().await? else { return Ok(Outcome::Nothing) };
        let action = next(&operation, self.facts(&operation).await?);
        match (action, operation) {
            (Action::Reset, SlotOperation::Reset(begun)) => self.reset(begun).await,
            (Action::CreateSlot, SlotOperation::Recovery(begun)) => {
                let mut recovery = begun;
                let part = new_slot::create(self, &recovery).await?;
                recovery.parts.push(part);
                Ok(Outcome::Pending(SlotOperation::Recovery(recovery)))
            }
            (Action::CancelRelease, begun) => {
                let Self { client, slot, .. } = self;
                cancel_operation(client, slot).await?;
                tracing::warn!(
                    slot,
                    "the process that released the slot is gone: the release is cancelled, and the slot continues"
                );
                Ok(Outcome::ReleaseCancelled(begun))
            }
            (Action::Recover, _) => Ok(Outcome::Nothing),
            (Action::Publish | Action::Reset | Action::CreateSlot, begun) => {
                Ok(Outcome::Pending(begun))
            }
            (Action::Wait, begun) => {
                Ok(Outcome::Elsewhere { what: begun.describe(self.slot), operation: begun })
            }
        }
    }

    /// Reads what decides about the operation.
    async fn facts(&self, operation: &SlotOperation) -> Result<Facts, RelayError> {
        let slot = match self.has_slot().await? {
            true => FoundSlot::OnRecord,
            false => FoundSlot::Other,
        };
        let is_moved = match operation {
            SlotOperation::Release(release) => {
                let here = read_recorded_system_identifier(self.client, self.slot).await?;
                release.is_of_another_server(&here, read_version(self.client).await?)
            }
            SlotOperation::Reset(_) | SlotOperation::Recovery(_) | SlotOperation::Resharding(_) => {
                false
            }
        };
        Ok(Facts { slot, server: if is_moved { Server::Upgraded } else { Server::OnRecord } })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Again, Resharding, SettledBound, SlotRecovery, SlotSnapshot};
    use crate::release::SlotRelease;
    use pgoutput_parser::Lsn;

    fn recovery(parts: usize) -> SlotOperation {
        let part = SlotSnapshot { consistent_point: Lsn::new(1), snapshot: "3:3:".to_owned() };
        SlotOperation::Recovery(SlotRecovery {
            id: "r".to_owned(),
            failover: Failover::No,
            bound: SettledBound::Horizon,
            unpublished_where: None,
            parts: vec![part; parts],
            settled_snapshot: None,
        })
    }

    fn release(stage: ReleaseStage) -> SlotOperation {
        let system_identifier = "s".to_owned();
        SlotOperation::Release(SlotRelease { system_identifier, version: 17, stage })
    }

    fn reset() -> SlotOperation {
        SlotOperation::Reset(Reset {
            anchor_slot: "a".to_owned(),
            target: Lsn::new(1),
            failover: Failover::No,
            again: Again::Published,
        })
    }

    /// Each operation in each stage. Columns: the slot on record, another one or none; the same on an
    /// upgraded server.
    #[test]
    fn each_stage_has_one_next_step_for_each_slot_and_server() {
        use Action::{CancelRelease, CreateSlot, Publish, Recover, Wait};
        let table = [
            (reset(), [Action::Reset; 4]),
            (recovery(0), [CreateSlot; 4]),
            (recovery(1), [Publish, CreateSlot, Publish, CreateSlot]),
            (recovery(2), [Publish, CreateSlot, Publish, CreateSlot]),
            (release(ReleaseStage::Draining), [CancelRelease, CancelRelease, Recover, Recover]),
            (release(ReleaseStage::Released), [Wait, Wait, Recover, Recover]),
            (SlotOperation::Resharding(Resharding { from: 1, to: 2 }), [Wait; 4]),
        ];
        for (operation, actions) in table {
            let facts = [Server::OnRecord, Server::Upgraded].into_iter().flat_map(|server| {
                [FoundSlot::OnRecord, FoundSlot::Other].map(|slot| Facts { slot, server })
            });
            let found: Vec<Action> = facts.map(|facts| next(&operation, facts)).collect();
            assert_eq!(found, actions, "{operation:?}");
        }
    }
}

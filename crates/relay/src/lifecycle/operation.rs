//! Finishing what an operator has begun with the slot: a reset, step by step; of a recovery the new slot.
//!
//! ```text
//! on record ──▶ live slot gone ──▶ copy of the anchor ──▶ failover as before ──▶ settled up to the target
//! ```
//!
//! Every step may be the last that a process makes. Whoever comes next begins at the first again: a
//! copy that is made anew loses nothing, because the anchor stays.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_postgres::{
    ConnectConfig, Failover, Recovery, ReplicationConnection, Reset, ServerErrorKind, SlotLife,
    SlotOperation, SqlClient, StoreError, copy_slot, drop_slot, finish_reset, give_up_operation,
    quote_identifier, read_operation, read_slot, release_operation, take_operation,
};

use crate::error::RelayError;
use crate::failpoint;
use crate::lifecycle::new_slot;

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There was none.
    Nothing,
    /// It is done now.
    Finished(SlotOperation),
    /// The slot is there; what it does not stream has to be published before it is used.
    Pending(SlotOperation),
    /// Another process is at it.
    Elsewhere(SlotOperation),
}

/// How long a relay may take to see that the slot is no longer its own, and to let go of it.
const LETTING_GO: Duration = Duration::from_secs(30);

/// How often it is looked whether it has.
const PAUSE: Duration = Duration::from_millis(200);

/// Finishes whatever has been begun with the slot, unless another process is at it.
///
/// # Errors
///
/// The anchor is gone, somebody holds the slot and does not let go, the server refuses, or a
/// connection ends.
pub async fn finish(
    client: &SqlClient,
    connect: &ConnectConfig,
    slot: &str,
) -> Result<Outcome, RelayError> {
    let read = async || read_operation(client, slot).await.map_err(RelayError::Survey);
    let Some(seen) = read().await? else { return Ok(Outcome::Nothing) };
    if !take_operation(client, slot).await.map_err(RelayError::Survey)? {
        return Ok(Outcome::Elsewhere(seen));
    }
    // Read again: whoever had it until now may have finished it.
    let done = match read().await {
        Ok(Some(SlotOperation::Reset(begun))) => {
            let done = reset(client, connect, (slot, &begun)).await;
            done.map(|()| Outcome::Finished(SlotOperation::Reset(begun)))
        }
        Ok(Some(SlotOperation::Recovery(begun))) if begun.filling.is_none() => {
            let made = new_slot::create(client, connect, (slot, &begun)).await;
            made.map(|filling| {
                Outcome::Pending(SlotOperation::Recovery(Recovery {
                    filling: Some(filling),
                    ..begun
                }))
            })
        }
        Ok(Some(pending @ SlotOperation::Recovery(_))) => Ok(Outcome::Pending(pending)),
        Ok(None) => Ok(Outcome::Nothing),
        Err(error) => Err(error),
    };
    release_operation(client, slot).await.map_err(RelayError::Survey)?;
    done
}

async fn reset(
    client: &SqlClient,
    connect: &ConnectConfig,
    (slot, reset): (&str, &Reset),
) -> Result<(), RelayError> {
    let what = reset.describe(slot);
    tracing::info!(slot, "finishing {what}");
    failpoint::hit("reset-begun");
    let anchor = read_slot(client, &reset.anchor_slot).await.map_err(RelayError::Survey)?;
    if anchor.is_none_or(|anchor| anchor.is_lost()) {
        // Nothing can finish it any more. Where the slot still is, it goes on; where not, it is lost.
        give_up_operation(client, slot).await.map_err(RelayError::Survey)?;
        let gone = StoreError::AnchorLost { anchor: reset.anchor_slot.clone() };
        return Err(RelayError::Survey(gone));
    }
    drop_when_free(client, slot).await?;
    failpoint::hit("reset-dropped");
    copy_slot(client, (&reset.anchor_slot, slot), SlotLife::Kept)
        .await
        .map_err(RelayError::Survey)?;
    failpoint::hit("reset-copied");
    if reset.failover == Failover::Yes {
        mark_failover(connect, slot).await?;
    }
    failpoint::hit("reset-marked");
    finish_reset(client, slot, reset).await.map_err(RelayError::Survey)?;
    failpoint::hit("reset-finished");
    tracing::info!(slot, target = %reset.target, "the slot is reset");
    Ok(())
}

/// A relay that streams lets go by itself once it sees the new generation.
async fn drop_when_free(client: &SqlClient, slot: &str) -> Result<(), RelayError> {
    let until = Instant::now() + LETTING_GO;
    loop {
        match drop_slot(client, slot).await {
            Ok(()) | Err(StoreError::SlotMissing { .. }) => return Ok(()),
            Err(error) => match error.server_kind() {
                Some(ServerErrorKind::SlotActive { .. }) if Instant::now() < until => {}
                // Dropped between our look and our statement.
                Some(ServerErrorKind::Missing) => return Ok(()),
                Some(_) | None => return Err(RelayError::Survey(error)),
            },
        }
        sleep(PAUSE).await;
    }
}

/// A copy is no failover slot, whatever its original was; only a walsender can make it one.
async fn mark_failover(connect: &ConnectConfig, slot: &str) -> Result<(), RelayError> {
    let mut replication =
        ReplicationConnection::connect(connect, &[]).await.map_err(RelayError::Connect)?;
    let sql = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", quote_identifier(slot));
    replication.simple_query(&sql).await.map_err(RelayError::Connect)?;
    Ok(())
}

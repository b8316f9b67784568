//! Releases the slot: publishes and confirms everything, then drops the slot and the anchors. A
//! server with slots cannot be upgraded, and each slot retains WAL.
//!
//! ```text
//! recorded ──▶ relays let go of the slot ──▶ drained, confirmed ──▶ anchors and slot dropped ──▶ recovery
//! ```
//!
//! The protocol holds the lock of the slot's operation from before the operation is recorded until
//! the slot is dropped. A relay that finds the record without the lock knows that the process has
//! died, and cancels the operation.
//!
//! Producers need not stop. Rows that they write after the drain are above the settled horizon, and
//! a recovery publishes them from the table. Until then relays wait, and create no slot.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::{
    AdminError, ReleaseStage, SlotOperation, SlotRelease, begin_release, cancel_operation,
    read_loss, read_operation, refuse_lost, take_operation,
};
use walrelay_outbox_store::{read_anchors, read_recorded_system_identifier, read_relay_row};
use walrelay_pg_client::{SqlClient, SqlError};
use walrelay_pg_replication::{drop_slot, read_slot, read_version};
use walrelay_relay::failpoint;
use walrelay_relay::observe::health::Health;
use walrelay_relay::settings::{Settings, Until};

use super::conflicts::{Facts, Wanted};
use super::drain::{connect_publisher, drain, pause, wait_until_free};
use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{not_finished, refuse_unfinished, refuse_unrecorded};
use super::protocol_error::ProtocolError;

/// The state after the command.
#[derive(Debug, PartialEq, Eq)]
pub enum Released {
    /// The slot was released on another server, so this one is an upgrade of it.
    OnAnotherServer,
    /// The slot and its anchors are dropped.
    Dropped(ReleasedSlot),
}

#[derive(Debug, PartialEq, Eq)]
pub struct ReleasedSlot {
    /// Number of dropped anchors.
    pub anchors: usize,
    /// Every transaction below this one is settled.
    pub settled_xid: u64,
    /// Slots of others, which block an upgrade.
    pub other_slots: Vec<String>,
}

/// Drains and drops the slot. Returns `None` after a dry run. Until the slot is dropped, a failure
/// leaves everything unchanged.
///
/// # Errors
///
/// The slot is missing or lost, another operation is unfinished, a relay does not release the slot,
/// Pub/Sub refuses, or the operator asked to stop.
pub async fn release<O: Operator>(
    session: &AdminSession<'_, O>,
    settings: &Settings,
) -> Result<Option<Released>, ProtocolError> {
    let client = session.client;
    let slot = settings.relay.outbox.slot.as_str();
    lock_operation(session, slot).await?;
    let facts = Facts::of_slot(client, &settings.relay.outbox).await?;
    facts.refuse(client, Wanted::ReleaseSlot).await?;
    let begun = facts.release();
    if let Some(release) = begun
        && read_slot(client, slot).await?.is_none()
    {
        return after_drop(client, slot, release).await.map(Some);
    }
    refuse_lost(client, slot).await?;
    refuse_unrecorded(client, slot).await?;
    if begun.is_none() {
        let change = async || {
            let anchors = read_anchors(client, slot).await?.len();
            Ok(Change::ReleaseSlot { slot: slot.to_owned(), anchors })
        };
        if !session.agree(change).await? {
            return Ok(None);
        }
    }
    begin(client, slot).await?;
    if let Err(error) = Box::pin(drain_slot(session, settings)).await {
        // Nothing is dropped yet, so relays continue as before.
        cancel_operation(client, slot).await?;
        return Err(error);
    }
    failpoint::hit("release-drained");
    let anchors = drop_slots(client, slot).await?;
    dropped(client, slot, anchors).await.map(Some)
}

/// Longest wait for the lock. Relays hold the lock only while they read the record.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between lock attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Locks the slot's operation until the connection ends.
async fn lock_operation<O: Operator>(
    session: &AdminSession<'_, O>,
    slot: &str,
) -> Result<(), ProtocolError> {
    let until = Instant::now() + LOCK_TIMEOUT;
    while !take_operation(session.client, slot).await? {
        if Instant::now() >= until {
            refuse_unfinished(session.client, slot).await?;
        }
        pause(PAUSE, session.stop).await?;
    }
    Ok(())
}

async fn begin(client: &SqlClient, slot: &str) -> Result<(), ProtocolError> {
    let system_identifier = read_recorded_system_identifier(client, slot).await?;
    let (version, stage) = (read_version(client).await?, ReleaseStage::Draining);
    let release = SlotRelease { system_identifier, version, stage };
    begin_release(client, slot, &release).await?;
    failpoint::hit("release-begun");
    Ok(())
}

/// Publishes and confirms everything that was committed before.
async fn drain_slot<O: Operator>(
    session: &AdminSession<'_, O>,
    settings: &Settings,
) -> Result<(), ProtocolError> {
    let AdminSession { client, stop, .. } = session;
    let slot = settings.relay.outbox.slot.as_str();
    wait_until_free(client, slot, stop).await?;
    let publisher = connect_publisher(settings, stop).await?;
    Box::pin(drain(settings, publisher, Until::CaughtUp, stop)).await?;
    wait_until_free(client, slot, stop).await
}

/// Drops the anchors, then the slot. Returns the number of anchors.
async fn drop_slots(client: &SqlClient, slot: &str) -> Result<usize, ProtocolError> {
    let anchors = read_anchors(client, slot).await?;
    for anchor in &anchors {
        drop_slot(client, &anchor.slot.name).await?;
    }
    failpoint::hit("release-unanchored");
    drop_slot(client, slot).await?;
    failpoint::hit("release-dropped");
    Ok(anchors.len())
}

/// Returns the state if an earlier run has dropped the slot, or died just before it recorded that.
async fn after_drop(
    client: &SqlClient,
    slot: &str,
    release: &SlotRelease,
) -> Result<Released, ProtocolError> {
    let here = read_recorded_system_identifier(client, slot).await?;
    match release.is_of_another_server(&here, read_version(client).await?) {
        true => Ok(Released::OnAnotherServer),
        false => dropped(client, slot, 0).await,
    }
}

async fn dropped(
    client: &SqlClient,
    slot: &str,
    anchors: usize,
) -> Result<Released, ProtocolError> {
    let settled_xid = read_relay_row(client, slot).await?.map_or(0, |row| row.settled_xid);
    let others = "SELECT slot_name::text FROM pg_replication_slots WHERE NOT temporary ORDER BY 1";
    let others = client.query_typed(others, &[]).await;
    let others = others.map_err(SqlError::sql("look for other slots"))?;
    let other_slots = others.iter().map(|other| other.get(0)).collect();
    Ok(Released::Dropped(ReleasedSlot { anchors, settled_xid, other_slots }))
}

/// Returns the release of a slot that still exists.
async fn draining_release(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<SlotOperation>, AdminError> {
    let is_begun = |it: &SlotOperation| {
        let draining = ReleaseStage::Draining;
        matches!(it, SlotOperation::Release(release) if release.stage == draining)
    };
    Ok(read_operation(client, slot).await?.filter(is_begun))
}

/// Cancels an unfinished release whose slot still exists.
pub(super) async fn cancel_begun_release<O: Operator>(
    session: &AdminSession<'_, O>,
    slot: &str,
) -> Result<bool, ProtocolError> {
    let client = session.client;
    let Some(begun) = draining_release(client, slot).await? else { return Ok(false) };
    match session.resumer(slot, &Health::new()).finish().await? {
        Outcome::Elsewhere { .. } => Err(not_finished(client, slot, &begun).await?.into()),
        Outcome::ReleaseCancelled(_) => Ok(read_loss(client, slot).await?.is_none()),
        Outcome::Nothing
        | Outcome::Finished(_)
        | Outcome::ResetCancelled(_)
        | Outcome::Pending(_) => Ok(false),
    }
}

//! Prepares an upgrade of the server: publishes and confirms everything, then drops the slot and
//! the anchors, because a server with slots cannot be upgraded. Also cancels and finishes it.
//!
//! ```text
//! recorded ──▶ relays release the slot ──▶ drained, confirmed ──▶ anchors and slot dropped ──▶ upgrade ──▶ recovery
//! ```
//!
//! The protocol holds the lock of the slot's operation from before the operation is recorded until
//! the slot is dropped. A relay that finds the record without the lock knows that the process has
//! died, and cancels the operation.
//!
//! Producers need not stop. Rows that they write after the drain are above the settled horizon, and
//! a recovery publishes them from the table. Until the upgrade relays wait, and create no slot.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::Instant;
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::{
    AdminError, SlotOperation, UpgradePreparation, UpgradeStage, adopt_slot, begin_upgrade,
    cancel_operation, read_loss, read_operation, refuse_lost, take_operation,
};
use walrelay_outbox_store::{
    Outbox, is_same_origin, read_anchors, read_recorded_system_identifier, read_relay_row,
};
use walrelay_pg_client::{SqlClient, SqlError};
use walrelay_pg_replication::{drop_slot, read_server_identity, read_slot, read_version};
use walrelay_relay::failpoint;
use walrelay_relay::observe::health::Health;
use walrelay_relay::settings::{Settings, Until};

use super::drain::{connect_publisher, drain, pause, wait_until_free};
use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{
    not_finished, refuse_open_replay, refuse_other_shards, refuse_unfinished, refuse_unrecorded,
};
use super::protocol_error::ProtocolError;

/// The state after the preparation.
#[derive(Debug, PartialEq, Eq)]
pub enum UpgradePrepared {
    /// The server is upgraded already.
    Upgraded,
    /// The slot and its anchors are dropped.
    Dropped(DroppedForUpgrade),
}

/// The slots of a server that is ready for an upgrade, as far as they are ours.
#[derive(Debug, PartialEq, Eq)]
pub struct DroppedForUpgrade {
    /// Number of dropped anchors.
    pub anchors: usize,
    /// Every transaction below this one is settled.
    pub settled_xid: u64,
    /// Slots of others, which block the upgrade.
    pub other_slots: Vec<String>,
}

/// Drains and drops the slot. Returns `None` after a dry run. Until the slot is dropped, a failure
/// leaves everything unchanged.
///
/// # Errors
///
/// The slot is missing or lost, another operation is unfinished, a relay does not release the slot,
/// Pub/Sub refuses, or the operator asked to stop.
pub async fn prepare_upgrade<O: Operator>(
    session: &AdminSession<'_, O>,
    settings: &Settings,
) -> Result<Option<UpgradePrepared>, ProtocolError> {
    let client = session.client;
    let slot = settings.relay.outbox.slot.as_str();
    refuse_other_shards(client, &settings.relay.outbox).await?;
    lock_operation(session, slot).await?;
    let begun = begun_upgrade(client, slot).await?;
    if let Some(upgrade) = &begun
        && read_slot(client, slot).await?.is_none()
    {
        return after_drop(client, slot, upgrade).await.map(Some);
    }
    refuse_lost(client, slot).await?;
    refuse_unrecorded(client, slot).await?;
    if begun.is_none() {
        refuse_open_replay(client, &[slot.to_owned()]).await?;
        let change = async || {
            let anchors = read_anchors(client, slot).await?.len();
            Ok(Change::PrepareUpgrade { slot: slot.to_owned(), anchors })
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
    failpoint::hit("upgrade-drained");
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

/// Returns the preparation that an earlier run began. Refuses every other operation.
async fn begun_upgrade(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<UpgradePreparation>, ProtocolError> {
    match read_operation(client, slot).await? {
        Some(SlotOperation::Upgrade(upgrade)) => Ok(Some(upgrade)),
        Some(other) => Err(not_finished(client, slot, &other).await?.into()),
        None => Ok(None),
    }
}

async fn begin(client: &SqlClient, slot: &str) -> Result<(), ProtocolError> {
    let system_identifier = read_recorded_system_identifier(client, slot).await?;
    let (version, stage) = (read_version(client).await?, UpgradeStage::Preparing);
    let upgrade = UpgradePreparation { system_identifier, version, stage };
    begin_upgrade(client, slot, &upgrade).await?;
    failpoint::hit("upgrade-begun");
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
    failpoint::hit("upgrade-unanchored");
    drop_slot(client, slot).await?;
    failpoint::hit("upgrade-dropped");
    Ok(anchors.len())
}

/// Returns the state if an earlier run has dropped the slot, or died just before it recorded that.
async fn after_drop(
    client: &SqlClient,
    slot: &str,
    upgrade: &UpgradePreparation,
) -> Result<UpgradePrepared, ProtocolError> {
    let here = read_recorded_system_identifier(client, slot).await?;
    match upgrade.has_happened(&here, read_version(client).await?) {
        true => Ok(UpgradePrepared::Upgraded),
        false => dropped(client, slot, 0).await,
    }
}

async fn dropped(
    client: &SqlClient,
    slot: &str,
    anchors: usize,
) -> Result<UpgradePrepared, ProtocolError> {
    let settled_xid = read_relay_row(client, slot).await?.map_or(0, |row| row.settled_xid);
    let others = "SELECT slot_name::text FROM pg_replication_slots WHERE NOT temporary ORDER BY 1";
    let others = client.query_typed(others, &[]).await;
    let others = others.map_err(SqlError::sql("look for other slots"))?;
    let other_slots = others.iter().map(|other| other.get(0)).collect();
    Ok(UpgradePrepared::Dropped(DroppedForUpgrade { anchors, settled_xid, other_slots }))
}

/// Cancels the preparation of an upgrade. Returns `None` after a dry run.
///
/// # Errors
///
/// No upgrade is being prepared, a process prepares it, or the server refuses.
pub async fn cancel_upgrade<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
) -> Result<Option<()>, ProtocolError> {
    refuse_other_shards(session.client, outbox).await?;
    let slot = &outbox.slot;
    let change = async || Ok(Change::CancelUpgrade { slot: slot.clone() });
    if begun_preparation(session.client, slot).await?.is_some() && !session.agree(change).await? {
        return Ok(None);
    }
    match cancel_begun_upgrade(session, slot).await? {
        true => Ok(Some(())),
        false => Err(ProtocolError::NoUpgradePrepared { slot: slot.clone() }),
    }
}

/// Returns the preparation of an upgrade whose slot still exists.
async fn begun_preparation(
    client: &SqlClient,
    slot: &str,
) -> Result<Option<SlotOperation>, AdminError> {
    let is_begun = |it: &SlotOperation| {
        let preparing = UpgradeStage::Preparing;
        matches!(it, SlotOperation::Upgrade(upgrade) if upgrade.stage == preparing)
    };
    Ok(read_operation(client, slot).await?.filter(is_begun))
}

/// Cancels the preparation of an upgrade, if one is unfinished and its slot still exists.
pub(super) async fn cancel_begun_upgrade<O: Operator>(
    session: &AdminSession<'_, O>,
    slot: &str,
) -> Result<bool, ProtocolError> {
    let client = session.client;
    let Some(begun) = begun_preparation(client, slot).await? else { return Ok(false) };
    match session.resumer(slot, &Health::new()).finish().await? {
        Outcome::Elsewhere { .. } => Err(not_finished(client, slot, &begun).await?.into()),
        Outcome::UpgradeCancelled(_) => Ok(read_loss(client, slot).await?.is_none()),
        Outcome::Nothing
        | Outcome::Finished(_)
        | Outcome::ResetCancelled(_)
        | Outcome::Pending(_) => Ok(false),
    }
}

/// Takes over a slot that an upgrade carried over. `pg_upgrade` accepted the slot, so everything
/// before the upgrade was confirmed. Returns the slot's position, or `None` after a dry run.
///
/// # Errors
///
/// The slot does not exist, or does not come from an upgrade. Also if an operation is unfinished,
/// or the server refuses.
pub async fn finish_upgrade<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
) -> Result<Option<Lsn>, ProtocolError> {
    let client = session.client;
    let slot = outbox.slot.as_str();
    refuse_other_shards(client, outbox).await?;
    let at = carried_over_position(client, slot).await?;
    let row = read_relay_row(client, slot).await?;
    let here = read_recorded_system_identifier(client, slot).await?;
    if row.is_none_or(|row| row.system_identifier == here) {
        return Err(ProtocolError::NothingToAdopt { slot: slot.to_owned() });
    }
    if !is_same_origin(client, slot, &outbox.tables).await? {
        return Err(AdminError::OtherDatabase { slot: slot.to_owned() }.into());
    }
    // Such an operation needs more than a slot, and adopting would delete its record.
    begun_upgrade(client, slot).await?;
    let change = async || Ok(Change::FinishUpgrade { slot: slot.to_owned(), at });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let timeline = read_server_identity(client).await?.timeline;
    adopt_slot(client, slot, (&here, timeline, at)).await?;
    Ok(Some(at))
}

/// Returns the position of a slot that an upgrade carried over.
async fn carried_over_position(client: &SqlClient, slot: &str) -> Result<Lsn, ProtocolError> {
    let missing = || ProtocolError::NotCarriedOver { slot: slot.to_owned() };
    let state = read_slot(client, slot).await?.ok_or_else(missing)?;
    if let Some(problem) = state.mismatch(state.database.as_deref().unwrap_or_default()) {
        return Err(AdminError::SlotUnusable { slot: slot.to_owned(), problem }.into());
    }
    match (state.confirmed_flush_lsn, state.is_lost()) {
        (Some(at), false) => Ok(at),
        (Some(_) | None, _) => {
            let problem = "was carried over and is invalidated".to_owned();
            Err(AdminError::SlotLost { slot: slot.to_owned(), problem }.into())
        }
    }
}

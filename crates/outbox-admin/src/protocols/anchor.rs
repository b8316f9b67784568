//! Creates, advances and drops anchors. Only explicit commands change them (I9).

use pgoutput_parser::Lsn;
use walrelay_core::WalBudgetLimit;
use walrelay_errors::Chain;
use walrelay_outbox_replay::{AdminError, existing_slot, refuse_lost};
use walrelay_outbox_store::{
    Anchor, CopyLifetime, Outbox, SlotCapacity, advance_anchor, anchor_slot, copy_slot,
    find_anchor, note_wal_time, read_anchor, read_anchors, read_recorded_system_identifier,
    read_slot_capacity,
};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::{SlotError, SlotState, drop_slot, read_slot};

use super::conflicts::{Facts, Wanted};
use super::facts::refuse_conflicts;
use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{Place, position_of_time, refuse_other_shards};
use super::protocol_error::ProtocolError;
use crate::lifecycle::anchor_keeper::anchor_wal_share;

#[derive(Debug)]
pub struct AnchorList {
    pub anchors: Vec<Anchor>,
    /// Bytes of WAL that each may retain, so that the relay's budget still fits. `None` if the
    /// server sets no limit.
    pub share: Option<u64>,
}

pub async fn list_anchors(
    client: &SqlClient,
    outbox: &Outbox,
    wal_budget: WalBudgetLimit,
) -> Result<AnchorList, ProtocolError> {
    refuse_other_shards(client, outbox).await?;
    let capacity = read_slot_capacity(client).await?;
    let anchors = read_anchors(client, &outbox.slot).await?;
    Ok(AnchorList { anchors, share: anchor_wal_share(capacity.keep_bytes, wal_budget) })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedAnchor {
    /// The slot that retains its WAL.
    pub slot: String,
    pub at: Lsn,
    /// Bytes of WAL that it may retain. `None` if the server sets no limit.
    pub share: Option<u64>,
    /// Replication slots that are left on the server.
    pub slots_left: u32,
}

/// Creates an anchor at the slot's position.
///
/// # Errors
///
/// The slot is missing, lost or unusable, or the anchor exists. Also if an operation is unfinished,
/// or the server has no capacity.
pub async fn create_anchor(
    client: &SqlClient,
    outbox: &Outbox,
    name: &str,
    wal_budget: WalBudgetLimit,
) -> Result<CreatedAnchor, ProtocolError> {
    refuse_conflicts(client, outbox, Wanted::CreateAnchor).await?;
    let live = outbox.slot.as_str();
    let slot = anchor_slot(live, name)?;
    let state = existing_slot(client, live).await?;
    if let Some(problem) = state.mismatch(state.database.as_deref().unwrap_or_default()) {
        return Err(AdminError::SlotUnusable { slot: live.to_owned(), problem }.into());
    }
    if read_slot(client, &slot).await?.is_some() {
        return Err(ProtocolError::AnchorExists { anchor: name.to_owned() });
    }
    let capacity = read_slot_capacity(client).await?;
    let share = anchor_wal_share(capacity.keep_bytes, wal_budget);
    refuse_without_capacity(&capacity, &state, share)?;
    let at = copy_slot(client, live, &slot, CopyLifetime::Kept).await?;
    let system = read_recorded_system_identifier(client, live).await?;
    // Without this entry, the anchor's age is unknown until the relay records a time.
    if let Err(error) = note_wal_time(client, &system).await {
        tracing::warn!(error = %Chain(&error), "times cannot be turned into positions: the tables of the outbox are not set up");
    }
    let slots_left = u32::try_from(capacity.max.saturating_sub(capacity.used + 1)).unwrap_or(0);
    Ok(CreatedAnchor { slot, at, share, slots_left })
}

fn refuse_without_capacity(
    capacity: &SlotCapacity,
    live: &SlotState,
    share: Option<u64>,
) -> Result<(), AdminError> {
    if capacity.used >= capacity.max {
        return Err(AdminError::NoRoom(format!(
            "all {} replication slots are in use, and an anchor is one (max_replication_slots)",
            capacity.max
        )));
    }
    let retained = live.retained_bytes().unwrap_or(0);
    match (capacity.keep_bytes, share) {
        (Some(keep), Some(share)) if retained >= share => Err(AdminError::NoRoom(format!(
            "the slot retains {retained} bytes of WAL already, and an anchor there may retain {share} at most: \
             max_slot_wal_keep_size ({keep}) less what the relay's own budget may need"
        ))),
        (Some(_) | None, _) => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdvancedAnchor {
    pub at: Option<Lsn>,
    /// Bytes of WAL that it retained before.
    pub retained_before: u64,
    /// Bytes of WAL that it retains now.
    pub retained: u64,
}

/// Moves an anchor, by default to the slot's position. Returns `None` after a dry run.
///
/// # Errors
///
/// The anchor does not exist, a replay needs it, the target is before the anchor or after the slot.
/// Also if an operation is unfinished.
pub async fn move_anchor<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    name: &str,
    to: Option<Place>,
) -> Result<Option<AdvancedAnchor>, ProtocolError> {
    let client = session.client;
    let facts = Facts::of_slot(client, outbox).await?;
    // In the middle of an operation, there is no slot to move the anchor to.
    facts.refuse(client, Wanted::MoveAnchor { name, to: Lsn::ZERO }).await?;
    let anchor = read_anchor(client, &outbox.slot, name).await?;
    let here = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let to = target(client, outbox, &anchor, to).await?;
    facts.refuse(client, Wanted::MoveAnchor { name, to }).await?;
    let bytes = to.bytes_since(here);
    let change = async || Ok(Change::AdvanceAnchor { anchor: name.to_owned(), to, bytes });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let moved = advance_anchor(client, &anchor, to).await?;
    Ok(Some(AdvancedAnchor {
        at: moved.confirmed_flush_lsn,
        retained_before: anchor.slot.retained_bytes().unwrap_or(0),
        retained: moved.retained_bytes().unwrap_or(0),
    }))
}

/// Returns the position to move the anchor to. An anchor never passes its slot.
async fn target(
    client: &SqlClient,
    outbox: &Outbox,
    anchor: &Anchor,
    to: Option<Place>,
) -> Result<Lsn, ProtocolError> {
    let here = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let slot = outbox.slot.clone();
    let live = read_slot(client, &slot).await?;
    let live = live.filter(|it| !it.is_lost()).and_then(|it| it.confirmed_flush_lsn);
    let Some(live) = live else {
        refuse_lost(client, &slot).await?;
        return Err(SlotError::SlotMissing { slot }.into());
    };
    let to = match to {
        None => live.max(here),
        Some(Place::Lsn(lsn)) => lsn,
        Some(Place::Time(time)) => position_of_time(client, &slot, time).await?,
    };
    if to < here {
        return Err(ProtocolError::AnchorAhead { anchor: anchor.name.clone(), here, to });
    }
    if to > live {
        return Err(ProtocolError::TargetPastSlot { to, live, slot });
    }
    Ok(to)
}

/// Drops an anchor. Returns the bytes of WAL that it retained, or `None` after a dry run.
///
/// # Errors
///
/// The anchor does not exist, a replay needs it, or an operation is unfinished.
pub async fn drop_anchor<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    name: &str,
) -> Result<Option<u64>, ProtocolError> {
    let client = session.client;
    let anchor = find_anchor(client, &outbox.slot, name).await?;
    // No replay can use a lost anchor.
    let to = if anchor.slot.is_lost() { Lsn::ZERO } else { Lsn::new(u64::MAX) };
    refuse_conflicts(client, outbox, Wanted::MoveAnchor { name, to }).await?;
    let bytes = anchor.slot.retained_bytes().unwrap_or(0);
    let change = async || Ok(Change::DropAnchor { anchor: name.to_owned(), bytes });
    if !session.agree(change).await? {
        return Ok(None);
    }
    drop_slot(client, &anchor.slot.name).await?;
    Ok(Some(bytes))
}

//! Replaces the slot by a copy of an anchor, so that every later row is published again.

use pgoutput_parser::Lsn;
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::{AdminError, Again, Reset, SlotOperation, begin_reset, try_decoding};
use walrelay_outbox_store::{
    Outbox, read_anchor, read_recorded_system_identifier, read_relay_row, read_slot_capacity,
    read_wal_end, take_relay_row,
};
use walrelay_pg_client::{SqlClient, quote_identifier};
use walrelay_pg_replication::{Failover, SlotError, SlotState, read_server_identity, read_slot};

use super::conflicts::{Facts, Wanted};
use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{Place, not_finished, position_of_time, reset_cancelled};
use super::protocol_error::ProtocolError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOrder {
    pub anchor: String,
    /// The start of the stream. `None` means the anchor's position.
    pub to: Option<Place>,
    /// The rows of dispatch state that are also published again.
    pub again: Again,
}

#[derive(Debug)]
pub enum ResetResult {
    /// The slot starts here.
    Done {
        target: Lsn,
        /// Whether this run finished a reset that an earlier run had begun.
        is_earlier: bool,
    },
    /// Another process has finished the reset.
    ByOther,
}

/// Records the reset and carries it out, or finishes an earlier one. Returns `None` after a dry
/// run.
///
/// # Errors
///
/// The anchor does not exist, it does not reach back to the target, or the target is past what is
/// settled. A relay also finishes a recorded reset.
pub async fn reset<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    order: &ResetOrder,
) -> Result<Option<ResetResult>, ProtocolError> {
    let (client, slot) = (session.client, outbox.slot.as_str());
    let facts = Facts::of_slot(client, outbox).await?;
    facts.refuse(client, Wanted::ResetSlot).await?;
    let is_earlier = facts.has_operation();
    if !is_earlier && !begin(session, outbox, order).await? {
        return Ok(None);
    }
    Ok(Some(match session.finish_operation(slot).await? {
        Outcome::Finished(SlotOperation::Reset(done)) => {
            ResetResult::Done { target: done.target, is_earlier }
        }
        Outcome::Nothing => ResetResult::ByOther,
        Outcome::ResetCancelled(reset) => return Err(reset_cancelled(client, slot, &reset).await),
        // Another process has begun another operation, so this reset was not recorded.
        Outcome::Finished(other)
        | Outcome::Pending(other)
        | Outcome::ReleaseCancelled(other)
        | Outcome::Elsewhere { operation: other, .. } => {
            return Err(not_finished(client, slot, &other).await?.into());
        }
    }))
}

/// Records the reset. Returns false after a dry run.
async fn begin<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    order: &ResetOrder,
) -> Result<bool, ProtocolError> {
    let (client, slot) = (session.client, &outbox.slot);
    let (anchor_slot, target) = reachable_target(client, slot, order).await?;
    let live = usable_slot(client, outbox, &anchor_slot).await?;
    let settled = settled(client, slot).await?;
    if target > settled {
        return Err(ProtocolError::TargetPastSettled { target, settled });
    }
    let bytes = settled.bytes_since(target);
    let change = async || Ok(Change::ResetSlot { slot: slot.clone(), to: target, bytes });
    if !session.agree(change).await? {
        return Ok(false);
    }
    let failover = match live.and_then(|live| live.failover) {
        Some(true) => Failover::Yes,
        Some(false) | None => Failover::No,
    };
    // If another process has recorded a reset meanwhile, this call changes nothing, and the caller
    // finishes that reset.
    begin_reset(client, slot, &Reset { anchor_slot, target, failover, again: order.again }).await?;
    Ok(true)
}

/// Returns the slot of the anchor, and the position to start from. The anchor reaches back to it.
async fn reachable_target(
    client: &SqlClient,
    slot: &str,
    order: &ResetOrder,
) -> Result<(String, Lsn), ProtocolError> {
    let anchor = read_anchor(client, slot, &order.anchor).await?;
    let from = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    let target = match order.to {
        None => from,
        Some(Place::Lsn(lsn)) => lsn,
        Some(Place::Time(time)) => position_of_time(client, slot, time).await?,
    };
    if target < from || target > end {
        return Err(ProtocolError::TargetOutOfRange { target, from, anchor: anchor.name, end });
    }
    Ok((anchor.slot.name, target))
}

/// Checks that the anchor can be decoded, and that the server has capacity for the copy. Returns
/// the live slot. These checks come before the reset is recorded: the publication may be younger
/// than the anchor, or the WAL may be gone.
async fn usable_slot(
    client: &SqlClient,
    Outbox { slot, publication, .. }: &Outbox,
    anchor_slot: &str,
) -> Result<Option<SlotState>, ProtocolError> {
    let capacity = read_slot_capacity(client).await?;
    try_decoding(client, anchor_slot, &quote_identifier(publication)).await?;
    let live = read_slot(client, slot).await?;
    if live.is_none() && capacity.used >= capacity.max {
        let what = format!(
            "all {} replication slots are in use, and {slot:?} is not among them (max_replication_slots)",
            capacity.max
        );
        return Err(AdminError::NoRoom(what).into());
    }
    Ok(live)
}

/// Returns the slot's settled position. If no relay has ever run, it creates the slot's row,
/// because the row holds the operation.
async fn settled(client: &SqlClient, slot: &str) -> Result<Lsn, ProtocolError> {
    if let Some(row) = read_relay_row(client, slot).await? {
        return Ok(row.settled_lsn);
    }
    let system = read_recorded_system_identifier(client, slot).await?;
    let server = read_server_identity(client).await?;
    take_relay_row(client, slot, &system, server.timeline).await?;
    let missing = || SlotError::SlotMissing { slot: slot.to_owned() };
    Ok(read_relay_row(client, slot).await?.ok_or_else(missing)?.settled_lsn)
}

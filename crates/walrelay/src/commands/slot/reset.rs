//! `walrelay slot reset`: replaces the slot by a copy of an anchor, so that every later row is
//! published again.

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::lifecycle::operation_resumer::OperationResumer;
use walrelay_outbox_admin::lifecycle::outcome::Outcome;
use walrelay_outbox_admin::lookahead::{MoveTarget, Question, look_ahead};
use walrelay_outbox_admin::{
    AdminError, Reset, SlotOperation, begin_reset, read_operation, replay_to_be_published,
    try_decoding,
};
use walrelay_outbox_store::{
    Outbox, read_anchor, read_recorded_system_identifier, read_relay_row, read_slot_capacity,
    read_wal_end, take_relay_row,
};
use walrelay_pg_client::{ConnectConfig, SqlClient, quote_identifier};
use walrelay_pg_replication::SlotError;
use walrelay_pg_replication::{Failover, read_server_identity, read_slot};

use super::super::shared::consent::may_change;
use super::super::shared::preconditions::{
    at_time, given_up, not_finished, refuse_resharding, refuse_while_held,
};
use super::skipped_rows::SkippedRows;
use crate::config::{Place, ResetOrder, SkipConsent};
use crate::error::Error;
use crate::output::print;

/// Records the reset and carries it out, or finishes an earlier one.
///
/// # Errors
///
/// The anchor does not exist, it does not reach back to the target, rows would be skipped, or the
/// server refuses. A relay also finishes a recorded reset.
pub(super) async fn reset(
    finisher: &OperationResumer<'_>,
    outbox: &Outbox,
    order: &ResetOrder,
) -> Result<String, Error> {
    let OperationResumer { client, slot, .. } = finisher;
    let whose = match read_operation(client, slot).await? {
        Some(
            other @ (SlotOperation::Recovery(_)
            | SlotOperation::Upgrade(_)
            | SlotOperation::Resharding(_)),
        ) => {
            return Err(not_finished(client, slot, &other).await?.into());
        }
        Some(SlotOperation::Reset(_)) => {
            ": the reset that was begun before is finished; run the command again for another"
        }
        None => {
            if !begin(finisher, outbox, order).await? {
                return Ok(String::new());
            }
            ""
        }
    };
    match finisher.finish().await? {
        Outcome::Finished(SlotOperation::Reset(done)) => Ok(format!(
            "slot {slot} starts at {} again{whose}\nrows behind it are published again, to the same topics; a \
             relay that was running goes on by itself\n",
            done.target
        )),
        Outcome::Finished(
            other @ (SlotOperation::Recovery(_)
            | SlotOperation::Upgrade(_)
            | SlotOperation::Resharding(_)),
        )
        | Outcome::Pending(other) => {
            Ok(format!("{} is being finished by another process\n", other.describe(slot)))
        }
        Outcome::Elsewhere { what } => Ok(format!("{what}: another process is at it\n")),
        Outcome::GivenUp(reset) => Err(given_up(client, slot, &reset).await),
        Outcome::Nothing | Outcome::CalledOff(_) => {
            Ok("the reset is finished: another process has done it\n".to_owned())
        }
    }
}

/// Records the reset. Returns false after a dry run.
async fn begin(
    finisher: &OperationResumer<'_>,
    outbox: &Outbox,
    order: &ResetOrder,
) -> Result<bool, Error> {
    let client = finisher.client;
    let Outbox { slot, publication, .. } = outbox;
    refuse_resharding(client, outbox).await?;
    // Rows that the slot sends again would mix with the history of a paused key.
    refuse_while_held(client, slot).await?;
    if let Some(id) = replay_to_be_published(client, slot).await? {
        return Err(Error::Unfinished {
            what: format!("rows of replay {id} are still to be published in place"),
            hint: format!(
                "let the relay publish them, or take them back: `walrelay replay cancel {id}`"
            ),
        });
    }
    let anchor = read_anchor(client, slot, &order.anchor).await?;
    let reaches = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    let target = match order.to {
        None => reaches,
        Some(Place::Lsn(lsn)) => lsn,
        Some(Place::Time(time)) => at_time(client, slot, time).await?,
    };
    if target < reaches || target > end {
        return Err(Error::Unfit {
            what: format!(
                "{target} is not between {reaches}, where anchor {:?} stands, and {end}, where the log ends",
                anchor.name
            ),
            hint: "name a place in between, or an anchor that reaches farther back",
        });
    }
    // These checks come before the reset is recorded: the publication may be younger than the
    // anchor, or the WAL may be gone.
    let room = read_slot_capacity(client).await?;
    try_decoding(client, &anchor.slot.name, &quote_identifier(publication)).await?;
    let live = read_slot(client, slot).await?;
    if live.is_none() && room.used >= room.max {
        return Err(AdminError::NoRoom(format!(
            "all {} replication slots are in use, and {slot:?} is not among them (max_replication_slots)",
            room.max
        ))
        .into());
    }
    let settled = settled(client, slot).await?;
    if target > settled {
        let places = (anchor.slot.name.as_str(), settled, target);
        refuse_skipping((client, finisher.connect), outbox, places, order).await?;
    }
    let what = format!("move slot {slot} to {target} and publish the rows behind it again");
    if !may_change((&what, order.mode), finisher.stop).await? {
        return Ok(false);
    }
    let failover = match live.and_then(|live| live.failover) {
        Some(true) => Failover::Yes,
        Some(false) | None => Failover::No,
    };
    let again = order.again;
    let reset = Reset { anchor_slot: anchor.slot.name, target, failover, again };
    // If another process has recorded a reset meanwhile, this call changes nothing, and the caller
    // finishes that reset.
    begin_reset(client, slot, &reset).await?;
    Ok(true)
}

/// Returns the slot's settled position. If no relay has ever run, it creates the slot's row,
/// because the row holds the operation.
async fn settled(client: &SqlClient, slot: &str) -> Result<Lsn, Error> {
    if let Some(row) = read_relay_row(client, slot).await? {
        return Ok(row.settled_lsn);
    }
    let system = read_recorded_system_identifier(client, slot).await?;
    let server = read_server_identity(client).await?;
    take_relay_row(client, slot, &system, server.timeline).await?;
    let missing = || AdminError::Slot(SlotError::SlotMissing { slot: slot.to_owned() });
    Ok(read_relay_row(client, slot).await?.ok_or_else(missing)?.settled_lsn)
}

/// Refuses to skip rows between the settled position and the target, unless the user agreed to
/// their number.
async fn refuse_skipping(
    (client, connect): (&SqlClient, &ConnectConfig),
    outbox: &Outbox,
    (anchor_slot, settled, target): (&str, Lsn, Lsn),
    order: &ResetOrder,
) -> Result<(), Error> {
    let found = look_ahead(Question {
        connect,
        slot: anchor_slot,
        publication: &outbox.publication,
        id: &order.columns.id,
        from: settled,
        reach: MoveTarget::Position(target),
    });
    let losses = SkippedRows::of(client, outbox, &order.columns, found.await?).await?;
    match order.skipping {
        SkipConsent::Agreed => {
            losses.refuse_unless(order.discard_rows)?;
            tracing::warn!(%target, "rows before the target are skipped");
            print(&losses.told())
        }
        SkipConsent::Refused => Err(Error::Unfit {
            what: format!(
                "{target} lies past {settled}, up to where the slot is settled; --skip-events and --discard-rows accept \
                 that this is skipped:\n{}",
                losses.counted().trim_end()
            ),
            hint: "name an earlier place, or none",
        }),
    }
}

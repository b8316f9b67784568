//! `walrelay anchor`: create, list, advance, drop. Only these commands change anchors (I9).

use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_core::WalBudgetLimit;
use walrelay_outbox_admin::lifecycle::anchor_keeper::anchor_wal_share;
use walrelay_outbox_admin::{AdminError, read_loss, replay_that_needs_anchor};
use walrelay_outbox_store::{
    Anchor, CopyLifetime, Outbox, SlotCapacity, advance_anchor, anchor_slot, copy_slot,
    find_anchor, note_wal_time, read_anchor, read_anchors, read_recorded_system_identifier,
    read_slot_capacity,
};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::{SlotError, SlotState, drop_slot, read_slot};
use walrelay_relay::observe::report::{rfc3339, wal_status};

use super::replay::record;
use walrelay_relay::shutdown::Shutdown;

use super::shared::consent::may_change;
use super::shared::preconditions::{at_time, refuse_other_shards, refuse_unfinished};
use crate::config::{AnchorAction, AnchorConfig, OutputFormat, Place};
use crate::error::Error;
use crate::json_output::json_text;
use crate::output::{human_bytes, print};

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, the anchor does not exist, or the server has no capacity
/// for one.
pub async fn execute(config: AnchorConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let done = act(&client, (&config.database.outbox, config.action), shutdown).await;
    client.close().await;
    print(&done?)
}

async fn act(
    client: &SqlClient,
    (outbox, action): (&Outbox, AnchorAction),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    refuse_other_shards(client, outbox).await?;
    match &action {
        AnchorAction::List { .. } => {}
        // An unfinished operation may need the anchor, or may have dropped the slot for a moment.
        AnchorAction::Create { .. } | AnchorAction::Advance { .. } | AnchorAction::Drop { .. } => {
            refuse_unfinished(client, &outbox.slot).await?;
        }
    }
    match action {
        AnchorAction::Create { name, wal_budget } => {
            create(client, outbox, (&name, wal_budget)).await
        }
        AnchorAction::List { wal_budget, format } => {
            let room = read_slot_capacity(client).await?;
            let anchors = read_anchors(client, &outbox.slot).await?;
            let share = anchor_wal_share(room.keep_bytes, wal_budget);
            Ok(match format {
                OutputFormat::Json => as_json(&anchors, share)?,
                OutputFormat::Text => as_table(&anchors, share, &outbox.slot),
            })
        }
        AnchorAction::Advance { name, to } => {
            let anchor = read_anchor(client, &outbox.slot, &name).await?;
            let to = target(client, outbox, (&anchor, to)).await?;
            refuse_needed(client, outbox, (&name, to)).await?;
            let moved = advance_anchor(client, &anchor, to).await?;
            let (before, after) = (retained(&anchor.slot), retained(&moved));
            Ok(format!(
                "anchor {name} is now at {}; it keeps {} of log, {} before\n",
                shown_lsn(moved.confirmed_flush_lsn),
                human_bytes(after),
                human_bytes(before)
            ))
        }
        AnchorAction::Drop { name, mode } => {
            let anchor = find_anchor(client, &outbox.slot, &name).await?;
            // No replay can use a lost anchor.
            if !anchor.slot.is_lost() {
                refuse_needed(client, outbox, (&name, Lsn::new(u64::MAX))).await?;
            }
            let kept = human_bytes(retained(&anchor.slot));
            let what = format!("drop anchor {name}, which keeps {kept} of log");
            if !may_change((&what, mode), shutdown).await? {
                return Ok(String::new());
            }
            drop_slot(client, &anchor.slot.name).await?;
            Ok(format!("dropped: anchor {name}, which kept {kept} of log\n"))
        }
    }
}

async fn create(
    client: &SqlClient,
    outbox: &Outbox,
    (name, wal_budget): (&str, WalBudgetLimit),
) -> Result<String, Error> {
    let live = outbox.slot.as_str();
    let slot = anchor_slot(live, name)?;
    if let Some(lost) = read_loss(client, live).await? {
        return Err(AdminError::SlotLost { slot: live.to_owned(), problem: lost.problem }.into());
    }
    let missing = || AdminError::Slot(SlotError::SlotMissing { slot: live.to_owned() });
    let state = read_slot(client, live).await?.ok_or_else(missing)?;
    if let Some(problem) = state.mismatch(state.database.as_deref().unwrap_or_default()) {
        return Err(AdminError::SlotUnusable { slot: live.to_owned(), problem }.into());
    }
    if read_slot(client, &slot).await?.is_some() {
        return Err(Error::Unfit {
            what: format!("there is an anchor {name:?} already"),
            hint: "choose another name, or move it with `walrelay anchor advance`",
        });
    }
    let room = read_slot_capacity(client).await?;
    refuse_without_room(&room, &state, wal_budget)?;
    let at = copy_slot(client, live, &slot, CopyLifetime::Kept).await?;
    let system = read_recorded_system_identifier(client, live).await?;
    // Without this entry, the anchor's age is unknown until the relay records a time.
    if let Err(error) = note_wal_time(client, &system).await {
        tracing::warn!(%error, "times cannot be turned into positions: run `walrelay init`");
    }
    let mut text = format!("created: anchor {name} (slot {slot}), from {at}\n");
    match anchor_wal_share(room.keep_bytes, wal_budget) {
        Some(share) => text.push_str(&format!(
            "advance it before it keeps {} of log: beyond that the relay's own --wal-budget has no room\n",
            human_bytes(share)
        )),
        None => text.push_str(
            "this server keeps log without limit (max_slot_wal_keep_size): advance or drop the anchor before the \
             disk is full\n",
        ),
    }
    if room.used + 1 >= room.max {
        text.push_str(
            "no replication slot is left, and a replay needs one: raise max_replication_slots\n",
        );
    }
    Ok(text)
}

fn refuse_without_room(
    room: &SlotCapacity,
    live: &SlotState,
    wal_budget: WalBudgetLimit,
) -> Result<(), Error> {
    if room.used >= room.max {
        return Err(AdminError::NoRoom(format!(
            "all {} replication slots are in use, and an anchor is one (max_replication_slots)",
            room.max
        ))
        .into());
    }
    let (Some(keep), Some(share)) =
        (room.keep_bytes, anchor_wal_share(room.keep_bytes, wal_budget))
    else {
        return Ok(());
    };
    let kept = retained(live);
    if kept < share {
        return Ok(());
    }
    Err(AdminError::NoRoom(format!(
        "the slot keeps {} of log already, and an anchor made there may keep {} at most: max_slot_wal_keep_size \
         ({}) less what --wal-budget may need",
        human_bytes(kept),
        human_bytes(share),
        human_bytes(keep)
    ))
    .into())
}

/// Returns the position to move the anchor to. An anchor never passes its slot.
async fn target(
    client: &SqlClient,
    outbox: &Outbox,
    (anchor, to): (&Anchor, Option<Place>),
) -> Result<Lsn, Error> {
    let here = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let live = read_slot(client, &outbox.slot).await?;
    let live = live.filter(|slot| !slot.is_lost()).and_then(|slot| slot.confirmed_flush_lsn);
    let Some(live) = live else {
        return Err(AdminError::Slot(SlotError::SlotMissing { slot: outbox.slot.clone() }).into());
    };
    let to = match to {
        None => live.max(here),
        Some(Place::Lsn(lsn)) => lsn,
        Some(Place::Time(time)) => at_time(client, &outbox.slot, time).await?,
    };
    if to < here {
        return Err(Error::Unfit {
            what: format!("anchor {:?} stands at {here} already, behind {to}", anchor.name),
            hint: "slots never go back: name a later place",
        });
    }
    if to > live {
        return Err(Error::Unfit {
            what: format!("{to} lies past {live}, where slot {:?} stands", outbox.slot),
            hint: "an anchor stays behind its slot: name an earlier place, or none",
        });
    }
    Ok(to)
}

/// Refuses while an unfinished replay needs WAL before `up_to`: a resumed replay streams the anchor
/// from the position where the replay stopped.
async fn refuse_needed(
    client: &SqlClient,
    outbox: &Outbox,
    (name, up_to): (&str, Lsn),
) -> Result<(), Error> {
    let Some(id) = replay_that_needs_anchor(client, &outbox.slot, (name, up_to)).await? else {
        return Ok(());
    };
    Err(Error::Unfinished {
        what: format!("replay {id} is not finished, and needs what anchor {name:?} keeps"),
        hint: record::unfinished_hint(&id),
    })
}

fn retained(slot: &SlotState) -> u64 {
    slot.retained_bytes().unwrap_or(0)
}

fn shown_lsn(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "–".to_owned(), |lsn| lsn.to_string())
}

/// An anchor, as `anchor list -o json` prints it.
#[derive(Debug, Serialize)]
struct AnchorListing {
    anchor: String,
    slot: String,
    active: bool,
    active_pid: Option<i32>,
    wal_status: Option<&'static str>,
    lost: bool,
    invalidation_reason: Option<String>,
    failover: Option<bool>,
    wal_end: String,
    confirmed_flush_lsn: Option<String>,
    restart_lsn: Option<String>,
    lag_bytes: Option<u64>,
    retained_bytes: Option<u64>,
    pinned_bytes: Option<u64>,
    safe_wal_bytes: Option<i64>,
    reaches_back_to: Option<String>,
    share_bytes: Option<u64>,
}

impl AnchorListing {
    fn new(anchor: &Anchor, share_bytes: Option<u64>) -> Self {
        let state = &anchor.slot;
        let text = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
        Self {
            anchor: anchor.name.clone(),
            slot: state.name.clone(),
            active: state.active_pid.is_some(),
            active_pid: state.active_pid,
            wal_status: state.wal_status.map(wal_status),
            lost: state.is_lost(),
            invalidation_reason: state.invalidation_reason.clone(),
            failover: state.failover,
            wal_end: state.wal_end.to_string(),
            confirmed_flush_lsn: text(state.confirmed_flush_lsn),
            restart_lsn: text(state.restart_lsn),
            lag_bytes: state.lag_bytes(),
            retained_bytes: state.retained_bytes(),
            pinned_bytes: state.pinned_bytes(),
            safe_wal_bytes: state.safe_wal_size,
            reaches_back_to: anchor.reaches_back_to.map(rfc3339),
            share_bytes,
        }
    }
}

fn as_json(anchors: &[Anchor], share: Option<u64>) -> Result<String, Error> {
    let listings: Vec<_> = anchors.iter().map(|it| AnchorListing::new(it, share)).collect();
    json_text(&listings)
}

fn as_table(anchors: &[Anchor], share: Option<u64>, slot: &str) -> String {
    if anchors.is_empty() {
        return format!("slot {slot} has no anchor\n");
    }
    let mut text = String::new();
    for anchor in anchors {
        let state = &anchor.slot;
        let back = anchor.reaches_back_to.map_or_else(|| "nothing".to_owned(), rfc3339);
        let room = match (state.is_lost(), state.safe_wal_size) {
            (true, _) => "lost: the log it kept was removed".to_owned(),
            (false, Some(bytes)) => human_bytes(u64::try_from(bytes).unwrap_or(0)),
            (false, None) => "unlimited".to_owned(),
        };
        let kept = retained(state);
        let past = match share.filter(|share| kept > *share) {
            Some(share) => format!(", past its share of {}: advance it", human_bytes(share)),
            None => String::new(),
        };
        text.push_str(&format!(
            "{}\n  slot             {}\n  reaches back to  {back}\n  position         {}\n  \
             keeps            {}{past}\n  room until lost  {room}\n",
            anchor.name,
            state.name,
            shown_lsn(state.confirmed_flush_lsn),
            human_bytes(kept),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use walrelay_pg_replication::{SlotState, SlotType, WalStatus};

    use super::*;
    use crate::json_output::assert_documented;

    #[test]
    fn the_fields_of_the_list_are_documented() {
        let slot = SlotState {
            name: "walrelay_anchor_daily".to_owned(),
            plugin: None,
            slot_type: SlotType::Logical,
            database: None,
            active_pid: Some(7),
            restart_lsn: Some(Lsn::new(1)),
            confirmed_flush_lsn: Some(Lsn::new(2)),
            wal_status: Some(WalStatus::Extended),
            safe_wal_size: Some(1),
            two_phase: false,
            failover: Some(false),
            invalidation_reason: Some("wal_removed".to_owned()),
            conflicting: None,
            wal_end: Lsn::new(3),
        };
        let reaches_back_to = Some(SystemTime::UNIX_EPOCH);
        let anchor = Anchor { name: "daily".to_owned(), slot, reaches_back_to };
        assert_documented("anchor list", &[AnchorListing::new(&anchor, Some(1))]);
    }
}

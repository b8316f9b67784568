//! Anchors: slots that stand deliberately behind the live one, so that a replay finds the log it needs.
//!
//! An anchor is a copy of the live slot, so the publication is as old for it as for the live one
//! (platform fact: the server looks a publication up as of the position it decodes). Its name begins
//! with the live slot's; nothing else is on record about it.

use crate::store_error::StoreError;
use std::time::{Duration, SystemTime};
use walrelay_pg_replication::SlotError;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use crate::wal_time::first_time_behind;
use walrelay_pg_replication::{
    SlotState, advance_slot, check_slot_name, read_slot, read_slots, read_system_identifier,
};

/// A slot that stands behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// What the operator calls it.
    pub name: String,
    /// The slot that it is.
    pub slot: SlotState,
    /// Everything committed since this moment is behind it; None when it is lost.
    pub reaches_back_to: Option<SystemTime>,
}

/// What operators watch of an anchor.
#[derive(Debug, Clone, PartialEq)]
pub struct AnchorState {
    /// What the operator calls it.
    pub name: String,
    /// The slot that it is.
    pub slot: SlotState,
    /// How far back it reaches; none where it is lost, or where no time is on record.
    pub age: Option<Duration>,
}

/// What the server has left for another slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRoom {
    /// Slots that exist.
    pub used: i64,
    /// The setting `max_replication_slots`.
    pub max: i64,
    /// The setting `max_slot_wal_keep_size`; None when log is kept without limit.
    pub keep_bytes: Option<u64>,
}

const BETWEEN: &str = "_anchor_";

/// The slot of the anchor of this name.
///
/// # Errors
///
/// Together they cannot be a slot's name.
pub fn anchor_slot(slot: &str, name: &str) -> Result<String, StoreError> {
    let whole = format!("{slot}{BETWEEN}{name}");
    match name.is_empty() {
        true => Err(StoreError::Slot(SlotError::SlotName { name: whole })),
        false => {
            check_slot_name(&whole)?;
            Ok(whole)
        }
    }
}

/// What the operator calls the anchor that is this slot.
#[must_use]
pub fn anchor_of<'a>(slot: &str, anchor_slot: &'a str) -> &'a str {
    let name = anchor_slot.strip_prefix(slot).and_then(|rest| rest.strip_prefix(BETWEEN));
    name.unwrap_or(anchor_slot)
}

/// The anchors of a slot, farthest back first.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_anchors(client: &Client, slot: &str) -> Result<Vec<Anchor>, StoreError> {
    let prefix = format!("{slot}{BETWEEN}");
    let system = read_history(client, slot).await?;
    let mut anchors = Vec::new();
    for state in read_slots(client, &prefix).await? {
        let name = state.name.strip_prefix(&prefix).unwrap_or_default().to_owned();
        let from = state.confirmed_flush_lsn.filter(|_| !state.is_lost());
        let reaches_back_to = match from {
            Some(from) => {
                let noted = first_time_behind(client, &system, from).await?;
                // What is committed from now on is behind it in any case.
                Some(noted.map_or_else(SystemTime::now, |noted| noted.at))
            }
            None => None,
        };
        anchors.push(Anchor { name, slot: state, reaches_back_to });
    }
    anchors.sort_by_key(|anchor| anchor.slot.confirmed_flush_lsn);
    Ok(anchors)
}

/// What operators watch of the anchors of a slot, farthest back first. Where times cannot be read there are
/// no ages, and no error: the relay works without them.
///
/// # Errors
///
/// The server refused to show its slots, or the connection ended.
pub async fn read_anchor_states(
    client: &Client,
    slot: &str,
) -> Result<Vec<AnchorState>, StoreError> {
    let prefix = format!("{slot}{BETWEEN}");
    let slots = read_slots(client, &prefix).await?;
    if slots.is_empty() {
        return Ok(Vec::new());
    }
    let system = read_history(client, slot).await?;
    let mut states = Vec::new();
    for state in slots {
        let name = state.name.strip_prefix(&prefix).unwrap_or_default().to_owned();
        let noted = match state.confirmed_flush_lsn.filter(|_| !state.is_lost()) {
            None => Ok(None),
            Some(from) => first_time_behind(client, &system, from).await,
        };
        let noted = match noted {
            Err(error) if error.is_disconnected() => return Err(error),
            Err(_) => None,
            Ok(noted) => noted,
        };
        let age = noted.map(|noted| noted.at.elapsed().unwrap_or_default());
        states.push(AnchorState { name, slot: state, age });
    }
    states.sort_by_key(|anchor| anchor.slot.confirmed_flush_lsn);
    Ok(states)
}

/// The anchor of this name, be it invalidated.
///
/// # Errors
///
/// There is none; or the server refused.
pub async fn find_anchor(client: &Client, slot: &str, name: &str) -> Result<Anchor, StoreError> {
    let anchors = read_anchors(client, slot).await?;
    let names: Vec<_> = anchors.iter().map(|anchor| anchor.name.clone()).collect();
    let found = anchors.into_iter().find(|anchor| anchor.name == name);
    let missing =
        || StoreError::AnchorMissing { anchor: name.to_owned(), others: names.join(", ") };
    found.ok_or_else(missing)
}

/// One anchor that can be used.
///
/// # Errors
///
/// There is none of this name, or the server has invalidated it; or the server refused.
pub async fn read_anchor(client: &Client, slot: &str, name: &str) -> Result<Anchor, StoreError> {
    let anchor = find_anchor(client, slot, name).await?;
    match anchor.slot.is_lost() {
        true => Err(StoreError::AnchorLost { anchor: name.to_owned() }),
        false => Ok(anchor),
    }
}

/// What the server has left.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_slot_room(client: &Client) -> Result<SlotRoom, StoreError> {
    let row = client
        .query_typed_one(
            "SELECT (SELECT count(*) FROM pg_replication_slots) AS used,
                    current_setting('max_replication_slots')::int8 AS max,
                    (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep",
            &[],
        )
        .await
        .map_err(StoreError::sql("read how many slots there may be"))?;
    // In megabytes, and -1 for no limit.
    let keep_bytes = u64::try_from(row.get::<_, i64>("keep")).ok().map(|mebibytes| mebibytes << 20);
    Ok(SlotRoom { used: row.get("used"), max: row.get("max"), keep_bytes })
}

/// How long a slot is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotLife {
    /// Until it is dropped.
    Kept,
    /// Until the session ends, however it does.
    Session,
}

/// Makes `to` a copy of the slot `from`, which may be in use; returns where it stands.
///
/// # Errors
///
/// `from` is missing or lost, `to` exists, or there is no room for another; or the server refused.
pub async fn copy_slot(
    client: &Client,
    (from, to): (&str, &str),
    life: SlotLife,
) -> Result<Lsn, StoreError> {
    check_slot_name(to)?;
    let row = client
        .query_typed_one(
            "SELECT lsn FROM pg_copy_logical_replication_slot($1, $2, $3)",
            &[(&from, Type::TEXT), (&to, Type::TEXT), (&(life == SlotLife::Session), Type::BOOL)],
        )
        .await
        .map_err(StoreError::sql(format!("copy slot {from:?} as {to:?}")))?;
    Ok(Lsn::new(row.get::<_, PgLsn>("lsn").into()))
}

/// Moves an anchor forward and lets go of the log before it; returns the slot as it is then.
///
/// # Errors
///
/// It stands behind `to` already, or is in use; or the server refused.
pub async fn advance_anchor(
    client: &Client,
    anchor: &Anchor,
    to: Lsn,
) -> Result<SlotState, StoreError> {
    // The first call only notes what may be let go of, the second lets go.
    for _ in 0..2 {
        advance_slot(client, &anchor.slot.name, to).await?;
    }
    let moved = read_slot(client, &anchor.slot.name).await?;
    moved.ok_or_else(|| StoreError::Slot(SlotError::SlotMissing { slot: anchor.slot.name.clone() }))
}

/// Whose positions this server's are: its own word, or where the role may not ask what the relay has
/// on record.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_history(client: &Client, slot: &str) -> Result<String, StoreError> {
    if let Some(system) = read_system_identifier(client).await? {
        return Ok(system);
    }
    let row = crate::relay_row::read_relay_row(client, slot).await?;
    Ok(row.map(|row| row.system_identifier).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchors_slot_is_named_after_the_live_one() {
        assert_eq!(anchor_slot("walrelay", "daily").unwrap(), "walrelay_anchor_daily");
        for name in ["", "Daily", "a-b", &"x".repeat(60)] {
            assert!(anchor_slot("walrelay", name).is_err(), "{name}");
        }
    }
}

//! Anchors: slots that deliberately stay behind the live slot, so that a replay finds the WAL that
//! it needs.
//!
//! An anchor is a copy of the live slot. The server reads a publication as of the position that it
//! decodes. The publication is therefore as old for the anchor as for the live slot. An anchor's
//! name begins with the live slot's name. Nothing else about an anchor is recorded.

use crate::store_error::StoreError;
use std::time::{Duration, SystemTime};
use walrelay_pg_replication::SlotError;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use crate::wal_time::first_time_at;
use walrelay_pg_client::sql;
use walrelay_pg_replication::{
    SlotState, advance_slot, check_slot_name, read_slot, read_slots, read_system_identifier,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The operator's name for the anchor.
    pub name: String,
    pub slot: SlotState,
    /// A replay from this anchor includes everything committed since this moment. None if the
    /// anchor is lost.
    pub reaches_back_to: Option<SystemTime>,
}

/// The state of an anchor, as status and metrics show it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnchorStatus {
    pub name: String,
    pub slot: SlotState,
    /// How far back the anchor reaches. None if the anchor is lost or no time is recorded.
    pub age: Option<Duration>,
}

/// The server's limits for replication slots, and the number of slots in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCapacity {
    /// The number of slots that exist.
    pub used: i64,
    /// The setting `max_replication_slots`.
    pub max: i64,
    /// The setting `max_slot_wal_keep_size`, in bytes. None if the server retains WAL without
    /// limit.
    pub keep_bytes: Option<u64>,
}

const BETWEEN: &str = "_anchor_";

/// Returns the slot name of the anchor `name`.
///
/// # Errors
///
/// The result is not a valid slot name.
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

/// The operator's name for the anchor that is this slot.
#[must_use]
pub fn anchor_of<'a>(slot: &str, anchor_slot: &'a str) -> &'a str {
    let name = anchor_slot.strip_prefix(slot).and_then(|rest| rest.strip_prefix(BETWEEN));
    name.unwrap_or(anchor_slot)
}

/// Reads the anchors of a slot, oldest position first.
pub async fn read_anchors(client: &Client, slot: &str) -> Result<Vec<Anchor>, StoreError> {
    let prefix = format!("{slot}{BETWEEN}");
    let system = read_recorded_system_identifier(client, slot).await?;
    let mut anchors = Vec::new();
    for state in read_slots(client, &prefix).await? {
        let name = state.name.strip_prefix(&prefix).unwrap_or_default().to_owned();
        let from = state.confirmed_flush_lsn.filter(|_| !state.is_lost());
        let reaches_back_to = match from {
            Some(from) => {
                let noted = first_time_at(client, &system, from).await?;
                // No time is recorded: the anchor still includes everything committed from now on.
                Some(noted.map_or_else(SystemTime::now, |noted| noted.at))
            }
            None => None,
        };
        anchors.push(Anchor { name, slot: state, reaches_back_to });
    }
    anchors.sort_by_key(|anchor| anchor.slot.confirmed_flush_lsn);
    Ok(anchors)
}

/// Reads the state of a slot's anchors, oldest position first. If the recorded times cannot be
/// read, ages are None and no error is returned, because the relay works without ages.
pub async fn read_anchor_states(
    client: &Client,
    slot: &str,
) -> Result<Vec<AnchorStatus>, StoreError> {
    let prefix = format!("{slot}{BETWEEN}");
    let slots = read_slots(client, &prefix).await?;
    if slots.is_empty() {
        return Ok(Vec::new());
    }
    let system = read_recorded_system_identifier(client, slot).await?;
    let mut states = Vec::new();
    for state in slots {
        let name = state.name.strip_prefix(&prefix).unwrap_or_default().to_owned();
        let noted = match state.confirmed_flush_lsn.filter(|_| !state.is_lost()) {
            None => Ok(None),
            Some(from) => first_time_at(client, &system, from).await,
        };
        let noted = match noted {
            Err(error) if error.is_disconnected() => return Err(error),
            Err(_) => None,
            Ok(noted) => noted,
        };
        let age = noted.map(|noted| noted.at.elapsed().unwrap_or_default());
        states.push(AnchorStatus { name, slot: state, age });
    }
    states.sort_by_key(|anchor| anchor.slot.confirmed_flush_lsn);
    Ok(states)
}

/// Finds the anchor of this name, even if the server has invalidated it.
pub async fn find_anchor(client: &Client, slot: &str, name: &str) -> Result<Anchor, StoreError> {
    let anchors = read_anchors(client, slot).await?;
    let names: Vec<_> = anchors.iter().map(|anchor| anchor.name.clone()).collect();
    let found = anchors.into_iter().find(|anchor| anchor.name == name);
    let missing =
        || StoreError::AnchorMissing { anchor: name.to_owned(), others: names.join(", ") };
    found.ok_or_else(missing)
}

/// Reads one anchor that can be used.
///
/// # Errors
///
/// There is no such anchor, or the server has invalidated it.
pub async fn read_anchor(client: &Client, slot: &str, name: &str) -> Result<Anchor, StoreError> {
    let anchor = find_anchor(client, slot, name).await?;
    match anchor.slot.is_lost() {
        true => Err(StoreError::AnchorLost { anchor: name.to_owned() }),
        false => Ok(anchor),
    }
}

pub async fn read_slot_capacity(client: &Client) -> Result<SlotCapacity, StoreError> {
    let row = client
        .query_typed_one(sql!("anchor.sql", "read_slot_capacity"), &[])
        .await
        .map_err(StoreError::sql("read how many slots there may be"))?;
    // `max_slot_wal_keep_size` is in megabytes, and -1 means no limit.
    let keep_bytes = u64::try_from(row.get::<_, i64>("keep")).ok().map(|mebibytes| mebibytes << 20);
    Ok(SlotCapacity { used: row.get("used"), max: row.get("max"), keep_bytes })
}

/// How long a slot exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyLifetime {
    /// Until it is dropped.
    Kept,
    /// Until the session ends, for any reason.
    Session,
}

/// Copies the slot `from` to `to` and returns the copy's position. `from` may be in use.
///
/// # Errors
///
/// `from` is missing or lost, `to` exists, or no further slot is allowed.
pub async fn copy_slot(
    client: &Client,
    from: &str,
    to: &str,
    life: CopyLifetime,
) -> Result<Lsn, StoreError> {
    check_slot_name(to)?;
    let row = client
        .query_typed_one(
            "SELECT lsn FROM pg_copy_logical_replication_slot($1, $2, $3)",
            &[
                (&from, Type::TEXT),
                (&to, Type::TEXT),
                (&(life == CopyLifetime::Session), Type::BOOL),
            ],
        )
        .await
        .map_err(StoreError::sql(format!("copy slot {from:?} as {to:?}")))?;
    Ok(Lsn::new(row.get::<_, PgLsn>("lsn").into()))
}

/// Moves an anchor forward, which frees the WAL before `to`. Returns the slot's state afterwards.
///
/// # Errors
///
/// The anchor is already past `to` or is in use.
pub async fn advance_anchor(
    client: &Client,
    anchor: &Anchor,
    to: Lsn,
) -> Result<SlotState, StoreError> {
    // The first call only marks the WAL as removable. The second call frees the WAL.
    for _ in 0..2 {
        advance_slot(client, &anchor.slot.name, to).await?;
    }
    let moved = read_slot(client, &anchor.slot.name).await?;
    moved.ok_or_else(|| StoreError::Slot(SlotError::SlotMissing { slot: anchor.slot.name.clone() }))
}

/// Returns the system identifier that this server's positions belong to. If the role may not ask
/// the server, the identifier comes from the relay's row.
pub async fn read_recorded_system_identifier(
    client: &Client,
    slot: &str,
) -> Result<String, StoreError> {
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

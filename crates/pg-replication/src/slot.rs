//! Replication slots: read, create, advance, drop.
//!
//! A slot is the lease of a relay and its place in the log. It is created and dropped by explicit
//! commands only (I9), and never goes backwards: the server sees to that.

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};
use walrelay_pg_client::SqlError;

use crate::slot_error::SlotError;

/// The output plugin this relay decodes.
pub const PLUGIN: &str = "pgoutput";

/// First major version with failover slots.
const FAILOVER_SINCE: u32 = 17;

/// A slot, as `pg_replication_slots` shows it. What a server's version does not tell is None.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Its name.
    pub name: String,
    /// Its output plugin; None for a physical slot.
    pub plugin: Option<String>,
    /// Logical or physical.
    pub slot_type: SlotType,
    /// The database it decodes; None for a physical slot.
    pub database: Option<String>,
    /// The session that uses it.
    pub active_pid: Option<i32>,
    /// The oldest log the server keeps for it.
    pub restart_lsn: Option<Lsn>,
    /// How far it is confirmed.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Whether the log it needs is still there.
    pub wal_status: Option<WalStatus>,
    /// Bytes that can still be written before it may be lost; None when that is unlimited, or too
    /// late. May be negative.
    pub safe_wal_size: Option<i64>,
    /// Whether it decodes prepared transactions before they commit.
    pub two_phase: bool,
    /// Whether it is synchronised to standbys; from Postgres 17.
    pub failover: Option<bool>,
    /// Why it was invalidated; from Postgres 17.
    pub invalidation_reason: Option<String>,
    /// Whether a conflict with recovery invalidated it; from Postgres 16, on a standby.
    pub conflicting: Option<bool>,
    /// The end of the server's log when this was read.
    pub wal_end: Lsn,
}

/// Whether `left` is little of what a slot may hold, which is that and what is `retained` for it: less than
/// `bytes`, or than a quarter of it all where that is less. Otherwise a slot that may hold little would be at
/// risk while it holds nothing.
#[must_use]
pub fn is_little_room(left: i64, retained: Option<u64>, bytes: i64) -> bool {
    let whole = retained.and_then(|kept| left.checked_add_unsigned(kept));
    let quarter = whole.map_or(bytes, |whole| whole / 4);
    left <= 0 || left < bytes.min(quarter)
}

/// The transaction of the whole server that has been writing for longest: `restart_lsn` of every slot
/// waits for it, whatever is confirmed.
#[derive(Debug, Clone, PartialEq)]
pub struct Writer {
    /// Its server process; none for a prepared transaction, which has no session any more.
    pub pid: Option<i32>,
    /// The name of a prepared transaction.
    pub prepared: Option<String>,
    /// How long ago it began or was prepared; none where the role may not see it.
    pub seconds: Option<f64>,
}

/// What a slot decodes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotType {
    /// Changes of one database.
    Logical,
    /// The log itself.
    Physical,
}

/// The `wal_status` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalStatus {
    /// Within `max_wal_size`.
    Reserved,
    /// Beyond it, and kept.
    Extended,
    /// No longer kept; the next checkpoint may remove it.
    Unreserved,
    /// Removed: the slot is useless.
    Lost,
}

impl SlotState {
    /// Bytes of log that are written and not confirmed.
    #[must_use]
    pub fn lag_bytes(&self) -> Option<u64> {
        self.confirmed_flush_lsn.map(|confirmed| self.wal_end.bytes_since(confirmed))
    }

    /// Bytes of log that the server keeps for this slot.
    #[must_use]
    pub fn retained_bytes(&self) -> Option<u64> {
        self.restart_lsn.map(|oldest| self.wal_end.bytes_since(oldest))
    }

    /// Bytes of log that are kept for it beyond what is not confirmed: for transactions that were being
    /// written when the confirmed position was.
    #[must_use]
    pub fn pinned_bytes(&self) -> Option<u64> {
        Some(self.confirmed_flush_lsn?.bytes_since(self.restart_lsn?))
    }

    /// Whether less than `bytes` of log are left until the slot may be lost; of a slot that may hold less than
    /// four times that, less than a quarter of what it may.
    #[must_use]
    pub fn has_less_room_than(&self, bytes: i64) -> bool {
        self.safe_wal_size.is_some_and(|left| is_little_room(left, self.retained_bytes(), bytes))
    }

    /// Whether the slot can never be streamed from again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.wal_status == Some(WalStatus::Lost)
            || self.invalidation_reason.is_some()
            || self.conflicting == Some(true)
    }

    /// Why a relay of `database` cannot use this slot, whatever its name; None when it can.
    #[must_use]
    pub fn mismatch(&self, database: &str) -> Option<String> {
        if self.slot_type == SlotType::Physical {
            return Some("is a physical slot".to_owned());
        }
        if self.plugin.as_deref() != Some(PLUGIN) {
            let plugin = self.plugin.as_deref().unwrap_or("none");
            return Some(format!("has the output plugin {plugin}, not {PLUGIN}"));
        }
        if self.database.as_deref() != Some(database) {
            let other = self.database.as_deref().unwrap_or("none");
            return Some(format!("decodes the database {other:?}, not {database:?}"));
        }
        self.two_phase.then(|| {
            "decodes prepared transactions before they commit, and they may still roll back"
                .to_owned()
        })
    }
}

/// Whether a slot is synchronised to standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Failover {
    /// It exists on this server only.
    #[default]
    No,
    /// A standby that takes over has it too; Postgres 17 and later.
    Yes,
}

/// The state of the slot of this name; `None` if it does not exist.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_slot(client: &Client, name: &str) -> Result<Option<SlotState>, SlotError> {
    let sql = format!("{SLOTS} WHERE slot_name = $1");
    let row = client
        .query_typed_opt(&sql, &[(&name, Type::TEXT)])
        .await
        .map_err(SlotError::sql(format!("read slot {name:?}")))?;
    row.as_ref().map(slot_state).transpose()
}

/// The slots of this database for pgoutput whose names begin so, except those that relays read.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_slots(client: &Client, prefix: &str) -> Result<Vec<SlotState>, SlotError> {
    let sql = format!(
        "{SLOTS} WHERE starts_with(slot_name::text, $1) AND plugin = '{PLUGIN}'
           AND database = current_database()
           AND slot_name NOT IN (SELECT slot FROM public.app_outbox_relay)"
    );
    let rows = client
        .query_typed(&sql, &[(&prefix, Type::TEXT)])
        .await
        .map_err(SlotError::sql(format!("read the slots {prefix}…")))?;
    rows.iter().map(slot_state).collect()
}

/// Through jsonb, because a column that this version does not have is then null, not an error.
const SLOTS: &str = "
SELECT slot_name::text, plugin::text, slot_type, database::text, active_pid, restart_lsn,
       confirmed_flush_lsn, wal_status, safe_wal_size, two_phase,
       (to_jsonb(s) ->> 'failover')::bool AS failover,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       (to_jsonb(s) ->> 'conflicting')::bool AS conflicting,
       CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0')
            ELSE pg_current_wal_lsn()
       END AS wal_end
  FROM pg_catalog.pg_replication_slots s";

/// Creates a logical slot for pgoutput; returns the position it starts from.
///
/// Waits for transactions that are running. The publication has to exist first: the server looks it
/// up as of each position it decodes.
///
/// # Errors
///
/// The name cannot be a slot's; the server is too old for failover; or the server refused.
pub async fn create_slot(
    client: &Client,
    name: &str,
    failover: Failover,
) -> Result<Lsn, SlotError> {
    check_slot_name(name)?;
    check_failover(client, failover).await?;
    let sql = match failover {
        Failover::No => {
            "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput', false, false)"
        }
        Failover::Yes => {
            "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)"
        }
    };
    one_lsn(client, sql, &[(&name, Type::TEXT)], format!("create slot {name:?}")).await
}

/// Moves a slot forward to `lsn` without decoding; returns where it then is. Rows in between are not
/// published by it.
///
/// # Errors
///
/// The slot is in use, lost, or already past `lsn`; or the server refused.
pub async fn advance_slot(client: &Client, name: &str, lsn: Lsn) -> Result<Lsn, SlotError> {
    let sql = "SELECT end_lsn FROM pg_replication_slot_advance($1, $2)";
    let target = PgLsn::from(lsn.as_u64());
    let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&target, Type::PG_LSN)];
    one_lsn(client, sql, &params, format!("advance slot {name:?} to {lsn}")).await
}

/// Drops a slot, and with it the only record of what has been confirmed.
///
/// # Errors
///
/// There is no such slot, or it is in use; or the server refused.
pub async fn drop_slot(client: &Client, name: &str) -> Result<(), SlotError> {
    if read_slot(client, name).await?.is_none() {
        return Err(SlotError::SlotMissing { slot: name.to_owned() });
    }
    client
        .query_typed("SELECT pg_drop_replication_slot($1)", &[(&name, Type::TEXT)])
        .await
        .map_err(SlotError::sql(format!("drop slot {name:?}")))?;
    Ok(())
}

/// Refuses what the server would refuse as a slot's name.
///
/// # Errors
///
/// No slot can have this name.
pub fn check_slot_name(name: &str) -> Result<(), SlotError> {
    let is_valid = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b == b'_' || b.is_ascii_digit() || b.is_ascii_lowercase());
    if is_valid { Ok(()) } else { Err(SlotError::SlotName { name: name.to_owned() }) }
}

/// Refuses a failover slot where the server does not know them.
///
/// # Errors
///
/// The server is too old, refused, or the connection ended.
pub async fn check_failover(client: &Client, failover: Failover) -> Result<(), SlotError> {
    let has = server_major(client).await?;
    match failover {
        Failover::Yes if has < FAILOVER_SINCE => {
            Err(SlotError::ServerTooOld { feature: "a failover slot", needs: FAILOVER_SINCE, has })
        }
        Failover::Yes | Failover::No => Ok(()),
    }
}

/// The server's version, as `server_version_num` has it.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn read_version(client: &Client) -> Result<i32, SlotError> {
    let row = client
        .query_typed_one("SELECT current_setting('server_version_num')::int AS number", &[])
        .await
        .map_err(SlotError::sql("read the server's version"))?;
    Ok(row.get("number"))
}

/// The server's major version.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub(crate) async fn server_major(client: &Client) -> Result<u32, SlotError> {
    Ok(read_version(client).await?.unsigned_abs() / 10_000)
}

type Param<'a> = (&'a (dyn tokio_postgres::types::ToSql + Sync), Type);

async fn one_lsn(
    client: &Client,
    sql: &str,
    params: &[Param<'_>],
    action: String,
) -> Result<Lsn, SlotError> {
    let row = client.query_typed_one(sql, params).await.map_err(SlotError::sql(action))?;
    Ok(Lsn::new(row.get::<_, PgLsn>(0).into()))
}

fn slot_state(row: &Row) -> Result<SlotState, SlotError> {
    let lsn = |column| row.get::<_, Option<PgLsn>>(column).map(|lsn| Lsn::new(lsn.into()));
    let unexpected = |column, value: &str, expected| {
        SlotError::Sql(SqlError::UnexpectedValue { column, value: value.to_owned(), expected })
    };
    let slot_type = match row.get::<_, &str>("slot_type") {
        "logical" => SlotType::Logical,
        "physical" => SlotType::Physical,
        other => {
            let column = "pg_replication_slots.slot_type";
            return Err(unexpected(column, other, "logical or physical"));
        }
    };
    let wal_status = match row.get::<_, Option<&str>>("wal_status") {
        None => None,
        Some("reserved") => Some(WalStatus::Reserved),
        Some("extended") => Some(WalStatus::Extended),
        Some("unreserved") => Some(WalStatus::Unreserved),
        Some("lost") => Some(WalStatus::Lost),
        Some(other) => {
            let column = "pg_replication_slots.wal_status";
            return Err(unexpected(column, other, "a status this version knows"));
        }
    };
    Ok(SlotState {
        name: row.get("slot_name"),
        plugin: row.get("plugin"),
        slot_type,
        database: row.get("database"),
        active_pid: row.get("active_pid"),
        restart_lsn: lsn("restart_lsn"),
        confirmed_flush_lsn: lsn("confirmed_flush_lsn"),
        wal_status,
        safe_wal_size: row.get("safe_wal_size"),
        two_phase: row.get("two_phase"),
        failover: row.get("failover"),
        invalidation_reason: row.get("invalidation_reason"),
        conflicting: row.get("conflicting"),
        wal_end: lsn("wal_end").unwrap_or(Lsn::ZERO),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_little_below_a_bound_or_a_quarter_of_all_that_the_slot_may_hold() {
        const MIB: i64 = 1 << 20;
        let is_little = |left, retained: i64| {
            is_little_room(left * MIB, Some((retained * MIB).unsigned_abs()), 256 * MIB)
        };
        // Of 64 MiB, of 10 GiB, and lost.
        let cases = [
            (64, 0, false),
            (17, 47, false),
            (15, 49, true),
            (257, 9_983, false),
            (255, 9_985, true),
            (0, 0, true),
            (-5, 69, true),
        ];
        for (left, retained, expected) in cases {
            assert_eq!(is_little(left, retained), expected, "{left} of {}", left + retained);
        }
        assert!(is_little_room(MIB, None, 256 * MIB), "what it may hold is not known");
    }
}

//! Replication slots: read, create, advance, drop.
//!
//! A slot is a relay's lease and its position in the WAL. Only explicit commands create and drop
//! slots (I9). The server ensures that a slot never moves backwards.

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};
use walrelay_pg_client::{Parameter, SCHEMA, SqlError, SqlText, sql};

use crate::slot_error::SlotError;

/// The output plugin that this relay decodes.
pub const PLUGIN: &str = "pgoutput";

/// First major version with failover slots.
const FAILOVER_SINCE: u32 = 17;

/// A slot, as in `pg_replication_slots`. Columns that the server's version lacks are None.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    pub name: String,
    /// Output plugin. None for a physical slot.
    pub plugin: Option<String>,
    pub slot_type: SlotType,
    /// The database that the slot decodes. None for a physical slot.
    pub database: Option<String>,
    /// Process id of the session that uses the slot.
    pub active_pid: Option<i32>,
    /// The oldest WAL that the server retains for the slot.
    pub restart_lsn: Option<Lsn>,
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Whether the WAL that the slot needs still exists.
    pub wal_status: Option<WalStatus>,
    /// Bytes of WAL that can be written before the slot may be lost. None if unlimited, or if the
    /// slot is lost. May be negative.
    pub safe_wal_size: Option<i64>,
    /// Whether the slot decodes prepared transactions before they commit.
    pub two_phase: bool,
    /// Whether the slot is synchronised to standbys. Since Postgres 17.
    pub failover: Option<bool>,
    /// Why the slot was invalidated. Since Postgres 17.
    pub invalidation_reason: Option<String>,
    /// Whether a conflict with recovery invalidated the slot. Since Postgres 16, on a standby.
    pub conflicting: Option<bool>,
    /// End of the server's WAL when the slot was read.
    pub wal_end: Lsn,
}

/// Returns whether `left` is little headroom: less than `bytes`, or than a quarter of the slot's
/// capacity if that is less. The capacity is `left` plus the `retained` WAL. Without the quarter, a
/// slot with a small capacity would be at risk while it retains nothing.
#[must_use]
pub fn is_little_headroom(left: i64, retained: Option<u64>, bytes: i64) -> bool {
    let whole = retained.and_then(|kept| left.checked_add_unsigned(kept));
    let quarter = whole.map_or(bytes, |whole| whole / 4);
    left <= 0 || left < bytes.min(quarter)
}

/// The transaction of the whole server that has been writing for longest. `restart_lsn` of every
/// slot waits for it, independent of the confirmed position.
#[derive(Debug, Clone, PartialEq)]
pub struct Writer {
    /// Process id. None for a prepared transaction, which has no session.
    pub pid: Option<i32>,
    /// Name of a prepared transaction.
    pub prepared: Option<String>,
    /// Seconds since the transaction began or was prepared. None if the role may not see it.
    pub seconds: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotType {
    /// Changes of one database.
    Logical,
    /// The WAL itself.
    Physical,
}

/// The `wal_status` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalStatus {
    /// Within `max_wal_size`.
    Reserved,
    /// Beyond `max_wal_size`, but retained.
    Extended,
    /// No longer retained. The next checkpoint may remove the WAL.
    Unreserved,
    /// Removed, so the slot is useless.
    Lost,
}

impl SlotState {
    /// Returns the bytes of WAL that are written and not confirmed.
    #[must_use]
    pub fn lag_bytes(&self) -> Option<u64> {
        self.confirmed_flush_lsn.map(|confirmed| self.wal_end.bytes_since(confirmed))
    }

    /// Returns the bytes of WAL that the server retains for this slot.
    #[must_use]
    pub fn retained_bytes(&self) -> Option<u64> {
        self.restart_lsn.map(|oldest| self.wal_end.bytes_since(oldest))
    }

    /// Returns the bytes of WAL that are retained before the confirmed position. Transactions that
    /// were writing at that position need this WAL.
    #[must_use]
    pub fn pinned_bytes(&self) -> Option<u64> {
        Some(self.confirmed_flush_lsn?.bytes_since(self.restart_lsn?))
    }

    /// Returns whether the slot may be lost after less than `bytes` of WAL. For a slot whose
    /// capacity is less than four times `bytes`, the limit is a quarter of the capacity.
    #[must_use]
    pub fn has_less_room_than(&self, bytes: i64) -> bool {
        self.safe_wal_size
            .is_some_and(|left| is_little_headroom(left, self.retained_bytes(), bytes))
    }

    /// Returns whether the slot can never be streamed from again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.wal_status == Some(WalStatus::Lost)
            || self.invalidation_reason.is_some()
            || self.conflicting == Some(true)
    }

    /// Returns why a relay of `database` cannot use this slot. None if it can.
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
    /// The slot exists on this server only.
    #[default]
    No,
    /// A standby that takes over has the slot also. Postgres 17 and later.
    Yes,
}

/// Reads the slot of this name. `None` if it does not exist.
pub async fn read_slot(client: &Client, name: &str) -> Result<Option<SlotState>, SlotError> {
    let sql = format!("{SLOTS} WHERE slot_name = $1");
    let row = client
        .query_typed_opt(&sql, &[(&name, Type::TEXT)])
        .await
        .map_err(SlotError::sql(format!("read slot {name:?}")))?;
    row.as_ref().map(slot_state).transpose()
}

/// Reads this database's pgoutput slots whose names begin with `prefix`, except slots of relays.
pub async fn read_slots(client: &Client, prefix: &str) -> Result<Vec<SlotState>, SlotError> {
    // spliced: SLOTS, which `read_slot` also begins with.
    let sql = format!(
        "{SLOTS} WHERE starts_with(slot_name::text, $1) AND plugin = '{PLUGIN}'
           AND database = current_database()
           AND slot_name NOT IN (SELECT slot FROM {SCHEMA}.app_outbox_relay)"
    );
    let rows = client
        .query_typed(&sql, &[(&prefix, Type::TEXT)])
        .await
        .map_err(SlotError::sql(format!("read the slots {prefix}…")))?;
    rows.iter().map(slot_state).collect()
}

/// Goes through jsonb, which returns null instead of an error for a column that this version lacks.
static SLOTS: SqlText = SqlText::new(|| sql!("slot.sql", "slots"));

/// Creates a logical slot for pgoutput and returns its start position.
///
/// Waits for running transactions, for any `lock_timeout`. The publication has to exist first, because
/// the server reads it as of each position that it decodes.
///
/// # Errors
///
/// The name is not a valid slot name, or the server is too old for failover.
pub async fn create_slot(
    client: &Client,
    name: &str,
    failover: Failover,
) -> Result<Lsn, SlotError> {
    check_slot_name(name)?;
    check_failover(client, failover).await?;
    let mut sql = sql!("slot.sql", "create").to_owned();
    if failover == Failover::Yes {
        // spliced: the argument that servers before 17 do not know.
        sql = sql.replace("false, false)", "false, false, true)");
    }
    one_lsn(client, &sql, &[(&name, Type::TEXT)], format!("create slot {name:?}")).await
}

/// Moves a slot forward to `lsn` without decoding and returns its new position. The slot does not
/// publish the rows in between.
///
/// # Errors
///
/// The slot is in use, lost, or already past `lsn`.
pub async fn advance_slot(client: &Client, name: &str, lsn: Lsn) -> Result<Lsn, SlotError> {
    let sql = "SELECT end_lsn FROM pg_replication_slot_advance($1, $2)";
    let target = PgLsn::from(lsn.as_u64());
    let params: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&target, Type::PG_LSN)];
    one_lsn(client, sql, &params, format!("advance slot {name:?} to {lsn}")).await
}

/// Drops a slot, and with it the only record of the confirmed position.
///
/// # Errors
///
/// There is no such slot, or it is in use.
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

/// Refuses a name that the server would refuse for a slot.
pub fn check_slot_name(name: &str) -> Result<(), SlotError> {
    let is_valid = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b == b'_' || b.is_ascii_digit() || b.is_ascii_lowercase());
    if is_valid { Ok(()) } else { Err(SlotError::SlotName { name: name.to_owned() }) }
}

/// Refuses a failover slot if the server does not support them.
pub async fn check_failover(client: &Client, failover: Failover) -> Result<(), SlotError> {
    let has = server_major(client).await?;
    match failover {
        Failover::Yes if has < FAILOVER_SINCE => {
            Err(SlotError::ServerTooOld { feature: "a failover slot", needs: FAILOVER_SINCE, has })
        }
        Failover::Yes | Failover::No => Ok(()),
    }
}

/// Reads the server's version, as `server_version_num`.
pub async fn read_version(client: &Client) -> Result<i32, SlotError> {
    let row = client
        .query_typed_one("SELECT current_setting('server_version_num')::int AS number", &[])
        .await
        .map_err(SlotError::sql("read the server's version"))?;
    Ok(row.get("number"))
}

pub(crate) async fn server_major(client: &Client) -> Result<u32, SlotError> {
    Ok(read_version(client).await?.unsigned_abs() / 10_000)
}

async fn one_lsn(
    client: &Client,
    sql: &str,
    params: &[Parameter<'_>],
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
            is_little_headroom(left * MIB, Some((retained * MIB).unsigned_abs()), 256 * MIB)
        };
        // Cases of 64 MiB and of 10 GiB, and lost slots.
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
        assert!(is_little_headroom(MIB, None, 256 * MIB), "what it may hold is not known");
    }
}

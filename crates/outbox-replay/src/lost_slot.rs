//! Lost slots, and the rows at risk.

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use walrelay_errors::{Chain, Code, Coded as _};
use walrelay_outbox_store::{
    Definition, Outbox, free_slot, read_definitions, read_publication_gap, read_relay_row,
    read_wal_end,
};
use walrelay_pg_client::{QualifiedName, sql};
use walrelay_pg_replication::{SlotError, SlotState, read_slot};

use crate::admin_error::AdminError;
use crate::rows::row_filter::read_row_filter;
use crate::unconfirmed::{count_unsettled_rows, unconfirmed_transactions};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostSlot {
    pub problem: String,
    pub settled: Option<SettledRecord>,
}

impl LostSlot {
    /// Returns whether the slot was released, and so dropped on purpose.
    #[must_use]
    pub fn is_released(&self) -> bool {
        let begun = self.settled.as_ref().and_then(|row| row.operation.as_deref());
        begun == Some("release")
    }
}

/// The settled position of a slot, as `app_outbox_relay` records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledRecord {
    /// System identifier of the server that the positions belong to.
    pub system_identifier: String,
    /// The watermark.
    pub lsn: Lsn,
    /// Every committed transaction below this one is settled.
    pub xid: u64,
    /// End of the WAL on disk, read after the watermark. None in recovery.
    pub wal_end: Option<Lsn>,
    /// Kind of the unfinished operation on the slot.
    pub operation: Option<String>,
    /// Why rows may be missing from the stream, if the publication was changed.
    pub publication_gap: Option<String>,
}

/// Returns why no relay can continue with this slot although one has used it. None if nothing is
/// lost.
#[must_use]
pub fn loss(
    slot: Option<&SlotState>,
    settled: Option<&SettledRecord>,
    system_identifier: Option<&str>,
) -> Option<LostSlot> {
    // During an operation the slot may be missing, and the session that finishes the operation
    // creates it again. A release is different: its slot is dropped, and nothing creates it again
    // automatically.
    let begun = settled.and_then(|row| row.operation.as_deref());
    if begun.is_some_and(|kind| kind != "release") {
        return None;
    }
    let problem = match (slot, settled) {
        (Some(slot), _) if slot.is_lost() => {
            let reason = slot.invalidation_reason.as_deref();
            format!("is invalidated: {}", reason.unwrap_or("the WAL it needs was removed"))
        }
        (None, Some(row)) => format!(
            "is gone, and was settled up to {}: an upgrade, a restore or a person dropped it",
            row.lsn
        ),
        (Some(_), Some(row)) if system_identifier.is_some_and(|id| id != row.system_identifier) => {
            format!(
                "is on record as one of the server {}, and this is another",
                row.system_identifier
            )
        }
        (Some(slot), Some(row)) => {
            history_mismatch(slot, row).or_else(|| row.publication_gap.clone())?
        }
        (Some(_) | None, None) => return None,
    };
    Some(LostSlot { problem, settled: settled.cloned() })
}

/// Returns why this slot is not the one that the relay's row describes, or why the row is not from
/// this server's history.
///
/// The relay writes the row before it confirms the slot, so the slot's WAL never begins after the
/// recorded position. The row's own commit comes after the recorded position. A history that
/// contains the row therefore contains everything up to that position.
fn history_mismatch(slot: &SlotState, row: &SettledRecord) -> Option<String> {
    let settled = row.lsn;
    if let Some(end) = row.wal_end.filter(|end| settled > *end) {
        return Some(format!(
            "was settled up to {settled}, and the WAL of this server ends at {end}: it lost what was published"
        ));
    }
    let restart = slot.restart_lsn.filter(|restart| *restart > settled)?;
    Some(format!(
        "begins at {restart}, and was settled up to {settled}: it is another slot of the same name, and what \
         was committed in between is not in it"
    ))
}

/// Reads the settled position of a slot. None if nothing is recorded.
pub async fn read_settled(
    client: &Client,
    slot: &str,
) -> Result<Option<SettledRecord>, AdminError> {
    let Some(row) = read_relay_row(client, slot).await? else { return Ok(None) };
    // In this order, because a running relay moves the row, and the WAL's end moves before it.
    let wal_end = read_wal_end(client).await?;
    Ok(Some(SettledRecord {
        system_identifier: row.system_identifier,
        lsn: row.settled_lsn,
        xid: row.settled_xid,
        wal_end,
        operation: row.operation,
        publication_gap: read_publication_gap(client, slot).await?,
    }))
}

pub async fn read_loss(client: &Client, slot: &str) -> Result<Option<LostSlot>, AdminError> {
    let state = read_slot(client, slot).await?;
    let relation = client
        .query_typed_one(sql!("lost_slot.sql", "read_loss"), &[])
        .await
        .map_err(AdminError::sql("look for app_outbox_relay"))?;
    let row = match relation.get("is_there") {
        true => read_settled(client, slot).await?,
        false => None,
    };
    let identifier = match relation.get("may_ask") {
        true => Some(system_identifier(client).await?),
        false => None,
    };
    Ok(loss(state.as_ref(), row.as_ref(), identifier.as_deref()))
}

/// As [`read_loss`], and also decodes the changes that the slot has not confirmed: only that shows
/// whether the server still has their WAL. A slot that somebody reads is not lost.
pub async fn read_loss_with_wal(
    client: &Client,
    outbox: &Outbox,
) -> Result<Option<LostSlot>, AdminError> {
    let Outbox { slot, publication, .. } = outbox;
    if let Some(lost) = read_loss(client, slot).await? {
        return Ok(Some(lost));
    }
    match unconfirmed_transactions(client, slot, publication).await {
        Err(error) if error.code() == Code::SlotLost => Ok(Some(LostSlot {
            problem: format!("needs WAL that the server does not have: {}", Chain(&error)),
            settled: read_settled(client, slot).await?,
        })),
        Ok(_) | Err(_) => Ok(None),
    }
}

pub async fn refuse_lost(client: &Client, slot: &str) -> Result<(), AdminError> {
    match read_loss(client, slot).await? {
        Some(LostSlot { problem, .. }) => {
            Err(AdminError::SlotLost { slot: slot.to_owned(), problem })
        }
        None => Ok(()),
    }
}

/// Refuses a slot that this database cannot use, such as the slot of a database of which this one is
/// a copy. A slot that does not exist is accepted.
///
/// # Errors
///
/// The slot is of another database, type or plugin.
pub async fn refuse_other_slot(client: &Client, slot: &str) -> Result<(), AdminError> {
    let Some(state) = read_slot(client, slot).await? else { return Ok(()) };
    let database = client.query_typed_one("SELECT current_database()::text AS name", &[]).await;
    let database = database.map_err(AdminError::sql("read the name of the database"))?;
    match state.mismatch(database.get("name")) {
        Some(problem) => Err(AdminError::SlotUnusable { slot: slot.to_owned(), problem }),
        None => Ok(()),
    }
}

/// Returns the slot that a command means, and the definition of its outbox or why there is none. Without
/// `slot`, a command is about the only outbox on record, or about a new one.
///
/// # Errors
///
/// Several outboxes are on record and none is named.
pub async fn named_definition(
    client: &Client,
    slot: Option<&str>,
) -> Result<(String, Result<Definition, AdminError>), AdminError> {
    // The catalog leads to the slot also for a role that may not read the record.
    let (found, unread) = match read_definitions(client).await {
        Err(error) if error.code() == Code::PermissionMissing => (Vec::new(), Some(error)),
        found => (found?, None),
    };
    let slot = match (slot, found.as_slice()) {
        (Some(given), _) => given.to_owned(),
        (None, []) => free_slot(client).await?,
        (None, [only]) => only.slot.clone(),
        (None, several) => {
            let slots = several.iter().map(|it| it.slot.clone()).collect();
            return Err(AdminError::OutboxUnnamed { slots });
        }
    };
    let definition = match unread {
        Some(error) => Err(error.into()),
        None => definition_of(&slot, found),
    };
    Ok((slot, definition))
}

/// Returns the definition with this slot. Fails if there is none, or if another table has taken a name of
/// it.
fn definition_of(slot: &str, mut found: Vec<Definition>) -> Result<Definition, AdminError> {
    if let Some(index) = found.iter().position(|it| it.slot == slot) {
        let recorded = found.swap_remove(index);
        return match recorded.ambiguity() {
            Some(what) => Err(AdminError::OutboxDiffers { slot: recorded.slot, what }),
            None => Ok(recorded),
        };
    }
    let others = found.into_iter().map(|it| it.slot).collect();
    Err(AdminError::OutboxUndefined { slot: slot.to_owned(), others })
}

/// Refuses an outbox whose tables or publication are not those on record.
///
/// # Errors
///
/// The outbox differs or has no definition.
pub async fn refuse_other_outbox(client: &Client, outbox: &Outbox) -> Result<(), AdminError> {
    let recorded = definition_of(outbox.base_slot(), read_definitions(client).await?)?;
    match Definition::of(outbox, &recorded.columns).difference_from(&recorded) {
        Some(what) => Err(AdminError::OutboxDiffers { slot: recorded.slot, what }),
        None => Ok(()),
    }
}

/// Returns the slot. Refuses one that is lost or does not exist.
pub async fn existing_slot(client: &Client, slot: &str) -> Result<SlotState, AdminError> {
    refuse_lost(client, slot).await?;
    let missing = || SlotError::SlotMissing { slot: slot.to_owned() };
    Ok(read_slot(client, slot).await?.ok_or_else(missing)?)
}

async fn system_identifier(client: &Client) -> Result<String, AdminError> {
    let sql = "SELECT system_identifier::text AS id FROM pg_control_system()";
    let row = client.query_typed_one(sql, &[]);
    Ok(row.await.map_err(AdminError::sql("read the system identifier"))?.get("id"))
}

/// Counts the rows of each table that may be lost with the slot, rather too many than too few. Rows
/// that the row filter of the publication leaves out are none of them.
pub async fn rows_at_risk(
    client: &Client,
    outbox: &Outbox,
    settled: &SettledRecord,
) -> Result<Vec<(QualifiedName, u64)>, AdminError> {
    let mut counted = Vec::with_capacity(outbox.tables.len());
    for table in &outbox.tables {
        let filter = read_row_filter(client, outbox, table).await?;
        let of_table = (table, filter.as_deref());
        counted.push((table.clone(), count_unsettled_rows(client, of_table, settled.xid).await?));
    }
    Ok(counted)
}

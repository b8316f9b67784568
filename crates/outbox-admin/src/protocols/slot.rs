//! Drops and recovers the slot. Only explicit commands create or drop slots (I9).

use std::time::SystemTime;

use walrelay_core::ColumnNames;
use walrelay_errors::{Code, Coded};
use walrelay_outbox_replay::operation_resumer::outcome::Outcome;
use walrelay_outbox_replay::{
    AdminError, SlotOperation, count_unsettled_rows, extend_recovery, read_loss, read_settled,
    recovery, rows_at_risk, unconfirmed_transactions,
};
use walrelay_outbox_store::{
    Outbox, delete_relay_row, read_anchors, read_publication_gap, read_recorded_row_filters,
    read_relay_row,
};
use walrelay_pg_client::{QualifiedName, ServerErrorKind, SqlClient, SqlError};
use walrelay_pg_replication::{SlotError, SlotState, drop_slot, read_publication, read_slot};

use super::conflicts::Wanted;
use super::facts::refuse_conflicts;
use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{count_unpublished_rows, if_recorded, reset_cancelled};
use super::protocol_error::ProtocolError;
use super::release::cancel_begun_release;
use super::skipping::FIRST_XID;
use super::table_rows::TableRows;
use crate::init::restoring_sql;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedSlot {
    /// Number of unconfirmed rows, which are never published.
    pub rows: u64,
    /// Names of the slot's anchors. They stay, and retain WAL.
    pub anchors: Vec<String>,
}

/// Drops the slot and its record, if it has at most `discard_rows` unconfirmed rows. Returns `None`
/// after a dry run.
///
/// # Errors
///
/// Neither the slot nor its record exists, or the slot is in use, or has more unconfirmed rows.
/// Also if an operation is unfinished, or a replay pauses keys.
pub async fn drop_checked<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    discard_rows: u64,
) -> Result<Option<DroppedSlot>, ProtocolError> {
    let (client, slot) = (session.client, outbox.slot.as_str());
    refuse_conflicts(client, outbox, Wanted::DropSlot).await?;
    let Some(state) = read_slot(client, slot).await? else {
        return drop_record(session, outbox, discard_rows).await;
    };
    let rows = droppable_rows(client, outbox, &state, discard_rows).await?;
    let change = async || Ok(Change::DropSlot { slot: slot.to_owned(), rows });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let anchors = read_anchors(client, slot).await?;
    drop_slot(client, slot).await?;
    // With a record left behind, the next start would report the slot as lost.
    if_recorded(delete_relay_row(client, slot).await)?;
    let anchors = anchors.into_iter().map(|anchor| anchor.name).collect();
    Ok(Some(DroppedSlot { rows, anchors }))
}

/// Deletes the record of a slot that does not exist. The record keeps `prune` from deleting rows.
async fn drop_record<O: Operator>(
    session: &AdminSession<'_, O>,
    Outbox { slot, tables, .. }: &Outbox,
    discard_rows: u64,
) -> Result<Option<DroppedSlot>, ProtocolError> {
    let client = session.client;
    let Some(record) = if_recorded(read_relay_row(client, slot).await)?.flatten() else {
        return Err(SlotError::SlotMissing { slot: slot.clone() }.into());
    };
    let rows = unsettled_rows(client, tables, record.settled_xid).await?;
    if rows > discard_rows {
        return Err(ProtocolError::RecordLosesRows { slot: slot.clone(), rows });
    }
    let change = async || Ok(Change::DropSlot { slot: slot.clone(), rows });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let anchors = read_anchors(client, slot).await?;
    delete_relay_row(client, slot).await?;
    let anchors = anchors.into_iter().map(|anchor| anchor.name).collect();
    Ok(Some(DroppedSlot { rows, anchors }))
}

/// Returns the number of unconfirmed rows, if the operator agreed to lose as many.
async fn droppable_rows(
    client: &SqlClient,
    outbox: &Outbox,
    state: &SlotState,
    discard_rows: u64,
) -> Result<u64, ProtocolError> {
    let Outbox { slot, tables, .. } = outbox;
    let is_ours = state.mismatch(state.database.as_deref().unwrap_or_default()).is_none();
    if is_ours && read_loss(client, slot).await?.is_none() {
        let rows = unconfirmed_rows(client, outbox).await?;
        return match rows > discard_rows {
            true => Err(ProtocolError::DropLosesRows { slot: slot.clone(), rows }),
            false => Ok(rows),
        };
    }
    // The slot cannot be read, or it is another one of the same name. Without a record, no relay has
    // used it.
    let record = if_recorded(read_relay_row(client, slot).await)?.flatten();
    let rows = match record {
        Some(record) => unsettled_rows(client, tables, record.settled_xid).await?,
        None => 0,
    };
    match rows > discard_rows {
        true => Err(ProtocolError::RecordLosesRows { slot: slot.clone(), rows }),
        false => Ok(rows),
    }
}

/// Counts the unconfirmed rows of the slot. Without its publication the slot cannot be decoded.
/// After a change of the publication it lacks rows. In both cases the rows are counted in the
/// tables.
async fn unconfirmed_rows(client: &SqlClient, outbox: &Outbox) -> Result<u64, ProtocolError> {
    let Outbox { slot, publication, tables, .. } = outbox;
    match unconfirmed_transactions(client, slot, publication).await {
        Ok(transactions)
            if if_recorded(read_publication_gap(client, slot).await)?.flatten().is_none() =>
        {
            return Ok(transactions.iter().map(|transaction| transaction.rows).sum());
        }
        Ok(_) => {}
        Err(error) if error.server_kind() == Some(ServerErrorKind::Missing) => {}
        Err(error) => return Err(error.into()),
    }
    let row = read_relay_row(client, slot).await?;
    unsettled_rows(client, tables, row.map_or(FIRST_XID, |row| row.settled_xid)).await
}

/// Counts the rows of these tables that are not settled.
async fn unsettled_rows(
    client: &SqlClient,
    tables: &[QualifiedName],
    settled_xid: u64,
) -> Result<u64, ProtocolError> {
    let mut rows = 0;
    for table in tables {
        // The row filter may be younger than the rows, and the count must not be too small.
        rows += count_unsettled_rows(client, (table, None), settled_xid).await?;
    }
    Ok(rows)
}

#[derive(Debug)]
pub enum Recovered {
    /// The slot still existed, and its release is cancelled.
    ReleaseCancelled,
    /// The new slot exists. The relay publishes these rows, and then what the slot streams.
    NewSlot { operation: SlotOperation, rows: Vec<TableRows> },
    /// Another operation on the slot was unfinished, and is finished now.
    Finished(SlotOperation),
    /// A relay has finished the recovery.
    ByRelay,
}

/// Creates the new slot. The relay then publishes the rows that the new slot does not stream.
/// Returns `None` after a dry run.
///
/// # Errors
///
/// The slot is not lost, its record belongs to another database, or another operation is
/// unfinished.
pub async fn recover<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    since: Option<SystemTime>,
    columns: &ColumnNames,
) -> Result<Option<Recovered>, ProtocolError> {
    let (client, slot) = (session.client, outbox.slot.as_str());
    refuse_conflicts(client, outbox, Wanted::RecoverSlot).await?;
    if cancel_begun_release(session, slot).await? {
        return Ok(Some(Recovered::ReleaseCancelled));
    }
    if since.is_some() {
        for name in &outbox.tables {
            recovery::table(client, name, columns).await?.time_column()?;
        }
    }
    let plan = recovery::plan(client, outbox, since).await;
    let plan = plan.map_err(|error| match error.code() == Code::SlotNotLost {
        // The setup could be read, so the error does not say otherwise.
        true => AdminError::NotLost { slot: slot.to_owned() }.into(),
        false => ProtocolError::from(error),
    })?;
    let change = async || recovery_change(client, outbox, since).await;
    if (plan.is_some() || since.is_some()) && !session.agree(change).await? {
        return Ok(None);
    }
    match (plan, since) {
        (Some(plan), _) => {
            restore_publication(client, outbox).await?;
            plan.begin(client, outbox).await?;
        }
        (None, Some(since)) => extend_recovery(client, slot, since).await?,
        (None, None) => {}
    }
    Ok(Some(match session.finish_operation(slot).await? {
        Outcome::Pending(operation) => {
            let rows = count_unpublished_rows(client, outbox, columns).await?;
            Recovered::NewSlot { operation, rows }
        }
        Outcome::Finished(done) => Recovered::Finished(done),
        Outcome::ResetCancelled(reset) => return Err(reset_cancelled(client, slot, &reset).await),
        Outcome::ReleaseCancelled(_) => Recovered::ReleaseCancelled,
        Outcome::Elsewhere { operation, what } => {
            return Err(operation.unfinished(slot, what).into());
        }
        Outcome::Nothing => Recovered::ByRelay,
    }))
}

/// Creates the recorded publication again if it was dropped, and adds missing tables, before the new
/// slot is created. They have their row filters on record, or rows would be published that never
/// were. The row filters of a shard need the key of the shards, which is not known here.
async fn restore_publication(client: &SqlClient, outbox: &Outbox) -> Result<(), ProtocolError> {
    let Outbox { publication, tables, shard, .. } = outbox;
    let found = read_publication(client, publication).await?;
    let is_complete = found.is_some_and(|it| tables.iter().all(|table| it.covers(table)));
    if is_complete || !shard.is_whole() {
        return Ok(());
    }
    let row_filters = read_recorded_row_filters(client, &outbox.slot, publication).await?;
    let restored = client.batch_execute(&restoring_sql(outbox, &row_filters)).await;
    Ok(restored.map_err(SqlError::sql(format!("create publication {publication} again")))?)
}

/// Counts the rows that are published again. With `since`, only the recovery itself counts them.
async fn recovery_change(
    client: &SqlClient,
    outbox: &Outbox,
    since: Option<SystemTime>,
) -> Result<Change, ProtocolError> {
    let settled = read_settled(client, &outbox.slot).await?;
    let rows = match (settled, since) {
        (Some(settled), None) => {
            let counted = rows_at_risk(client, outbox, &settled).await?;
            let counted = counted.into_iter();
            Some(
                counted.map(|(table, rows)| TableRows { table: table.to_string(), rows }).collect(),
            )
        }
        (Some(_) | None, _) => None,
    };
    Ok(Change::RecoverSlot { slot: outbox.slot.clone(), rows })
}

//! Moves the slot past one transaction, whose rows are then never published.
//!
//! The rows are reported and recorded before the slot moves. After a kill, the same command reports
//! them again, and completes what is missing.

use pgoutput_parser::Lsn;
use serde::{Deserialize, Serialize};
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::{
    Outbox, advance_relay_row, read_last_skipped, read_recorded_system_identifier, read_wal_end,
    record_skipped, take_relay_row,
};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::{SlotError, advance_slot, read_server_identity, read_slot};
use walrelay_relay::failpoint;

use super::conflicts::Wanted;
use super::facts::refuse_conflicts;
use super::operator::{AdminSession, Change, Operator, Step};
use super::preconditions::if_recorded;
use super::protocol_error::ProtocolError;
use super::skipped_rows::SkippedRows;
use super::skipping::{agreed_rows, count_skipped_rows, settled_position};
use crate::lookahead::{Question, SkippedRow, look_ahead};

/// The transaction that a slot is moved past.
#[derive(Debug, Clone, Copy)]
pub struct Advance<'a> {
    /// A position inside the transaction, or of its commit.
    pub to: Lsn,
    /// The number of rows that the operator has agreed to lose.
    pub discard_rows: u64,
    pub columns: &'a ColumnNames,
}

/// A slot that was moved past rows.
#[derive(Debug)]
pub struct AdvancedSlot {
    /// The new position of the slot.
    pub at: Lsn,
    /// The rows that are never published.
    pub skipped: SkippedRows,
    /// Whether an earlier run moved the slot, and this run only reports the rows.
    pub is_earlier: bool,
}

/// Moves the slot past exactly the transaction that `to` belongs to, or to `to` if `to` belongs to
/// no transaction. Returns `None` after a dry run.
///
/// # Errors
///
/// The operator did not agree to the number of skipped rows. The position is before the slot or
/// after the end of the WAL. Also if the slot is in use, or an operation is unfinished.
pub async fn advance<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
    advance: Advance<'_>,
) -> Result<Option<AdvancedSlot>, ProtocolError> {
    let (client, slot) = (session.client, &outbox.slot);
    refuse_conflicts(client, outbox, Wanted::AdvanceSlot).await?;
    refuse_past_wal(client, advance.to).await?;
    let found = look_ahead(Question {
        connect: session.connect,
        slot,
        publication: &outbox.publication,
        id: &advance.columns.id,
        from: settled_position(client, slot).await?,
        to: advance.to,
    });
    let skipped = count_skipped_rows(client, outbox, advance.columns, found.await?).await?;
    let here = confirmed_position(client, slot).await?;
    let earlier = match skipped.inserts {
        0 => {
            LastSkipped::read(client, slot).await?.filter(|earlier| earlier.is_done(&advance, here))
        }
        _ => None,
    };
    let is_earlier = earlier.is_some();
    let skipped = match earlier {
        Some(earlier) => earlier.into_rows(),
        None => agreed_rows(skipped, advance.discard_rows)?,
    };
    let to = skipped.target;
    if to < here && !is_earlier {
        return Err(ProtocolError::SlotAhead { slot: slot.clone(), here, to });
    }
    // Before the slot moves: afterwards no session can read these rows from the WAL.
    session.report(&Step::RowsSkipped(skipped.clone()))?;
    let rows = skipped.inserts;
    let change = async || Ok(Change::AdvanceSlot { slot: slot.clone(), to, rows });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let at = match is_earlier {
        true => here,
        false => {
            record(client, slot, &LastSkipped::new(advance.to, &skipped)).await?;
            failpoint::hit("advance-recorded");
            // The slot moves without decoding, and so also passes a row that the server cannot
            // send.
            advance_slot(client, slot, to).await?
        }
    };
    failpoint::hit("advance-moved");
    // Otherwise the next start would report the skipped rows as a gap. An earlier run may have been
    // followed by a relay.
    if_recorded(advance_relay_row(client, slot, to.min(at)).await)?;
    Ok(Some(AdvancedSlot { at, skipped, is_earlier }))
}

/// Refuses a position after the end of the WAL. The rows before it are not written yet, so nobody
/// can count them.
async fn refuse_past_wal(client: &SqlClient, to: Lsn) -> Result<(), ProtocolError> {
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    match to > end {
        true => Err(ProtocolError::TargetPastWal { target: to, end }),
        false => Ok(()),
    }
}

async fn confirmed_position(client: &SqlClient, slot: &str) -> Result<Lsn, ProtocolError> {
    let missing = || SlotError::SlotMissing { slot: slot.to_owned() };
    let state = read_slot(client, slot).await?.ok_or_else(missing)?;
    Ok(state.confirmed_flush_lsn.unwrap_or(Lsn::ZERO))
}

/// Records the rows in the slot's record, which it creates if no session has written it.
/// A slot without the relay's tables has no record.
async fn record(
    client: &SqlClient,
    slot: &str,
    skipped: &LastSkipped,
) -> Result<(), ProtocolError> {
    let json = serde_json::to_string(skipped).unwrap_or_default();
    let recorded = async {
        let system = read_recorded_system_identifier(client, slot).await?;
        if !system.is_empty() {
            let server = read_server_identity(client).await?;
            take_relay_row(client, slot, &system, server.timeline).await?;
        }
        Ok::<(), AdminError>(record_skipped(client, slot, &json).await?)
    };
    if_recorded(recorded.await)?;
    Ok(())
}

/// The skipped rows as `app_outbox_relay.last_skipped` has them.
#[derive(Debug, Serialize, Deserialize)]
struct LastSkipped {
    /// The position that the operator named.
    asked: u64,
    target: u64,
    transactions: u64,
    inserts: u64,
    other_changes: u64,
    rows: Vec<SkippedRow>,
    notes: Vec<String>,
}

impl LastSkipped {
    fn new(asked: Lsn, skipped: &SkippedRows) -> Self {
        Self {
            asked: asked.as_u64(),
            target: skipped.target.as_u64(),
            transactions: skipped.transactions,
            inserts: skipped.inserts,
            other_changes: skipped.other_changes,
            rows: skipped.printed().to_vec(),
            notes: skipped.notes.clone(),
        }
    }

    async fn read(client: &SqlClient, slot: &str) -> Result<Option<Self>, ProtocolError> {
        let json = if_recorded(read_last_skipped(client, slot).await)?.flatten();
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
    }

    /// Returns whether the same command has moved the slot past these rows.
    fn is_done(&self, advance: &Advance<'_>, here: Lsn) -> bool {
        self.inserts > 0
            && self.asked == advance.to.as_u64()
            && self.target <= here.as_u64()
            && [0, self.inserts].contains(&advance.discard_rows)
    }

    fn into_rows(self) -> SkippedRows {
        let Self { target, transactions, inserts, other_changes, rows, notes, .. } = self;
        let target = Lsn::new(target);
        SkippedRows { target, transactions, inserts, other_changes, rows, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_command_finds_the_rows_that_were_skipped() {
        let row = SkippedRow {
            event_id: Some("a".to_owned()),
            at: "0/64#0".to_owned(),
            is_sendable: true,
        };
        let skipped = SkippedRows {
            target: Lsn::new(108),
            transactions: 1,
            inserts: 1,
            other_changes: 0,
            rows: vec![row],
            notes: Vec::new(),
        };
        let json = serde_json::to_string(&LastSkipped::new(Lsn::new(100), &skipped)).expect("JSON");
        let read: LastSkipped = serde_json::from_str(&json).expect("what was written");
        let columns = ColumnNames::default();
        let asks = |to, discard_rows| Advance { to: Lsn::new(to), discard_rows, columns: &columns };
        assert!(read.is_done(&asks(100, 1), Lsn::new(108)));
        assert!(read.is_done(&asks(100, 0), Lsn::new(500)), "to see them again needs no number");
        assert!(!read.is_done(&asks(100, 2), Lsn::new(108)));
        assert!(!read.is_done(&asks(101, 1), Lsn::new(108)));
        assert!(!read.is_done(&asks(100, 1), Lsn::new(107)), "the slot has not moved yet");
        let rows = read.into_rows();
        assert_eq!((rows.rows, rows.target), (skipped.rows, skipped.target));
    }
}

//! Counts the rows that a slot skips, in the WAL and, where the server cannot send them, in the
//! tables. Checks the number that the operator agreed to.

use pgoutput_parser::Lsn;
use tokio_postgres::error::SqlState;
use walrelay_core::ColumnNames;
use walrelay_errors::Chain;
use walrelay_outbox_replay::{TransactionRows, recovery, rows_of_transaction};
use walrelay_outbox_store::{Outbox, read_relay_row};
use walrelay_pg_client::SqlClient;

use super::protocol_error::ProtocolError;
use super::skipped_rows::SkippedRows;
use crate::lookahead::{Lookahead, SkippedChanges};

/// Collects the inserts that the slot would deliver. If the server cannot send a transaction, the
/// transaction's remaining rows come from the table.
pub(super) async fn count_skipped_rows(
    client: &SqlClient,
    outbox: &Outbox,
    columns: &ColumnNames,
    found: Lookahead,
) -> Result<SkippedRows, ProtocolError> {
    let found = match found {
        Lookahead::Reaches(found) => found,
        Lookahead::Blocked { at, source } => {
            let answer = Chain(&source).to_string();
            return Err(ProtocolError::UnsendableRowBefore { at: at.to_string(), answer });
        }
    };
    let SkippedChanges { target, transactions, inserts, other_changes, rows, unsendable } = found;
    let notes = Vec::new();
    let mut skipped = SkippedRows { target, transactions, inserts, other_changes, rows, notes };
    if let Some(unsendable) = unsendable {
        skipped.notes.push(format!(
            "the server cannot send the row at {} of transaction {}: {}",
            unsendable.position,
            unsendable.xid,
            Chain(&unsendable.source)
        ));
        skipped.transactions = skipped.transactions.max(1);
        let transaction =
            Transaction { xid: unsendable.xid, commit_lsn: unsendable.position.commit_lsn };
        add_rows_of_tables(&mut skipped, client, outbox, columns, transaction).await;
    }
    Ok(skipped)
}

/// Adds the rows of the transaction that the server did not send. Notes explain the rows that
/// cannot be counted.
async fn add_rows_of_tables(
    skipped: &mut SkippedRows,
    client: &SqlClient,
    outbox: &Outbox,
    columns: &ColumnNames,
    transaction: Transaction,
) {
    let mut is_found = false;
    for name in &outbox.tables {
        let found = async {
            let row = read_relay_row(client, &outbox.slot).await?;
            let settled_xid = row.map_or(FIRST_XID, |row| row.settled_xid);
            let table = recovery::table(client, name, columns).await?;
            let bounds = (transaction.xid, settled_xid);
            let rows = rows_of_transaction(client, (name, &table.id), bounds).await?;
            Ok::<TransactionRows, ProtocolError>(rows)
        };
        match found.await {
            Ok(rows) => {
                is_found |= rows.rows.iter().any(|row| row.is_unsendable);
                skipped.add(rows, transaction.commit_lsn);
            }
            Err(error) => skipped.notes.push(format!(
                "rows of {name} that the server did not send are not counted: {}",
                Chain(&error)
            )),
        }
    }
    if !is_found {
        skipped.notes.push(NOT_IN_THE_TABLE.to_owned());
    }
    skipped.notes.push(OF_SUBTRANSACTIONS.to_owned());
}

/// Returns the rows, if the operator agreed to exactly this number.
pub(super) fn agreed_rows(skipped: SkippedRows, agreed: u64) -> Result<SkippedRows, ProtocolError> {
    match skipped.inserts == agreed {
        true => Ok(skipped),
        false => Err(ProtocolError::SkippedRowsDiffer { skipped: Box::new(skipped), agreed }),
    }
}

/// The lowest normal transaction id: no row has an older one.
pub(super) const FIRST_XID: u64 = 3;

/// Returns the slot's settled position on record. The slot does not deliver rows before this
/// position.
pub(super) async fn settled_position(client: &SqlClient, slot: &str) -> Result<Lsn, ProtocolError> {
    match read_relay_row(client, slot).await {
        Ok(row) => Ok(row.map_or(Lsn::ZERO, |row| row.settled_lsn)),
        Err(error) if error.sql_state() == Some(&SqlState::UNDEFINED_TABLE) => Ok(Lsn::ZERO),
        Err(error) => Err(error.into()),
    }
}

/// The transaction that the server cannot send.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    xid: u32,
    commit_lsn: Lsn,
}

/// A note for a transaction whose unsendable row is not in the table.
const NOT_IN_THE_TABLE: &str = "no row of this transaction in the table is too large or of invalid text: the row may be deleted";

/// A note for rows that only the WAL attributes to the transaction.
const OF_SUBTRANSACTIONS: &str = "rows behind it that the transaction wrote after a SAVEPOINT or within a block with \
     EXCEPTION are not counted: the server does not reveal which ones these are; an audit names what a consumer lacks";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookahead::SkippedRow;

    fn skipped(rows: Vec<SkippedRow>) -> SkippedRows {
        let inserts = rows.len() as u64;
        let (target, notes) = (Lsn::new(108), Vec::new());
        SkippedRows { target, transactions: 1, inserts, other_changes: 2, rows, notes }
    }

    fn row(id: &str, at: &str) -> SkippedRow {
        SkippedRow { event_id: Some(id.to_owned()), at: at.to_owned(), is_sendable: true }
    }

    #[test]
    fn only_the_exact_number_of_rows_is_an_agreement() {
        let two = || skipped(vec![row("a", "0/64#0"), row("b", "0/64#1")]);
        for wrong in [0, 1, 3] {
            let what = agreed_rows(two(), wrong).unwrap_err().to_string();
            assert!(what.starts_with("2 row(s)") && what.contains("0/64#1  b"), "{what}");
        }
        assert!(agreed_rows(two(), 2).is_ok());
        assert!(agreed_rows(skipped(Vec::new()), 0).is_ok());
        assert!(agreed_rows(skipped(Vec::new()), 1).is_err());
    }
}

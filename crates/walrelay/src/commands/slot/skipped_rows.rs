//! Rows that a slot skips: counts and names them, checks the agreed number, and prints the command
//! that publishes them from the table.

use pgoutput_parser::Lsn;
use tokio_postgres::error::SqlState;
use walrelay_core::ColumnNames;
use walrelay_errors::Chain;
use walrelay_outbox_admin::lookahead::{Lookahead, ROWS_NAMED_MAX, RowGivenUp, SkippedChanges};
use walrelay_outbox_admin::recovery;
use walrelay_outbox_admin::{TransactionRow, TransactionRows, rows_of_transaction};
use walrelay_outbox_store::{Outbox, read_relay_row};
use walrelay_pg_client::SqlClient;

use crate::error::Error;

/// Most rows that are printed.
const ROWS_PRINTED_MAX: usize = 100;

/// The skipped inserts, as far as they are known.
pub(super) struct SkippedRows {
    pub(super) target: Lsn,
    transactions: u64,
    inserts: u64,
    other_changes: u64,
    rows: Vec<RowGivenUp>,
    notes: Vec<String>,
}

impl SkippedRows {
    /// Collects the inserts that the slot would deliver. If the server cannot send a transaction,
    /// the transaction's remaining rows come from the table.
    pub(super) async fn of(
        client: &SqlClient,
        outbox: &Outbox,
        columns: &ColumnNames,
        found: Lookahead,
    ) -> Result<Self, Error> {
        let found = match found {
            Lookahead::Reaches(found) => found,
            Lookahead::Blocked { at, source } => {
                return Err(Error::Unfit {
                    what: format!(
                        "the server cannot send {at}, which lies before: {}",
                        Chain(&source)
                    ),
                    hint: "give up that transaction alone first: name its position with `walrelay slot advance --to-lsn`",
                });
            }
        };
        let SkippedChanges { target, transactions, inserts, other_changes, rows, unsendable } =
            found;
        let mut losses =
            Self { target, transactions, inserts, other_changes, rows, notes: Vec::new() };
        if let Some(unsendable) = unsendable {
            let commit_lsn = unsendable.position.commit_lsn;
            losses.notes.push(format!(
                "the server cannot send the row at {} of transaction {}: {}",
                unsendable.position,
                unsendable.xid,
                Chain(&unsendable.source)
            ));
            losses.transactions = losses.transactions.max(1);
            losses
                .add_rows_from_tables(client, (outbox, columns), (unsendable.xid, commit_lsn))
                .await;
        }
        Ok(losses)
    }

    /// Adds the rows of the transaction that the server did not send. Notes explain the rows that
    /// cannot be counted.
    async fn add_rows_from_tables(
        &mut self,
        client: &SqlClient,
        (outbox, columns): (&Outbox, &ColumnNames),
        (xid, commit_lsn): (u32, Lsn),
    ) {
        let mut is_found = false;
        for name in &outbox.tables {
            let found = async {
                let row = read_relay_row(client, &outbox.slot).await?;
                let settled_xid = row.map_or(FIRST_XID, |row| row.settled_xid);
                let table = recovery::table(client, name, columns).await?;
                let rows =
                    rows_of_transaction(client, (name, &table.id), (xid, settled_xid)).await?;
                Ok::<TransactionRows, Error>(rows)
            };
            match found.await {
                Ok(rows) => {
                    is_found |= rows.rows.iter().any(|row| row.is_unsendable);
                    self.add(rows, commit_lsn);
                }
                Err(error) => self.notes.push(format!(
                    "rows of {name} that the server did not send are not counted: {}",
                    Chain(&error)
                )),
            }
        }
        if !is_found {
            self.notes.push(
                "no row of this transaction in the table is too large or of invalid text: the row may be deleted"
                    .to_owned(),
            );
        }
        self.notes.push(
            "rows behind it that the transaction wrote after a SAVEPOINT or within a block with EXCEPTION are not \
             counted: the server does not reveal which ones these are; `walrelay audit` names what a consumer lacks"
                .to_owned(),
        );
    }

    fn add(&mut self, TransactionRows { count, rows }: TransactionRows, commit_lsn: Lsn) {
        let is_complete = u64::try_from(self.rows.len()).is_ok_and(|named| named == self.inserts);
        let mut added = 0;
        for TransactionRow { event_id, is_unsendable } in &rows {
            let is_full = self.rows.len() >= ROWS_NAMED_MAX;
            let known = self.rows.iter_mut().find(|row| row.event_id.as_ref() == Some(event_id));
            match known {
                Some(row) => row.is_sendable &= !is_unsendable,
                None if is_full => added += 1,
                None => {
                    added += 1;
                    let at = commit_lsn.to_string();
                    let (event_id, is_sendable) = (Some(event_id.clone()), !is_unsendable);
                    self.rows.push(RowGivenUp { event_id, at, is_sendable });
                }
            }
        }
        // Rows beyond the listed ones cannot be compared with the rows that were sent.
        let unnamed = count.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX));
        self.inserts = match is_complete {
            true => self.inserts + added + unnamed,
            false => self.inserts.max(count),
        };
    }

    /// Refuses unless the user agreed to exactly this number of rows.
    pub(super) fn refuse_unless(&self, agreed: u64) -> Result<(), Error> {
        let inserts = self.inserts;
        if inserts == agreed {
            return Ok(());
        }
        let what = match inserts {
            0 => format!("no row is given up, and --discard-rows says {agreed}"),
            _ => format!(
                "{inserts} row(s) up to {} would never be published (--discard-rows {inserts} accepts that):\n{}",
                self.target,
                self.named()
            ),
        };
        // The relay stops at a row that the server cannot send, so it cannot publish these rows
        // first.
        let hint = match self.rows.iter().all(|row| row.is_sendable) {
            true => {
                "start the relay to publish them first, or name an earlier position; rows that are given up can be \
                 published from the table: docs/operations.md, Giving rows up"
            }
            false => {
                "the relay cannot pass a row that the server cannot send: accept the loss with --discard-rows; the \
                 other rows can then be published from the table: docs/operations.md, Giving rows up"
            }
        };
        Err(Error::Unfit { what: what.trim_end().to_owned(), hint })
    }

    /// Describes the number of changes, and names the rows.
    pub(super) fn counted(&self) -> String {
        let Self { transactions, inserts, other_changes, .. } = self;
        format!(
            "{inserts} row(s) and {other_changes} other change(s) of {transactions} transaction(s)\n{}",
            self.named()
        )
    }

    /// Describes the skipped rows, with the command that publishes them from the table.
    pub(super) fn told(&self) -> String {
        let mut text = format!("skipped: {}", self.counted());
        let ids = self.rows.iter().filter(|row| row.is_sendable).take(ROWS_PRINTED_MAX);
        let ids: Vec<String> = ids
            .filter_map(|row| Some(format!(" --event-id {}", quoted(row.event_id.as_ref()?))))
            .collect();
        if !ids.is_empty() {
            text.push_str(&format!(
                "to publish them from the table, start the relay, then: walrelay replay start --source table --in-place{}\n",
                ids.concat()
            ));
        }
        text
    }

    fn named(&self) -> String {
        let mut text = String::new();
        for RowGivenUp { event_id, at, is_sendable } in self.rows.iter().take(ROWS_PRINTED_MAX) {
            let id = event_id.as_deref().unwrap_or("(id not readable)");
            let why = if *is_sendable { "" } else { "  the server cannot send it" };
            text.push_str(&format!("  {at}  {id}{why}\n"));
        }
        let printed = self.rows.len().min(ROWS_PRINTED_MAX);
        let more = self.inserts.saturating_sub(u64::try_from(printed).unwrap_or(u64::MAX));
        if more > 0 {
            text.push_str(&format!("  and {more} more\n"));
        }
        for note in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        text
    }
}

/// The lowest normal transaction id: no row has an older one.
pub(super) const FIRST_XID: u64 = 3;

/// Returns the slot's settled position on record. The slot does not deliver rows before this
/// position.
pub(super) async fn settled_of(client: &SqlClient, slot: &str) -> Result<Lsn, Error> {
    match read_relay_row(client, slot).await {
        Ok(row) => Ok(row.map_or(Lsn::ZERO, |row| row.settled_lsn)),
        Err(error) if error.sql_state() == Some(&SqlState::UNDEFINED_TABLE) => Ok(Lsn::ZERO),
        Err(error) => Err(error.into()),
    }
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, at: &str) -> RowGivenUp {
        RowGivenUp { event_id: Some(id.to_owned()), at: at.to_owned(), is_sendable: true }
    }

    fn losses(rows: Vec<RowGivenUp>) -> SkippedRows {
        let inserts = rows.len() as u64;
        let (target, notes) = (Lsn::new(108), Vec::new());
        SkippedRows { target, transactions: 1, inserts, other_changes: 2, rows, notes }
    }

    fn of_table(rows: &[(&str, bool)]) -> TransactionRows {
        let rows: Vec<TransactionRow> = rows
            .iter()
            .map(|(id, is_unsendable)| TransactionRow {
                event_id: (*id).to_owned(),
                is_unsendable: *is_unsendable,
            })
            .collect();
        TransactionRows { count: rows.len() as u64, rows }
    }

    #[test]
    fn only_the_exact_number_of_rows_is_an_agreement() {
        let two = losses(vec![row("a", "0/64#0"), row("b", "0/64#1")]);
        for wrong in [0, 1, 3] {
            let Err(Error::Unfit { what, .. }) = two.refuse_unless(wrong) else {
                panic!("{wrong} is not what is given up");
            };
            assert!(what.contains("--discard-rows 2") && what.contains("0/64#1  b"), "{what}");
        }
        assert!(two.refuse_unless(2).is_ok());
        assert!(losses(Vec::new()).refuse_unless(0).is_ok());
        assert!(losses(Vec::new()).refuse_unless(1).is_err());
    }

    #[test]
    fn rows_that_were_sent_and_are_in_the_table_count_once_and_the_rest_is_added() {
        let mut sent = losses(vec![row("a", "0/64#0")]);
        sent.add(of_table(&[("big", true), ("a", false), ("c", false)]), Lsn::new(100));
        assert_eq!(sent.inserts, 3);
        let told = sent.told();
        assert!(told.contains("0/64  big  the server cannot send it"), "{told}");
        assert!(
            told.ends_with("replay start --source table --in-place --event-id a --event-id c\n"),
            "{told}"
        );
    }

    #[test]
    fn an_id_is_one_word_of_the_command() {
        assert_eq!(quoted("7b0c-1"), "7b0c-1");
        assert_eq!(quoted("it's; x"), "'it'\\''s; x'");
    }
}

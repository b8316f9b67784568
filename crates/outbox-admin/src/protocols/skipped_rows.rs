//! Rows that a slot skips: their number and their names.

use pgoutput_parser::Lsn;
use walrelay_outbox_replay::{TransactionRow, TransactionRows};

use crate::lookahead::{ROWS_NAMED_MAX, SkippedRow};

/// Most rows that are printed.
const ROWS_PRINTED_MAX: usize = 100;

/// The skipped inserts, as far as they are known.
#[derive(Debug, Clone)]
pub struct SkippedRows {
    /// The position behind the skipped rows.
    pub target: Lsn,
    pub transactions: u64,
    pub inserts: u64,
    /// Number of updates, deletes and truncates.
    pub other_changes: u64,
    /// The first rows.
    pub rows: Vec<SkippedRow>,
    /// Explanations about rows that cannot be counted.
    pub notes: Vec<String>,
}

impl SkippedRows {
    /// Adds rows of the table. Rows that the server has sent already count once.
    pub(super) fn add(
        &mut self,
        TransactionRows { count, rows }: TransactionRows,
        commit_lsn: Lsn,
    ) {
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
                    self.rows.push(SkippedRow { event_id, at, is_sendable });
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

    /// Explains that the operator agreed to another number of rows.
    pub(super) fn disagreement(&self, agreed: u64) -> String {
        match self.inserts {
            0 => format!("no row would be skipped, and {agreed} were agreed to"),
            inserts => {
                let text = format!(
                    "{inserts} row(s) up to {} would be skipped, and may not have been published:\n{}",
                    self.target,
                    self.named()
                );
                text.trim_end().to_owned()
            }
        }
    }

    /// Returns whether the server can send all rows, so that a relay can publish them first.
    #[must_use]
    pub fn are_sendable(&self) -> bool {
        self.rows.iter().all(|row| row.is_sendable)
    }

    /// Returns the ids of rows that can be published from the table, at most as many as are named.
    #[must_use]
    pub fn publishable_ids(&self) -> Vec<&str> {
        let sendable = self.rows.iter().filter(|row| row.is_sendable).take(ROWS_PRINTED_MAX);
        sendable.filter_map(|row| row.event_id.as_deref()).collect()
    }

    pub(super) fn printed(&self) -> &[SkippedRow] {
        &self.rows[..self.rows.len().min(ROWS_PRINTED_MAX)]
    }

    /// Describes the number of changes, and names the rows.
    #[must_use]
    pub fn counted(&self) -> String {
        let Self { transactions, inserts, other_changes, .. } = self;
        format!(
            "{inserts} row(s) and {other_changes} other change(s) of {transactions} transaction(s)\n{}",
            self.named()
        )
    }

    fn named(&self) -> String {
        let mut text = String::new();
        for SkippedRow { event_id, at, is_sendable } in self.printed() {
            let id = event_id.as_deref().unwrap_or("(id not readable)");
            let why = if *is_sendable { "" } else { "  the server cannot send it" };
            text.push_str(&format!("  {at}  {id}{why}\n"));
        }
        let printed = self.printed().len();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, at: &str) -> SkippedRow {
        SkippedRow { event_id: Some(id.to_owned()), at: at.to_owned(), is_sendable: true }
    }

    fn losses(rows: Vec<SkippedRow>) -> SkippedRows {
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
    fn rows_that_were_sent_and_are_in_the_table_count_once_and_the_rest_is_added() {
        let mut sent = losses(vec![row("a", "0/64#0")]);
        sent.add(of_table(&[("big", true), ("a", false), ("c", false)]), Lsn::new(100));
        assert_eq!(sent.inserts, 3);
        let told = sent.counted();
        assert!(told.contains("0/64  big  the server cannot send it"), "{told}");
        assert_eq!(sent.publishable_ids(), ["a", "c"]);
        assert!(!sent.are_sendable());
    }
}

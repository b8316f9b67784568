//! A simulated WAL with interleaved transactions, rollbacks and foreign records.

use std::collections::VecDeque;

use pgoutput_parser::{
    Begin, Column, Commit, Lsn, PgTimestamp, RelationColumn, ReplicaIdentity, XLogData, encode,
};

/// The table whose rows are published.
#[derive(Debug, Clone)]
pub struct OutboxTable {
    /// The table's oid.
    pub relation_id: u32,
    pub schema: &'static str,
    pub name: &'static str,
    /// The names and type oids of the table's columns.
    pub columns: &'static [(&'static str, u32)],
}

#[derive(Debug)]
pub struct OpenTransaction {
    xid: u32,
    rows: Vec<Change>,
}

/// A row with the position of its record.
#[derive(Debug)]
struct Change {
    lsn: u64,
    columns: Vec<Option<String>>,
}

/// A transaction in the WAL. A rolled-back transaction only occupies bytes.
#[derive(Debug)]
pub struct Transaction {
    pub commit_lsn: u64,
    /// The position just after the commit record.
    pub end_lsn: u64,
    xid: u32,
    rows: Vec<Change>,
}

/// The WAL written so far.
#[derive(Debug)]
pub struct Log {
    table: OutboxTable,
    transactions: Vec<Transaction>,
    end: u64,
    xids: u32,
}

/// The start position of the WAL, high enough that both halves of a position matter.
const LOG_START: u64 = 0x1_6B00_0000;

const COMMIT_BYTES: u64 = 48;

impl Log {
    pub(super) fn new(table: OutboxTable) -> Self {
        Self { table, transactions: Vec::new(), end: LOG_START, xids: 700 }
    }

    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Starts a transaction. Several transactions may be open, and their rows interleave.
    pub fn begin(&mut self) -> OpenTransaction {
        self.xids += 1;
        OpenTransaction { xid: self.xids, rows: Vec::new() }
    }

    /// Writes a row. A `Shared` row is in the record of the preceding row, as `COPY` writes rows.
    pub fn insert(
        &mut self,
        transaction: &mut OpenTransaction,
        columns: Vec<Option<String>>,
        record: RowRecord,
    ) {
        let lsn = match (record, transaction.rows.last()) {
            (RowRecord::Shared, Some(before)) => before.lsn,
            (RowRecord::Shared | RowRecord::Own, _) => {
                let bytes: usize = columns.iter().flatten().map(String::len).sum();
                let lsn = self.end;
                self.write(bytes as u64 + 32);
                lsn
            }
        };
        transaction.rows.push(Change { lsn, columns });
    }

    /// Commits a transaction. Returns the start and end of the commit record.
    pub fn commit(&mut self, transaction: OpenTransaction) -> (u64, u64) {
        let commit_lsn = self.end;
        self.write(COMMIT_BYTES);
        let OpenTransaction { xid, rows } = transaction;
        let end_lsn = self.end;
        self.transactions.push(Transaction { commit_lsn, end_lsn, xid, rows });
        (commit_lsn, end_lsn)
    }

    /// Rolls back a transaction. Its rows stay in the WAL and are never sent.
    pub fn roll_back(&mut self, transaction: OpenTransaction) {
        drop(transaction);
        self.write(COMMIT_BYTES);
    }

    /// Writes foreign WAL, from other tables or databases.
    pub fn write(&mut self, bytes: u64) {
        self.end += bytes.next_multiple_of(8);
    }

    /// Returns the index of the first transaction that is sent to a slot at `confirmed`. The server
    /// compares the start of the commit record (snapbuild.c, `SnapBuildXactNeedsSkip`).
    pub(super) fn first_at(&self, confirmed: u64) -> usize {
        self.transactions.partition_point(|transaction| transaction.commit_lsn < confirmed)
    }

    pub(super) fn transaction(&self, index: usize) -> Option<&Transaction> {
        self.transactions.get(index)
    }

    /// Returns the frames of a transaction, as the output plugin writes them.
    pub(super) fn frames(&self, index: usize, relation: Relation) -> VecDeque<Part> {
        let Some(transaction) = self.transaction(index) else { return VecDeque::new() };
        let Transaction { commit_lsn, end_lsn, xid, rows } = transaction;
        let begin = encode::begin(&Begin {
            final_lsn: Lsn::new(*commit_lsn),
            commit_timestamp: NOON,
            xid: *xid,
        });
        // The server sends nothing for a transaction without outbox rows (pgoutput.c,
        // `sent_begin_txn`).
        if rows.is_empty() {
            return VecDeque::new();
        }
        let first = rows.first().map_or(*commit_lsn, |row| row.lsn);
        let mut frames = VecDeque::from([Part::new(first, &begin, None)]);
        if relation == Relation::Unsent {
            frames.push_back(Part::new(0, &self.relation(), None));
        }
        for (tx_index, row) in rows.iter().enumerate() {
            let columns: Vec<Column<'_>> = row.columns.iter().map(column).collect();
            let data = encode::insert(self.table.relation_id, &columns);
            let tx_index = u32::try_from(tx_index).unwrap_or(u32::MAX);
            frames.push_back(Part::new(row.lsn, &data, Some((*commit_lsn, tx_index))));
        }
        let commit = encode::commit(&Commit {
            commit_lsn: Lsn::new(*commit_lsn),
            end_lsn: Lsn::new(*end_lsn),
            commit_timestamp: NOON,
        });
        frames.push_back(Part::new(*end_lsn, &commit, None));
        frames
    }

    fn relation(&self) -> Vec<u8> {
        let OutboxTable { relation_id, schema, name, columns } = &self.table;
        let columns: Vec<_> = columns
            .iter()
            .map(|(column, type_oid)| RelationColumn {
                name: (*column).to_owned(),
                type_oid: *type_oid,
                type_modifier: -1,
                is_key: *column == "id",
            })
            .collect();
        encode::relation(*relation_id, schema, name, ReplicaIdentity::Default, &columns)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowRecord {
    Own,
    /// The row shares the record of the preceding row.
    Shared,
}

/// Whether a connection has received the table's Relation message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Unsent,
    Sent,
}

/// One frame to send.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) frame: Vec<u8>,
    /// The row in the frame: start of the commit record, index in the transaction.
    pub(super) row: Option<(u64, u32)>,
}

impl Part {
    fn new(lsn: u64, data: &[u8], row: Option<(u64, u32)>) -> Self {
        let lsn = Lsn::new(lsn);
        let frame = XLogData { wal_start: lsn, wal_end: lsn, sent_at: NOON, data };
        Self { frame: encode::xlog_data(&frame), row }
    }
}

fn column(value: &Option<String>) -> Column<'_> {
    match value {
        Some(text) => Column::Text(text.as_bytes()),
        None => Column::Null,
    }
}

/// The fixed time of the server's clock.
pub(super) const NOON: PgTimestamp = PgTimestamp::from_micros(820_000_000_000_000);

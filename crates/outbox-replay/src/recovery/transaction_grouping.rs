//! Groups the rows of a table into transactions of the stream, and assigns their positions.

use std::sync::Arc;

use pgoutput_parser::Lsn;

use super::progress::{Progress, SharedPlace};
use super::read_failures::event_id;
use super::resume_points::{ResumePoint, ResumePoints};
use crate::recovery_cursor::RecoveryCursor;
use crate::rows::source_row::{SourceRow, SourceValue};
use crate::rows::unsettled_rows::{RowCursor, SourceTable};

/// The number of rows in one transaction. A resumed replay republishes at most this many rows that
/// were published, and the rows of the aggregate at which it stopped. So it also advances at a low
/// rate with frequent restarts.
const ROWS: u32 = 100;

/// The number of positions that a resumed replay skips. The skipped positions cover all rows that
/// were in flight before, so a republished row has a greater position. At most 20,000 rows are in
/// flight (I6).
const LEFT_OUT: u64 = 2_000;

#[derive(Debug, Clone)]
pub enum TransactionGrouping {
    /// All rows form one transaction. The number of a row is its index.
    One {
        /// The commit position, just before the start of the new slot.
        commit_lsn: Lsn,
        /// Receives every row that was read. A stream continues with the first unsettled row.
        progress: Progress,
    },
    /// Each transaction has a hundred rows. The last aggregate of each marks the settled rows.
    Many {
        /// Rows before this position are settled.
        after: Lsn,
        /// Receives the last aggregate of each transaction.
        marks: ResumePoints,
    },
}

/// The open transaction.
#[derive(Debug)]
pub(crate) struct Open {
    pub(super) commit_lsn: Lsn,
    pub(super) end_lsn: Lsn,
    rows: u32,
}

impl Open {
    pub(crate) const fn commit_lsn(&self) -> Lsn {
        self.commit_lsn
    }
}

impl TransactionGrouping {
    /// Returns the first transaction. `end` is the end of the last one.
    pub(crate) fn first(&self, end: Lsn) -> Open {
        match self {
            Self::One { commit_lsn, .. } => Open { commit_lsn: *commit_lsn, end_lsn: end, rows: 0 },
            Self::Many { after, .. } => {
                let left_out = if *after == Lsn::ZERO { 1 } else { LEFT_OUT };
                let commit_lsn = Lsn::new(after.as_u64() + left_out);
                Open { commit_lsn, end_lsn: Lsn::new(commit_lsn.as_u64() + 1), rows: 0 }
            }
        }
    }

    /// Returns the table and the place in it at which the stream starts. A place that belongs to
    /// another list of tables was already discarded.
    pub(super) fn beginning(&self) -> Option<(usize, RowCursor)> {
        match self {
            Self::One { progress, .. } => {
                let place = progress.place()?;
                Some((place.tables.len().checked_sub(1)?, place.row))
            }
            Self::Many { marks, .. } => {
                let ResumePoint { table, key } = marks.begin()?;
                Some((table, RowCursor { key, order: Vec::new() }))
            }
        }
    }

    pub(super) fn in_table(&self, tables: &[SourceTable], number: usize) -> Arc<SharedPlace> {
        let read = tables.iter().take(number + 1);
        let columns = tables.get(number).map(RecoveryCursor::columns_of).unwrap_or_default();
        Arc::new(SharedPlace {
            tables: read.map(|table| table.name.to_string()).collect(),
            columns,
        })
    }

    /// Records a row that was read and is sent next.
    pub(super) fn read(
        &self,
        row: &SourceRow,
        (table, in_table): (&SourceTable, &Arc<SharedPlace>),
    ) {
        if let Self::One { progress, .. } = self {
            progress.read(event_id(row, table).to_owned(), place_of(row, table), in_table);
        }
    }

    /// Counts a row of the open transaction. Returns the next transaction if this one is full.
    pub(super) fn next(&self, open: &mut Open, (number, row): (usize, &SourceRow)) -> Option<Open> {
        let Self::Many { marks, .. } = self else { return None };
        open.rows += 1;
        if open.rows < ROWS {
            return None;
        }
        // A row without a key cannot mark the end, so the transaction continues to the next row
        // with a key.
        let key = row.key.clone()?;
        marks.ends_with(open.end_lsn, ResumePoint { table: number, key });
        let commit_lsn = Lsn::new(open.end_lsn.as_u64() + 1);
        Some(Open { commit_lsn, end_lsn: Lsn::new(commit_lsn.as_u64() + 1), rows: 0 })
    }
}

/// Longer places are not recorded. A recovery then resumes at an earlier row.
const PLACE_BYTES_MAX: usize = 4 << 10;

/// Returns the place of a row in the order of its table, or `None` if the place is too long or
/// unreadable.
fn place_of(row: &SourceRow, table: &SourceTable) -> Option<RowCursor> {
    let value = |column: &String| {
        let index = table.column(Some(column))?;
        match row.values.get(index)? {
            SourceValue::Text(text) => String::from_utf8(text.clone()).ok().map(Some),
            SourceValue::Null => Some(None),
            SourceValue::TooLarge { .. } => None,
        }
    };
    let order: Vec<Option<String>> = table.order.iter().map(value).collect::<Option<_>>()?;
    let key = row.key.clone()?;
    let of_order: usize = order.iter().flatten().map(String::len).sum();
    let bytes = key.aggregate_type.len() + key.aggregate_id.len() + of_order;
    (bytes <= PLACE_BYTES_MAX).then_some(RowCursor { key, order })
}

//! Into which transactions of the stream the rows of a table are put, and at which positions.

use std::sync::Arc;

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::{FillingPlace, GapRow, GapTable, GapValue, RowPlace};

use super::marks::{Marks, Resumption};
use super::progress::{InTable, Progress};
use super::read_failures::event_id;

/// Rows of one transaction: so many come again, at most, when a backfill is resumed, and those of the
/// aggregate that it stopped in.
const ROWS: u32 = 1_000;

/// Positions that are left out when a backfill goes on: behind whatever was in flight before, so that a
/// row that comes again has a greater one. Rows in flight are bounded by 20,000 (I6).
const LEFT_OUT: u64 = 2_000;

/// The transactions.
#[derive(Debug, Clone)]
pub enum Batches {
    /// All rows are one, committed there: each row's number is its position.
    One {
        /// Just before the new slot begins.
        commit_lsn: Lsn,
        /// Told which rows were read: a stream continues with the first that is not settled.
        progress: Progress,
    },
    /// A thousand rows each; what is settled of them is known by the aggregate.
    Many {
        /// What lies before is settled.
        after: Lsn,
        /// Told with which aggregate each ends.
        marks: Marks,
    },
}

/// The transaction that is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(super) commit_lsn: Lsn,
    pub(super) end_lsn: Lsn,
    rows: u32,
}

impl Open {
    /// The position of its rows.
    pub(crate) const fn commit_lsn(&self) -> Lsn {
        self.commit_lsn
    }
}

impl Batches {
    /// The first transaction; `end` is where the last one ends.
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

    /// With which table and place of it the stream begins. A place among other tables than those says
    /// nothing, and was left out before.
    pub(super) fn beginning(&self) -> Option<(usize, RowPlace)> {
        match self {
            Self::One { progress, .. } => {
                let place = progress.place()?;
                Some((place.tables.len().checked_sub(1)?, place.row))
            }
            Self::Many { marks, .. } => {
                let Resumption { table, key } = marks.begin()?;
                Some((table, RowPlace { key, order: Vec::new() }))
            }
        }
    }

    /// What the places of a table's rows have in common.
    pub(super) fn in_table(&self, tables: &[GapTable], number: usize) -> Arc<InTable> {
        let read = tables.iter().take(number + 1);
        let columns = tables.get(number).map(FillingPlace::columns_of).unwrap_or_default();
        Arc::new(InTable { tables: read.map(|table| table.name.to_string()).collect(), columns })
    }

    /// A row was read, and is sent next.
    pub(super) fn read(&self, row: &GapRow, (table, in_table): (&GapTable, &Arc<InTable>)) {
        if let Self::One { progress, .. } = self {
            progress.read(event_id(row, table).to_owned(), place_of(row, table), in_table);
        }
    }

    /// A row was put into the open transaction. The next one, if this is full.
    pub(super) fn next(&self, open: &mut Open, (number, row): (usize, &GapRow)) -> Option<Open> {
        let Self::Many { marks, .. } = self else { return None };
        open.rows += 1;
        if open.rows < ROWS {
            return None;
        }
        // Behind a row without a key the transaction goes on until one has a key.
        let key = row.key.clone()?;
        marks.ends_with(open.end_lsn, Resumption { table: number, key });
        let commit_lsn = Lsn::new(open.end_lsn.as_u64() + 1);
        Some(Open { commit_lsn, end_lsn: Lsn::new(commit_lsn.as_u64() + 1), rows: 0 })
    }
}

/// Longer places are not noted: a recovery continues with a row before them.
const PLACE_BYTES_MAX: usize = 4 << 10;

/// The place of a row in the order of its table.
fn place_of(row: &GapRow, table: &GapTable) -> Option<RowPlace> {
    let value = |column: &String| {
        let index = table.column(Some(column))?;
        match row.values.get(index)? {
            GapValue::Text(text) => String::from_utf8(text.clone()).ok().map(Some),
            GapValue::Null => Some(None),
            GapValue::TooLarge { .. } => None,
        }
    };
    let order: Vec<Option<String>> = table.order.iter().map(value).collect::<Option<_>>()?;
    let key = row.key.clone()?;
    let of_order: usize = order.iter().flatten().map(String::len).sum();
    let bytes = key.aggregate_type.len() + key.aggregate_id.len() + of_order;
    (bytes <= PLACE_BYTES_MAX).then_some(RowPlace { key, order })
}

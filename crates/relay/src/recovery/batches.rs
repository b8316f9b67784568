//! Into which transactions of the stream the rows of a table are put, and at which positions.

use pgoutput_parser::Lsn;
use tokio_postgres::SimpleQueryRow;
use walrelay_outbox_admin::{AggregateKey, GapTable};

use super::marks::{Marks, Resumption};

/// Rows of one transaction: so many come again, at most, when a backfill is resumed, and those of the
/// aggregate that it stopped in.
const ROWS: u32 = 1_000;

/// Positions that are left out when a backfill goes on: behind whatever was in flight before, so that a
/// row that comes again has a greater one. Rows in flight are bounded by 20,000 (I6).
const LEFT_OUT: u64 = 2_000;

/// The transactions.
#[derive(Debug, Clone)]
pub(crate) enum Batches {
    /// All rows are one, committed there: each row's number is its position.
    One {
        /// Just before the new slot begins.
        commit_lsn: Lsn,
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
            Self::One { commit_lsn } => Open { commit_lsn: *commit_lsn, end_lsn: end, rows: 0 },
            Self::Many { after, .. } => {
                let left_out = if *after == Lsn::ZERO { 1 } else { LEFT_OUT };
                let commit_lsn = Lsn::new(after.as_u64() + left_out);
                Open { commit_lsn, end_lsn: Lsn::new(commit_lsn.as_u64() + 1), rows: 0 }
            }
        }
    }

    /// With which table and aggregate the stream begins.
    pub(super) fn beginning(&self) -> Option<Resumption> {
        match self {
            Self::One { .. } => None,
            Self::Many { marks, .. } => marks.begin(),
        }
    }

    /// A row was put into the open transaction. The next one, if this is full.
    pub(super) fn next(
        &self,
        open: &mut Open,
        (number, table, row): (usize, &GapTable, &SimpleQueryRow),
    ) -> Option<Open> {
        let Self::Many { marks, .. } = self else { return None };
        open.rows += 1;
        if open.rows < ROWS {
            return None;
        }
        let text = |name: &Option<String>| {
            let index = table.column(name.as_deref());
            index.and_then(|index| row.get(index)).unwrap_or_default().to_owned()
        };
        let key = AggregateKey {
            aggregate_type: text(&table.aggregate_type),
            aggregate_id: text(&table.aggregate_id),
        };
        marks.ends_with(open.end_lsn, Resumption { table: number, key });
        let commit_lsn = Lsn::new(open.end_lsn.as_u64() + 1);
        Some(Open { commit_lsn, end_lsn: Lsn::new(commit_lsn.as_u64() + 1), rows: 0 })
    }
}

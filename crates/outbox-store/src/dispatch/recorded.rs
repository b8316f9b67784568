//! Recorded rows that the server may stream again.

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use super::stored_text::{NAME_BYTES_MAX, storable};
use super::{DispatchStore, position_of};
use crate::store_error::StoreError;
use walrelay_pg_client::{SqlText, sql};

/// A recorded row, in a form that recognises it when the server streams it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedRow {
    pub position: Position,
    /// The id under which the row is recorded.
    pub event_id: String,
    /// Topic and ordering key that the row parks. None if the row is finished or does not stop its
    /// key.
    pub parks: Option<(String, String)>,
}

/// Some recorded rows, in WAL order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedPage {
    /// All rows between the requested position and `next`.
    pub rows: Vec<RecordedRow>,
    /// Start of the next page. None after the last page.
    pub next: Option<Position>,
}

impl RecordedRow {
    /// Returns whether this is the outbox row with this id at its position.
    ///
    /// The position alone is not enough. Under a publication of other tables, another row has that
    /// position.
    #[must_use]
    pub fn is_of(&self, event_id: &str) -> bool {
        let Some(mut rest) = self.event_id.strip_prefix(&*storable(event_id, NAME_BYTES_MAX))
        else {
            return false;
        };
        // The suffix that recording adds to an id that is taken or was shortened.
        let addition = taken_suffix(self.position);
        while let Some(left) = rest.strip_suffix(&addition) {
            rest = left;
        }
        rest.is_empty()
    }
}

/// Returns the suffix that distinguishes a row from another row recorded under its id.
pub(super) fn taken_suffix(Position { commit_lsn, tx_index }: Position) -> String {
    format!("@{commit_lsn}/{tx_index}")
}

impl DispatchStore {
    /// Returns recorded rows at and after `from` in order, in any state: `rows_max` rows, and
    /// further rows at the last one's position.
    ///
    /// The server may stream these rows again after a restart, and then they must not be published
    /// or parked again. The cost does not depend on their number. Rows of a replay are left out,
    /// because the slot does not send them.
    pub async fn recorded_from(
        &self,
        client: &mut Client,
        from: Position,
        rows_max: u32,
    ) -> Result<RecordedPage, StoreError> {
        let failed = || StoreError::sql("read recorded rows");
        let transaction = client.transaction().await.map_err(failed())?;
        transaction.batch_execute(IN_ORDER).await.map_err(failed())?;
        let rows = transaction
            .query_typed(
                &RECORDED,
                &[
                    (&self.slot, Type::TEXT),
                    (&PgLsn::from(from.commit_lsn.as_u64()), Type::PG_LSN),
                    (&i64::from(from.tx_index), Type::INT8),
                    (&i64::from(rows_max), Type::INT8),
                    (&self.holds_on_dead(), Type::BOOL),
                ],
            )
            .await
            .map_err(failed())?;
        transaction.commit().await.map_err(failed())?;
        let rows = rows
            .iter()
            .map(|row| {
                let topic: Option<String> = row.get("topic");
                Ok(RecordedRow {
                    position: position_of(row)?,
                    event_id: row.get("event_id"),
                    parks: topic.map(|topic| (topic, row.get("ordering_key"))),
                })
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(RecordedPage::of(rows, rows_max))
    }
}

impl RecordedPage {
    /// Creates a page. Fewer rows than `rows_max` mean that this is the last page.
    #[must_use]
    pub fn of(rows: Vec<RecordedRow>, rows_max: u32) -> Self {
        let is_full = rows.len() >= rows_max as usize;
        let next = rows.last().filter(|_| is_full).map(|last| behind(last.position));
        Self { rows, next }
    }

    /// Creates the page that starts at `from`, from rows in memory that are in order.
    #[must_use]
    pub fn from_all(rows: &[RecordedRow], from: Position, rows_max: u32) -> Self {
        let rest = &rows[rows.partition_point(|row| row.position < from)..];
        let full = rest.len().min(rows_max as usize);
        let last = rest[..full].last().map(|row| row.position);
        let end = rest.partition_point(|row| Some(row.position) <= last);
        Self::of(rest[..end].to_vec(), rows_max)
    }
}

/// Returns the first position after this one.
fn behind(Position { commit_lsn, tx_index }: Position) -> Position {
    match tx_index.checked_add(1) {
        Some(tx_index) => Position { commit_lsn, tx_index },
        None => Position { commit_lsn: Lsn::new(commit_lsn.as_u64() + 1), tx_index: 0 },
    }
}

/// A table that has just been filled has no statistics, and the planner assumes few rows. Each page
/// would then sort all of them.
const IN_ORDER: &str = "SET LOCAL enable_sort = off";

static RECORDED: SqlText = SqlText::new(|| sql!("recorded.sql", "recorded"));

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(event_id: &str) -> RecordedRow {
        let position = Position { commit_lsn: Lsn::new(0x20), tx_index: 1 };
        RecordedRow { position, event_id: event_id.to_owned(), parks: None }
    }

    #[test]
    fn a_row_is_recognised_under_each_id_it_may_be_recorded_under() {
        for id in ["7", "7@0/20/1", "7@0/20/1@0/20/1"] {
            assert!(recorded(id).is_of("7"), "{id}");
            assert!(!recorded(id).is_of("8"), "{id}");
        }
        assert!(recorded("").is_of("") && recorded("@0/20/1").is_of(""));
        assert!(recorded("a?b@0/20/1").is_of("a\0b"));
        let long = "x".repeat(2 * NAME_BYTES_MAX);
        assert!(recorded(&format!("{}@0/20/1", &long[..NAME_BYTES_MAX])).is_of(&long));
    }

    #[test]
    fn another_row_at_the_same_position_is_not_recognised() {
        assert!(!recorded("7@0/20/2").is_of("7"), "the addition of another position");
        assert!(!recorded("71").is_of("7") && !recorded("7").is_of("71"));
    }
}

//! What the server may stream again although it is recorded.

use pgoutput_parser::{Lsn, Position};
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};

use super::history::{NAME_BYTES_MAX, storable};
use super::{DispatchStore, position_of};
use crate::store_error::StoreError;

/// A recorded row, to be recognised when the server streams it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedRow {
    /// Where it lies in the log.
    pub position: Position,
    /// The id it is recorded under.
    pub event_id: String,
    /// Topic and ordering key that are parked because of it; none if it is finished, or holds nothing.
    pub parks: Option<(String, String)>,
}

/// Some recorded rows, in the order of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedPage {
    /// All that lie between the position that was asked for and `next`.
    pub rows: Vec<RecordedRow>,
    /// Where the next page begins; none behind the last.
    pub next: Option<Position>,
}

impl RecordedRow {
    /// Whether it is the outbox row with this id that came at its position.
    ///
    /// The position alone would not do: under a publication of other tables it is another row's.
    #[must_use]
    pub fn is_of(&self, event_id: &str) -> bool {
        let Some(mut rest) = self.event_id.strip_prefix(&*storable(event_id, NAME_BYTES_MAX))
        else {
            return false;
        };
        // What recording adds to an id that is taken or was cut.
        let addition = taken_suffix(self.position);
        while let Some(left) = rest.strip_suffix(&addition) {
            rest = left;
        }
        rest.is_empty()
    }
}

/// What tells a row apart from another one that is recorded under its id.
pub(super) fn taken_suffix(Position { commit_lsn, tx_index }: Position) -> String {
    format!("@{commit_lsn}/{tx_index}")
}

impl DispatchStore {
    /// Recorded rows at and after `from`, in order, whatever became of them: `rows_max` of them, and
    /// those that share the last one's position.
    ///
    /// The server may stream these again after a restart; they must neither be published nor parked
    /// again. It costs the same however many there are. Rows of a replay are none of them: the slot does not
    /// send those.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
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
                RECORDED,
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
    /// These rows, which are all there are if they are fewer than were asked for.
    #[must_use]
    pub fn of(rows: Vec<RecordedRow>, rows_max: u32) -> Self {
        let is_full = rows.len() >= rows_max as usize;
        let next = rows.last().filter(|_| is_full).map(|last| behind(last.position));
        Self { rows, next }
    }

    /// The page from there of rows that are in memory, in order.
    #[must_use]
    pub fn from_all(rows: &[RecordedRow], from: Position, rows_max: u32) -> Self {
        let rest = &rows[rows.partition_point(|row| row.position < from)..];
        let full = rest.len().min(rows_max as usize);
        let last = rest[..full].last().map(|row| row.position);
        let end = rest.partition_point(|row| Some(row.position) <= last);
        Self::of(rest[..end].to_vec(), rows_max)
    }
}

/// The first position behind this one.
fn behind(Position { commit_lsn, tx_index }: Position) -> Position {
    match tx_index.checked_add(1) {
        Some(tx_index) => Position { commit_lsn, tx_index },
        None => Position { commit_lsn: Lsn::new(commit_lsn.as_u64() + 1), tx_index: 0 },
    }
}

/// A table that has just been filled has no statistics, and any number of rows looks small then: each
/// page would be a sort of all of them.
const IN_ORDER: &str = "SET LOCAL enable_sort = off";

const RECORDED: &str = "
SELECT commit_lsn, tx_index, event_id,
       CASE WHEN parks THEN topic END AS topic, CASE WHEN parks THEN ordering_key END AS ordering_key
  FROM (SELECT commit_lsn, tx_index, event_id, topic, ordering_key,
               status = 'retrying' OR $5 AND status = 'dead' AND ordering_key <> '' AS parks
          FROM public.app_outbox_dispatch
         WHERE slot = $1 AND (commit_lsn, tx_index) >= ($2, $3) AND replay_id = ''
         ORDER BY commit_lsn, tx_index
         FETCH FIRST $4 ROWS WITH TIES) AS page
 ORDER BY commit_lsn, tx_index";

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

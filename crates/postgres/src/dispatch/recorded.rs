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
    /// All recorded rows at and after `lsn`, in order, whatever became of them.
    ///
    /// The server may stream these again after a restart; they must neither be published nor parked
    /// again.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn recorded_since(
        &self,
        client: &Client,
        lsn: Lsn,
    ) -> Result<Vec<RecordedRow>, StoreError> {
        client
            .query_typed(
                "SELECT commit_lsn, tx_index, event_id FROM public.app_outbox_dispatch
                  WHERE slot = $1 AND commit_lsn >= $2
                  ORDER BY commit_lsn, tx_index",
                &[(&self.slot, Type::TEXT), (&PgLsn::from(lsn.as_u64()), Type::PG_LSN)],
            )
            .await
            .map_err(StoreError::sql("read recorded rows"))?
            .iter()
            .map(|row| {
                Ok(RecordedRow { position: position_of(row)?, event_id: row.get("event_id") })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(event_id: &str) -> RecordedRow {
        let position = Position { commit_lsn: Lsn::new(0x20), tx_index: 1 };
        RecordedRow { position, event_id: event_id.to_owned() }
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

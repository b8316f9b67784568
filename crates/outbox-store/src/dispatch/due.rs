//! Finds the keys that can be claimed now. The query runs often, so its cost does not depend on the
//! number of parked rows.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::{SqlText, sql};

use super::DispatchStore;
use crate::store_error::StoreError;

/// The result of one query for due keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DueKeys {
    /// Topic and ordering key, longest due first.
    pub keys: Vec<(String, String)>,
    /// Whether rows that are due but cannot be claimed filled the result. They have been moved
    /// away, so another query may find more keys.
    pub has_more: bool,
}

impl DispatchStore {
    /// Returns keys that can be claimed now because a row of theirs is due, longest due first, at
    /// most `limit`. Keys of the topics in `except` are left out, because they would displace other
    /// keys.
    ///
    /// An operator's `retry`, plain SQL that sets `next_attempt_at`, and rows whose lease ended
    /// reach a running relay this way. A key with rows in flight is included if an operator made
    /// these rows due. The caller leaves such a key until it has the outcomes.
    ///
    /// Reads at most `limit` rows of each topic. If a topic has that many, rows that cannot be
    /// claimed lose their due time, or every query would read them again. A row behind its head
    /// gets a null `next_attempt_at`. So does a head of a key that a replay holds. The copies go
    /// before it, and it follows them at once. A head behind a dead row that stops its key is
    /// postponed.
    ///
    /// After a step back of the server's clock, a row was written in the future. If the step is longer
    /// than the row's wait, the wait begins again on the new clock. A lease keeps its length.
    pub async fn due_keys(
        &self,
        client: &Client,
        except: &[&str],
        limit: u32,
    ) -> Result<DueKeys, StoreError> {
        let rows = client
            .query_typed(
                &DUE,
                &[
                    (&self.slot, Type::TEXT),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&except, Type::TEXT_ARRAY),
                    (&i64::from(limit), Type::INT8),
                    (&self.before, Type::PG_LSN),
                ],
            )
            .await
            .map_err(StoreError::sql("look for due keys"))?;
        let has_more = rows.first().is_some_and(|row| row.get::<_, i64>("moved") > 0);
        let key = |row: &tokio_postgres::Row| {
            Some((row.get::<_, Option<_>>("topic")?, row.get::<_, Option<_>>("ordering_key")?))
        };
        Ok(DueKeys { keys: rows.iter().filter_map(key).collect(), has_more })
    }
}

// Topics are found by jumping from one to the next, and due rows through the index of rows with a
// time. Every other subquery reads one row through an index. `EXISTS` is not used for dead rows and
// holds: with statistics from a time without parked rows, the planner would scan the table.
//
// A row behind its head loses its time only under a lock on the head. A change that makes the row
// the head must first change the current head. A head that is stopped loses its time only while the
// time is the one that we read. The change that ends the stop also sets that time.
//
// `(.. IN (SELECT ..)) IS TRUE` is always a lookup in a hash table. As a join, the planner could
// compare all pairs of rows.
static DUE: SqlText = SqlText::new(|| sql!("due.sql", "due"));

//! Counts the rows in each state, one part of the table at a time.

use std::time::SystemTime;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_pg_client::SCHEMA;

use super::operator_pages::NEEDS_OPERATOR;
use super::{DispatchStore, SPILLED};
use crate::store_error::StoreError;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DispatchCounts {
    pub retrying: u64,
    /// Rows that need an operator.
    pub dead: u64,
    pub published: u64,
    pub discarded: u64,
    pub waiting: RetryingReasons,
}

/// Reasons why the retrying rows are not published yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetryingReasons {
    /// Time when the first retrying row was recorded.
    pub since: Option<SystemTime>,
    /// Spilled rows, which have no problem of their own.
    pub spilled: u64,
    /// Time when the first spilled row was recorded.
    pub spilled_since: Option<SystemTime>,
    /// Time of the last recent failure of a spilled row, or of a row whose topic needs an operator.
    pub refused_at: Option<SystemTime>,
    /// The last recent failure that only an operator can fix.
    pub refused: Option<OperatorFailure>,
    /// Time of the last recent failure of a spilled row without an answer.
    pub unanswered_at: Option<SystemTime>,
    /// Rows that are not due yet, because they back off or a relay has claimed them.
    pub not_due: u64,
    /// Time when the last of these rows is due.
    pub not_due_until: Option<SystemTime>,
}

/// A failed attempt that only an operator can fix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperatorFailure {
    /// Time of the failure, such as `2026-01-31T12:00:00Z`.
    pub at: String,
    pub topic: String,
    /// The gRPC code.
    pub code: String,
}

impl RetryingReasons {
    fn plus(self, other: Self) -> Self {
        let earlier = |one: Option<SystemTime>, two| one.into_iter().chain(two).min();
        Self {
            since: earlier(self.since, other.since),
            spilled: self.spilled + other.spilled,
            spilled_since: earlier(self.spilled_since, other.spilled_since),
            refused_at: self.refused_at.max(other.refused_at),
            refused: self.refused.max(other.refused),
            unanswered_at: self.unanswered_at.max(other.unanswered_at),
            not_due: self.not_due + other.not_due,
            not_due_until: self.not_due_until.max(other.not_due_until),
        }
    }
}

impl DispatchCounts {
    fn plus(self, other: Self) -> Self {
        Self {
            retrying: self.retrying + other.retrying,
            dead: self.dead + other.dead,
            published: self.published + other.published,
            discarded: self.discarded + other.discarded,
            waiting: self.waiting.plus(other.waiting),
        }
    }
}

/// A count that reads the table in steps, repeatedly.
#[derive(Debug, Clone, Default)]
pub struct IncrementalCount {
    next_block: i64,
    so_far: DispatchCounts,
    last: Option<DispatchCounts>,
}

impl IncrementalCount {
    /// Returns the last complete count, or before the first one the partial count.
    #[must_use]
    pub fn counts(&self) -> DispatchCounts {
        self.last.as_ref().unwrap_or(&self.so_far).clone()
    }

    /// Returns whether the count is in the middle of the table.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.next_block > 0
    }

    fn counted(&mut self, further: DispatchCounts, blocks: i64) {
        let so_far = std::mem::take(&mut self.so_far).plus(further);
        self.next_block += BLOCKS_MAX;
        match self.next_block >= blocks {
            true => *self = Self { last: Some(so_far), ..Self::default() },
            false => self.so_far = so_far,
        }
    }
}

/// Number of blocks that one step reads: 8 MiB.
const BLOCKS_MAX: i64 = 1_000;

impl DispatchStore {
    /// Counts the rows of the next part of the table. A table of one part is counted exactly. In a
    /// larger table, rows that change during the count may be counted twice or not at all.
    ///
    /// # Errors
    ///
    /// Nothing has been counted.
    pub async fn count_further(
        &self,
        client: &Client,
        counting: &mut IncrementalCount,
    ) -> Result<(), StoreError> {
        let from = counting.next_block;
        let row = client
            .query_typed_one(
                &count_part(),
                &[
                    (&self.slot, Type::TEXT),
                    (&from, Type::INT8),
                    (&from.saturating_add(BLOCKS_MAX), Type::INT8),
                    (&SPILLED, Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql("count rows in dispatch state"))?;
        counting.counted(counts(&row), row.get("blocks"));
        Ok(())
    }

    /// Counts all rows of the table in each state, without a time limit.
    pub async fn counts(&self, client: &Client) -> Result<DispatchCounts, StoreError> {
        let mut counting = IncrementalCount::default();
        self.count_further(client, &mut counting).await?;
        while counting.is_under_way() {
            self.count_further(client, &mut counting).await?;
        }
        Ok(counting.counts())
    }
}

/// SQL for the gRPC code of the newest line, which is the code of an attempt.
const CODE: &str = "split_part(split_part(last_error, E'\n', 1), ': ', 2)";

// `coalesce(slot, '')` prevents an index scan, which would find all rows of the slot. A failing row
// is tried again within a minute, so an older line belongs to a failure that is over or to a
// stopped relay.
fn count_part() -> String {
    let failed = "status = 'retrying' AND updated_at > now() - interval '2 minutes'
                    AND last_error LIKE 'attempt %'";
    let by_operator = format!("{CODE} IN {NEEDS_OPERATOR}");
    // spliced: the codes that only an operator can fix, and what several columns ask for.
    format!("
SELECT count(*) FILTER (WHERE status = 'retrying') AS retrying,
       count(*) FILTER (WHERE status = 'dead') AS dead,
       count(*) FILTER (WHERE status = 'published') AS published,
       count(*) FILTER (WHERE status = 'discarded') AS discarded,
       min(parked_at) FILTER (WHERE status = 'retrying') AS since,
       count(*) FILTER (WHERE status = 'retrying' AND error_code = $4) AS spilled,
       min(parked_at) FILTER (WHERE status = 'retrying' AND error_code = $4) AS spilled_since,
       max(updated_at) FILTER (WHERE {failed} AND (error_code = $4 OR {by_operator})) AS refused_at,
       max(updated_at) FILTER (WHERE {failed} AND error_code = $4
                                 AND {CODE} = 'DEADLINE_EXCEEDED') AS unanswered_at,
       max(ARRAY[to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), topic, {CODE}])
         FILTER (WHERE {failed} AND {by_operator}) AS refused,
       count(*) FILTER (WHERE status = 'retrying' AND next_attempt_at > now()) AS not_due,
       max(next_attempt_at) FILTER (WHERE status = 'retrying' AND next_attempt_at > now()) AS not_due_until,
       pg_relation_size('{SCHEMA}.app_outbox_dispatch') / current_setting('block_size')::int8 AS blocks
  FROM {SCHEMA}.app_outbox_dispatch
 WHERE coalesce(slot, '') = $1
   AND ctid >= format('(%s,0)', $2)::tid AND ctid < format('(%s,0)', $3)::tid"
    )
}

fn counts(row: &Row) -> DispatchCounts {
    // A `count(*)` is never negative.
    let count = |column: &str| u64::try_from(row.get::<_, i64>(column)).unwrap_or_default();
    DispatchCounts {
        retrying: count("retrying"),
        dead: count("dead"),
        published: count("published"),
        discarded: count("discarded"),
        waiting: RetryingReasons {
            since: row.get("since"),
            spilled: count("spilled"),
            spilled_since: row.get("spilled_since"),
            refused_at: row.get("refused_at"),
            refused: refused(row.get("refused")),
            unanswered_at: row.get("unanswered_at"),
            not_due: count("not_due"),
            not_due_until: row.get("not_due_until"),
        },
    }
}

fn refused(columns: Option<Vec<String>>) -> Option<OperatorFailure> {
    let [at, topic, code] = columns?.try_into().ok()?;
    Some(OperatorFailure { at, topic, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rows_wait_for_is_put_together_from_the_parts_of_the_table() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        let part = |spilled, since, refused_at, until| RetryingReasons {
            since,
            spilled,
            spilled_since: since,
            refused_at,
            refused: refused_at.map(|moment| OperatorFailure {
                at: format!("{moment:?}"),
                topic: "t".to_owned(),
                code: "NOT_FOUND".to_owned(),
            }),
            unanswered_at: refused_at,
            not_due: 1,
            not_due_until: until,
        };
        let sum = part(2, at(5), None, at(9)).plus(part(3, at(4), at(8), at(7)));
        assert_eq!(sum, RetryingReasons { not_due: 2, ..part(5, at(4), at(8), at(9)) });
        let none = RetryingReasons::default();
        assert_eq!(none.clone().plus(sum.clone()).plus(none), sum);
    }

    #[test]
    fn figures_stand_until_the_table_has_been_gone_through_again() {
        let seen = |retrying| DispatchCounts { retrying, ..DispatchCounts::default() };
        let mut counting = IncrementalCount::default();
        counting.counted(seen(3), BLOCKS_MAX + 1);
        assert!(counting.is_under_way());
        assert_eq!(counting.counts(), seen(3), "better than nothing");
        counting.counted(seen(4), BLOCKS_MAX + 1);
        assert!(!counting.is_under_way());
        assert_eq!(counting.counts(), seen(7));
        counting.counted(seen(1), BLOCKS_MAX + 1);
        assert_eq!(counting.counts(), seen(7));
        counting.counted(seen(0), BLOCKS_MAX);
        assert_eq!(counting.counts(), seen(1));
    }
}

//! Claims rows in order to publish them again.

use std::time::Duration;

use pgoutput_parser::Position;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::{SqlText, sql};

use super::{Claim, DispatchStore, Hold, Key, Place, SPILLED, position_of, seconds, unsigned};
use crate::store_error::StoreError;

/// A row that the caller may publish until its lease ends.
pub struct ClaimedRow {
    /// The claim, which the outcome needs.
    pub claim: Claim,
    pub position: Position,
    pub topic: String,
    /// The ordering key. Empty means unordered.
    pub ordering_key: String,
    /// The encoded `PubsubMessage`.
    pub message: Vec<u8>,
    /// Number of earlier attempts.
    pub attempts: u32,
}

impl std::fmt::Debug for ClaimedRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the message and the key, because this output reaches logs.
        f.debug_struct("ClaimedRow")
            .field("event_id", &self.claim.event_id)
            .field("position", &self.position)
            .field("topic", &self.topic)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct ClaimLimits {
    /// Maximum rows of one key.
    pub per_key_rows: u32,
    /// Maximum bytes of all messages. One row is claimed even if it alone is larger.
    pub bytes_max: u64,
    /// Length of the lease. It is longer than a publish with its retries may take.
    pub lease: Duration,
}

impl DispatchStore {
    /// Claims the first rows of each of these keys in position order, and leases them to the
    /// caller.
    ///
    /// A key gives rows up to the first row that is locked, leased or not yet due. With
    /// [`Hold`](walrelay_core::OnDead::Hold), a dead row also ends the key's rows. If the byte
    /// limit is reached, every key gets its first row before any key gets its second. Unordered
    /// rows are independent, and the longest due are claimed first. The result is sorted by topic,
    /// ordering key and position.
    ///
    /// The caller must not claim a key again before it has the outcomes, because `retry` makes a
    /// leased row due at once. A key that a replay holds gives no rows. Neither does a key whose
    /// first row was spilled, which [`read_spilled`](Self::read_spilled) returns.
    ///
    /// # Errors
    ///
    /// Rows that were claimed anyway are due again when their lease ends.
    pub async fn claim(
        &self,
        client: &Client,
        keys: &[Key<'_>],
        limits: ClaimLimits,
    ) -> Result<Vec<ClaimedRow>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        let bytes_max = i64::try_from(limits.bytes_max).unwrap_or(i64::MAX);
        client
            .query_typed(
                &CLAIM,
                &[
                    (&self.slot, Type::TEXT),
                    (&topics, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&i64::from(limits.per_key_rows), Type::INT8),
                    (&bytes_max, Type::INT8),
                    (&seconds(limits.lease), Type::FLOAT8),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&self.before, Type::PG_LSN),
                ],
            )
            .await
            .map_err(StoreError::sql("claim parked rows"))?
            .iter()
            .map(|row| {
                let position = position_of(row)?;
                let hold = match row.get::<_, Option<&str>>("error_code") {
                    Some(SPILLED) => Hold::LeasedSpilled(Place { position, ctid: row.get("ctid") }),
                    _ => Hold::Leased,
                };
                let (event_id, version) = (row.get("event_id"), row.get("updated_at"));
                Ok(ClaimedRow {
                    claim: Claim { event_id, version, hold },
                    position,
                    topic: row.get("topic"),
                    ordering_key: row.get("ordering_key"),
                    message: row.get("message"),
                    attempts: unsigned(row.get("attempts"), "app_outbox_dispatch.attempts")?,
                })
            })
            .collect()
    }
}

impl DispatchStore {
    /// Makes rows of these keys due that are leased or back off, at most `limit` of each key. A
    /// claim whose answer was lost may have leased rows that nobody publishes. Rows in `in_flight`
    /// stay leased.
    pub async fn release(
        &self,
        client: &Client,
        keys: &[Key<'_>],
        in_flight: &[&str],
        limit: u32,
    ) -> Result<u64, StoreError> {
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        client
            .execute_typed(
                sql!("claim.sql", "release"),
                &[
                    (&self.slot, Type::TEXT),
                    (&topics, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&in_flight, Type::TEXT_ARRAY),
                    (&i64::from(limit), Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("release rows of a claim without an answer"))
    }
}

// One statement needs one round trip, and no transaction of ours can be lost.
//
// Candidates are found without locks and then locked. Locking during the search would be wrong:
// SKIP LOCKED below a LIMIT skips a locked head and returns the rows behind it.
//
// A table that has just been filled has no statistics, and the planner assumes few rows. A join, or
// an array of thousands that the planner can see, may then become a table scan.
// `= ANY (ARRAY(SELECT ..))` is always an index scan, and `IN (SELECT ..)` in a list of columns is
// always a lookup in a hash table. `coalesce(status, '')` excludes the partial
// indexes, one of which would be read from end to end. The server checks a row that changed since
// our snapshot again under its lock. A status or lease set meanwhile is therefore seen, and the
// newest message is returned.
static CLAIM: SqlText = SqlText::new(|| sql!("claim.sql", "claim"));

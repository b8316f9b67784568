//! Rows that are recorded because they retained too much WAL (I10). The rows have no problem of
//! their own.
//!
//! There may be millions, and each write costs WAL again. They are therefore read without a lease,
//! which the session that holds the slot does not need (I11). They are deleted once Pub/Sub has
//! stored them. A row whose delivery fails becomes an ordinary retrying row.

use std::collections::HashMap;
use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};
use walrelay_core::Outcome;
use walrelay_pg_client::{Parameter, SqlText, sql};

use super::claim::ClaimedRow;
use super::{Claim, ClaimLimits, DispatchStore, Hold, Key, Place, SPILLED, position_of, unsigned};
use crate::store_error::StoreError;

/// Maximum bytes that one key gets per read. Adding a row's bytes to it cannot overflow.
const SHARE_BYTES_MAX: i32 = 1 << 30;

/// Maximum rows of one statement that deletes the rows that a caller names.
const STATEMENT_ROWS_MAX: usize = 5_000;

/// Maximum rows that one call deletes, so that the call stays short.
const DELETE_ROWS_MAX: i64 = 5_000;

impl DispatchStore {
    /// Reads the first spilled rows of each of these keys in position order, without writing. A
    /// key's rows end at the first that is not spilled, not due, or behind a dead row that stops
    /// its key. A key that a replay holds gives no rows.
    ///
    /// Each key has an equal share of the bytes. A first row that exceeds its share is returned if
    /// the other keys leave enough bytes, or if it is the only row. Rows without a key are left to
    /// [`claim`](Self::claim), because only a lease shows which of them are in flight.
    pub async fn read_spilled(
        &self,
        client: &Client,
        keys: &[Key<'_>],
        limits: ClaimLimits,
    ) -> Result<Vec<ClaimedRow>, StoreError> {
        let (topics, ordering_keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.topic, key.ordering_key)).unzip();
        let share = limits.bytes_max / keys.len().max(1) as u64;
        let share = i32::try_from(share).unwrap_or(SHARE_BYTES_MAX).min(SHARE_BYTES_MAX);
        let rows = client
            .query_typed(
                &READ,
                &[
                    (&self.slot, Type::TEXT),
                    (&topics, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&i64::from(limits.per_key_rows), Type::INT8),
                    (&share, Type::INT4),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&self.before, Type::PG_LSN),
                ],
            )
            .await
            .map_err(StoreError::sql("read spilled rows"))?;
        let mut claimed = Vec::with_capacity(rows.len());
        let mut large = Vec::new();
        let mut bytes = 0;
        for row in &rows {
            let ordinal = usize::try_from(row.get::<_, i64>("ordinal")).unwrap_or_default();
            let Some(key) = ordinal.checked_sub(1).and_then(|index| keys.get(index)) else {
                continue;
            };
            let position = position_of(row)?;
            let message: Option<Vec<u8>> = row.get("message");
            let of_row = ClaimedRow {
                claim: Claim {
                    event_id: row.get("event_id"),
                    version: row.get("updated_at"),
                    hold: Hold::Read(Place { position, ctid: row.get("ctid") }),
                },
                position,
                topic: key.topic.to_owned(),
                ordering_key: key.ordering_key.to_owned(),
                attempts: unsigned(row.get("attempts"), "app_outbox_dispatch.attempts")?,
                message: message.unwrap_or_default(),
            };
            bytes += of_row.message.len() as u64;
            match row.get::<_, Option<i64>>("large_bytes") {
                Some(of_message) => large.push((ordinal, of_row, of_message.unsigned_abs())),
                None => claimed.push((ordinal, of_row)),
            }
        }
        let room = limits.bytes_max.saturating_sub(bytes);
        let large = fitting(large, room, claimed.len());
        claimed.extend(self.read_large(client, large).await?);
        claimed.sort_unstable_by_key(|(ordinal, row)| (*ordinal, row.position));
        Ok(claimed.into_iter().map(|(_, row)| row).collect())
    }

    /// Reads the large messages of these rows.
    async fn read_large(
        &self,
        client: &Client,
        rows: Vec<(usize, ClaimedRow)>,
    ) -> Result<Vec<(usize, ClaimedRow)>, StoreError> {
        if rows.is_empty() {
            return Ok(rows);
        }
        let event_ids: Vec<&str> = rows.iter().map(|(_, row)| row.claim.event_id()).collect();
        let messages = client
            .query_typed(
                &READ_LARGE,
                &[(&self.slot, Type::TEXT), (&event_ids, Type::TEXT_ARRAY), (&SPILLED, Type::TEXT)],
            )
            .await
            .map_err(StoreError::sql("read large spilled rows"))?;
        let mut messages: HashMap<String, (SystemTime, Vec<u8>)> = messages
            .iter()
            .map(|row| (row.get("event_id"), (row.get("updated_at"), row.get("message"))))
            .collect();
        // The next read returns rows that somebody has changed meanwhile.
        let unchanged = rows.into_iter().filter_map(|(ordinal, row)| {
            let (version, message) = messages.remove(row.claim.event_id())?;
            (version == row.claim.version).then_some((ordinal, ClaimedRow { message, ..row }))
        });
        Ok(unchanged.collect())
    }

    /// Returns whether the relay still has to publish spilled rows committed before `end`. Only the
    /// first row of a key and rows without a key count. Rows behind a row that failed on its own do
    /// not count, because that row was tried. Rows that a dead row or a replay stops need a person.
    pub async fn has_spilled_before(&self, client: &Client, end: Lsn) -> Result<bool, StoreError> {
        let row = client
            .query_typed_one(
                &HAS_SPILLED,
                &[
                    (&self.slot, Type::TEXT),
                    (&PgLsn::from(end.as_u64()), Type::PG_LSN),
                    (&self.holds_on_dead(), Type::BOOL),
                    (&SPILLED, Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql("look for spilled rows"))?;
        Ok(row.get("is_so"))
    }

    /// Like [`finish`](Self::finish), but deletes a spilled row that is stored and lies before
    /// `past`. Up to `past`, everything is recorded as settled and confirmed. The slot might send
    /// later rows again, so these rows are kept as published until
    /// [`delete_spilled_between`](Self::delete_spilled_between).
    ///
    /// # Errors
    ///
    /// Some outcomes may be written. The caller may write all of them again.
    pub async fn finish_before(
        &self,
        client: &Client,
        outcomes: &[(Claim, &Outcome)],
        past: Lsn,
    ) -> Result<u64, StoreError> {
        let (mut stored, mut others) = (Vec::new(), Vec::new());
        for (claim, outcome) in outcomes {
            match (claim.place(), outcome) {
                (Some(place), Outcome::Published { .. }) if place.position.commit_lsn < past => {
                    stored.push((claim, place.ctid.as_str()));
                }
                // This claim has no lease to give back.
                (_, Outcome::Again { failure: None, .. }) if !claim.is_leased() => {}
                _ => others.push((claim.clone(), *outcome)),
            }
        }
        let mut counted = 0;
        for chunk in stored.chunks(STATEMENT_ROWS_MAX) {
            counted += self.delete_spilled(client, chunk).await?;
        }
        Ok(counted + self.finish(client, &others).await?)
    }

    /// Deletes spilled rows that Pub/Sub has stored and the slot has passed, unless somebody has
    /// changed them. Deleting by `ctid` costs half of deleting by id. Only if some rows have moved
    /// (a table rewrite, or a changed time), the rows are deleted by id.
    async fn delete_spilled(
        &self,
        client: &Client,
        stored: &[(&Claim, &str)],
    ) -> Result<u64, StoreError> {
        let (event_ids, places): (Vec<&str>, Vec<&str>) =
            stored.iter().map(|(claim, ctid)| (claim.event_id(), *ctid)).unzip();
        let Some(newest) = stored.iter().map(|(claim, _)| claim.version).max() else {
            return Ok(0);
        };
        let failed = || StoreError::sql("delete what was spilled and is stored");
        let there: &[Parameter<'_>] = &[
            (&self.slot, Type::TEXT),
            (&event_ids, Type::TEXT_ARRAY),
            (&SPILLED, Type::TEXT),
            (&newest, Type::TIMESTAMPTZ),
            (&places, Type::TEXT_ARRAY),
        ];
        let deleted = client.execute_typed(&DELETE_AT, there).await.map_err(failed())?;
        if deleted >= event_ids.len() as u64 {
            return Ok(deleted);
        }
        let elsewhere = client.execute_typed(&DELETE_BY_ID, &there[..4]).await;
        Ok(deleted + elsewhere.map_err(failed())?)
    }

    /// Returns the commits of the first and the last spilled row that were stored and not deleted
    /// yet. The process that should delete them may have been killed. Only the last day is read,
    /// because reading all published rows in the retention period would be expensive.
    pub async fn stored_spilled(&self, client: &Client) -> Result<Option<(Lsn, Lsn)>, StoreError> {
        let row = client
            .query_typed_one(&STORED, &[(&self.slot, Type::TEXT), (&SPILLED, Type::TEXT)])
            .await
            .map_err(StoreError::sql("look for what was spilled and is stored"))?;
        let lsn =
            |column: &str| row.get::<_, Option<PgLsn>>(column).map(|lsn| Lsn::new(lsn.into()));
        Ok(lsn("first").zip(lsn("last")))
    }

    /// Deletes some of the spilled rows from `from` to before `past` that were stored before the
    /// slot had passed them. Returns the commit where the next call continues, or none at the end.
    pub async fn delete_spilled_between(
        &self,
        client: &Client,
        from: Lsn,
        past: Lsn,
    ) -> Result<Option<Lsn>, StoreError> {
        let row = client
            .query_typed_one(
                &DELETE_PUBLISHED,
                &[
                    (&self.slot, Type::TEXT),
                    (&PgLsn::from(from.as_u64()), Type::PG_LSN),
                    (&PgLsn::from(past.as_u64()), Type::PG_LSN),
                    (&SPILLED, Type::TEXT),
                    (&DELETE_ROWS_MAX, Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("delete what was spilled and is stored"))?;
        let is_done = row.get::<_, i64>("rows") < DELETE_ROWS_MAX;
        let last: Option<PgLsn> = row.get("last");
        Ok(last.filter(|_| !is_done).map(|last| Lsn::new(last.into())))
    }
}

impl Claim {
    /// Returns whether nobody else may claim the row for some time.
    fn is_leased(&self) -> bool {
        !matches!(self.hold, Hold::Read(_))
    }

    pub(crate) fn is_spilled(&self) -> bool {
        self.place().is_some()
    }

    /// Returns the location of a spilled row, which is deleted once stored.
    const fn place(&self) -> Option<&Place> {
        match &self.hold {
            Hold::Read(place) | Hold::LeasedSpilled(place) => Some(place),
            Hold::Leased => None,
        }
    }
}

// Each row is read once, through its key's index, and its message is returned directly. Choosing
// rows of all keys by size first, and fetching messages afterwards, costs twice as much. An
// unreadable row uses up the whole share, so that no row behind it is returned.
static READ: SqlText = SqlText::new(|| sql!("spilled.sql", "read"));

static READ_LARGE: SqlText = SqlText::new(|| sql!("spilled.sql", "read_large"));

// Jumps from key to key, and stops at the first row that is pending.
static HAS_SPILLED: SqlText = SqlText::new(|| sql!("spilled.sql", "has_spilled"));

// A row's `ctid` may hold another row after the first is gone and its page was vacuumed, so the ids
// are compared. The array subquery and `coalesce` leave the planner no other way to find the rows.
// A table that has just been filled has no statistics, and the planner would scan it or look up
// each id. `claim.rs` explains `coalesce(status, '')`.
static DELETE_AT: SqlText = SqlText::new(|| sql!("spilled.sql", "delete_at"));

static DELETE_BY_ID: SqlText = SqlText::new(|| sql!("spilled.sql", "delete_by_id"));

// Uses the index of finished rows. Without `OFFSET 0` the planner would search for the first
// position among all pending rows.
static STORED: SqlText = SqlText::new(|| sql!("spilled.sql", "stored"));

// `claim.rs` explains `coalesce(status, '')`. Only few rows in the partial index of finished rows
// are spilled.
static DELETE_PUBLISHED: SqlText = SqlText::new(|| sql!("spilled.sql", "delete_published"));

/// Returns the large rows that fit, each without the size of its message. If no other row is
/// claimed, at least one is returned, because a row that never fits would never be published.
fn fitting(
    rows: Vec<(usize, ClaimedRow, u64)>,
    room: u64,
    claimed: usize,
) -> Vec<(usize, ClaimedRow)> {
    let mut bytes = 0;
    let mut is_first = claimed == 0;
    let fitting = rows.into_iter().filter(|(.., of_message)| {
        let fits = bytes + of_message <= room || is_first;
        is_first = false;
        bytes += if fits { *of_message } else { 0 };
        fits
    });
    fitting.map(|(ordinal, row, _)| (ordinal, row)).collect()
}

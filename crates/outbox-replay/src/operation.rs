//! Unfinished operations on a slot, in `app_outbox_relay.operation`.
//!
//! An operation is recorded before it acts, so that a later session finishes it or waits. A slot
//! that is missing in the middle of a reset is therefore not lost. Beginning raises the generation,
//! and every write of a session is conditional on it. A relay that was streaming therefore stops.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Row};
use walrelay_outbox_store::{SLOT_WITH_OLDEST, anchor_of};
use walrelay_pg_client::{SCHEMA, SqlError, in_schema, lock_is_taken, sql};
use walrelay_pg_replication::{Failover, read_slot};

use crate::admin_error::{AdminError, describe_shards};
use crate::positions::with_positions_before;
use crate::release::{ReleaseStage, SlotRelease};

/// A reset: a copy of an anchor replaces the slot, and streams from a target position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    pub anchor_slot: String,
    /// Position where the stream starts again.
    pub target: Lsn,
    /// Whether the old slot was a failover slot. A copy loses this flag.
    pub failover: Failover,
    /// The rows of dispatch state after the target that are published again.
    pub again: Again,
}

/// A recovery: a new slot replaces a lost one, after publishing the rows that may not have been
/// settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRecovery {
    /// Id that marks the rows published from the table.
    pub id: String,
    /// Whether the lost slot was a failover slot.
    pub failover: Failover,
    pub bound: SettledBound,
    /// SQL about a row that is true for unpublished rows. Only these rows are published from the table.
    pub unpublished_where: Option<String>,
    /// The slots that were created for the recovery and whose rows are not settled. The last one is
    /// the current slot. Each fixes the rows that it does not stream.
    pub parts: Vec<SlotSnapshot>,
    /// The snapshot of the last part whose rows are settled.
    pub settled_snapshot: Option<String>,
}

/// The settled part of the rows that a new slot does not stream. The rest is published from the
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledBound {
    /// No rows, because there was no slot before.
    Nothing,
    /// Every transaction below the recorded horizon.
    Horizon,
    /// Rows of events before this time, for cases without valid transaction ids.
    Since(SystemTime),
}

impl SettledBound {
    /// Returns whether the bound is a time, and not a transaction.
    #[must_use]
    pub const fn is_time(&self) -> bool {
        match self {
            Self::Since(_) => true,
            Self::Nothing | Self::Horizon => false,
        }
    }
}

/// A new slot, and the rows that it does not stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Position where the slot begins.
    pub consistent_point: Lsn,
    /// Snapshot of the transactions committed before it (`pg_snapshot`).
    pub snapshot: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotOperation {
    Reset(Reset),
    Recovery(SlotRecovery),
    Release(SlotRelease),
    /// The number of shards is being changed, and this slot belongs to the old or the new number.
    Resharding(Resharding),
}

/// A change of the number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resharding {
    pub from: u32,
    pub to: u32,
}

impl SlotOperation {
    /// Returns the error for somebody whom the unfinished operation stops. `what` describes it.
    #[must_use]
    pub fn unfinished(&self, slot: &str, what: String) -> AdminError {
        let slot = slot.to_owned();
        match self {
            Self::Release(SlotRelease { stage: ReleaseStage::Draining, .. }) => {
                AdminError::ReleaseBegun { slot, what }
            }
            Self::Release(SlotRelease { stage: ReleaseStage::Released, .. }) => {
                AdminError::SlotReleased { slot }
            }
            Self::Reset(_) | Self::Recovery(_) | Self::Resharding(_) => {
                AdminError::OperationUnfinished { slot, what }
            }
        }
    }

    /// Describes the operation for somebody who waits for it.
    #[must_use]
    pub fn describe(&self, slot: &str) -> String {
        match self {
            Self::Reset(reset) => reset.describe(slot),
            Self::Recovery(SlotRecovery { parts, bound, .. }) => {
                let what = match bound {
                    SettledBound::Nothing => "a backfill",
                    SettledBound::Horizon | SettledBound::Since(_) => "a recovery",
                };
                match parts.last() {
                    None => what.to_owned(),
                    Some(part) => format!(
                        "{what} (the new slot begins at {}; rows before it are still to be published)",
                        part.consistent_point
                    ),
                }
            }
            Self::Release(SlotRelease { stage: ReleaseStage::Draining, .. }) => {
                "a release (the slot still exists)".to_owned()
            }
            Self::Release(SlotRelease { stage: ReleaseStage::Released, .. }) => {
                "a release (the slot is dropped)".to_owned()
            }
            Self::Resharding(Resharding { from, to }) => {
                format!("a change from {} to {}", describe_shards(*from), describe_shards(*to))
            }
        }
    }
}

/// Rows of dispatch state that are published again after a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Rows that were published after the target.
    Published,
    /// Published and dead rows after the target.
    PublishedAndDead,
}

impl Again {
    const fn statuses(self) -> &'static [&'static str] {
        match self {
            Self::Published => &["published"],
            Self::PublishedAndDead => &["published", "dead"],
        }
    }
}

impl Reset {
    #[must_use]
    pub fn describe(&self, slot: &str) -> String {
        let anchor = anchor_of(slot, &self.anchor_slot);
        format!("a reset to {} behind anchor {anchor:?}", self.target)
    }

    /// Returns whether the anchor still exists with its WAL. Without it the reset is cancelled.
    pub async fn has_anchor(&self, client: &Client) -> Result<bool, AdminError> {
        let anchor = read_slot(client, &self.anchor_slot).await?;
        Ok(anchor.is_some_and(|anchor| !anchor.is_lost()))
    }
}

/// Reads the unfinished operation on the slot, if there is one.
///
/// # Errors
///
/// The operation is unknown to this version.
pub async fn read_operation(
    client: &Client,
    slot: &str,
) -> Result<Option<SlotOperation>, AdminError> {
    let row = client
        .query_typed_opt(sql!("operation.sql", "read_operation"), &[(&slot, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read app_outbox_relay.operation"))?;
    let Some(row) = row else { return Ok(None) };
    let lsn = |column| row.get::<_, Option<PgLsn>>(column).map(|lsn| Lsn::new(lsn.into()));
    let failover = if row.get("failover") { Failover::Yes } else { Failover::No };
    let text = |column| row.get::<_, Option<String>>(column);
    let read = match text("kind").as_deref() {
        Some("reset") => text("anchor_slot").zip(lsn("target")).map(|(anchor_slot, target)| {
            let again = match row.get("include_dead") {
                true => Again::PublishedAndDead,
                false => Again::Published,
            };
            SlotOperation::Reset(Reset { anchor_slot, target, failover, again })
        }),
        Some("recovery") => {
            let bound = match (text("bound").as_deref(), row.get("since")) {
                (Some("since"), Some(since)) => Some(SettledBound::Since(since)),
                (Some("nothing"), None) => Some(SettledBound::Nothing),
                (Some("horizon"), None) => Some(SettledBound::Horizon),
                (Some(_) | None, Some(_) | None) => None,
            };
            text("id").zip(bound).map(|(id, bound)| {
                SlotOperation::Recovery(SlotRecovery {
                    id,
                    failover,
                    bound,
                    unpublished_where: text("unpublished_where"),
                    parts: parts_of(&row),
                    settled_snapshot: text("settled_snapshot"),
                })
            })
        }
        Some("release") => {
            let stage = match row.get("has_slot") {
                true => ReleaseStage::Draining,
                false => ReleaseStage::Released,
            };
            text("system_identifier").zip(row.get("version")).map(|(system_identifier, version)| {
                SlotOperation::Release(SlotRelease { system_identifier, version, stage })
            })
        }
        Some("resharding") => {
            let count = |column| u32::try_from(row.get::<_, Option<i32>>(column)?).ok();
            count("before")
                .zip(count("after"))
                .map(|(from, to)| SlotOperation::Resharding(Resharding { from, to }))
        }
        Some(_) | None => None,
    };
    let unexpected = || {
        AdminError::Sql(SqlError::UnexpectedValue {
            column: "app_outbox_relay.operation",
            value: text("kind").unwrap_or_default(),
            expected: "an operation that this version knows",
        })
    };
    read.map(Some).ok_or_else(unexpected)
}

fn parts_of(row: &Row) -> Vec<SlotSnapshot> {
    let (points, snapshots): (Vec<PgLsn>, Vec<String>) = (row.get("points"), row.get("snapshots"));
    let part = |(point, snapshot): (PgLsn, String)| SlotSnapshot {
        consistent_point: Lsn::new(point.into()),
        snapshot,
    };
    points.into_iter().zip(snapshots).map(part).collect()
}

/// Records a reset. Returns false and writes nothing if another operation is unfinished.
pub async fn begin_reset(client: &Client, slot: &str, reset: &Reset) -> Result<bool, AdminError> {
    let written = client
        .execute_typed(
            sql!("operation.sql", "begin_reset"),
            &[
                (&slot, Type::TEXT),
                (&reset.anchor_slot, Type::TEXT),
                (&reset.target.to_string(), Type::TEXT),
                (&(reset.failover == Failover::Yes), Type::BOOL),
                (&(reset.again == Again::PublishedAndDead), Type::BOOL),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

/// Completes a reset after the slot was copied. The settled position becomes the target, and rows
/// that dispatch state published after the target no longer count as recorded. All or nothing.
pub async fn finish_reset(client: &Client, slot: &str, reset: &Reset) -> Result<(), AdminError> {
    let statuses: Vec<&str> = reset.again.statuses().to_vec();
    client
        .execute_typed(
            // spliced: SLOT_WITH_OLDEST.
            &format!(
            "WITH gone AS (
               DELETE FROM {SCHEMA}.app_outbox_dispatch
                WHERE slot = $1 AND commit_lsn >= $2 AND status = ANY ($3)
             )
             UPDATE {SCHEMA}.app_outbox_relay r
                SET operation = NULL, settled_lsn = $2, settled_xid = copy.oldest, updated_at = now()
               FROM ({SLOT_WITH_OLDEST}) AS copy
              WHERE r.slot = $1 AND r.operation IS NOT NULL"
            ),
            &[
                (&slot, Type::TEXT),
                (&PgLsn::from(reset.target.as_u64()), Type::PG_LSN),
                (&statuses, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(AdminError::sql("finish the reset in app_outbox_relay"))?;
    Ok(())
}

/// Records a recovery. Returns false and writes nothing if another operation is unfinished. The
/// recovery ends a release. The new slot is a failover slot if the one before was. On another
/// server than the recorded one, positions are not valid and are cleared.
pub async fn begin_recovery(
    client: &Client,
    slot: &str,
    recovery: &SlotRecovery,
    (system_identifier, timeline): (&str, u32),
) -> Result<bool, AdminError> {
    let (bound, since) = recovery.bound.columns();
    let written = client
        .execute_typed(
            // spliced: the CTE of `with_positions_before`.
            &format!(
                "WITH {}
             UPDATE {SCHEMA}.app_outbox_relay
                SET operation = jsonb_build_object('kind', 'recovery', 'id', $2,
                                                   'failover', $3 OR coalesce((operation ->> 'failover')::bool, failover, false),
                                                   'bound', $6, 'since', $7, 'begun_at', now()),
                    settled_lsn = CASE WHEN system_identifier = $4 THEN settled_lsn ELSE '0/0' END,
                    system_identifier = $4, timeline = $5, condition = NULL,
                    generation = generation + 1, updated_at = now()
              WHERE slot = $1 AND (operation IS NULL OR operation ->> 'kind' = 'release')",
                with_positions_before("$4")
            ),
            &[
                (&slot, Type::TEXT),
                (&recovery.id, Type::TEXT),
                (&(recovery.failover == Failover::Yes), Type::BOOL),
                (&system_identifier, Type::TEXT),
                (&timeline_column(timeline)?, Type::INT4),
                (&bound, Type::TEXT),
                (&since, Type::TIMESTAMPTZ),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

/// Begins the unfinished recovery by time of this slot at an earlier time. It then reads every row
/// again. A later time changes nothing.
///
/// # Errors
///
/// Another process works on the recovery.
pub async fn extend_recovery(
    client: &Client,
    slot: &str,
    since: SystemTime,
) -> Result<(), AdminError> {
    if !take_operation(client, slot).await? {
        let what = "a recovery, on which another process works".to_owned();
        return Err(AdminError::OperationUnfinished { slot: slot.to_owned(), what });
    }
    let extended = client
        .execute_typed(
            sql!("operation.sql", "extend_recovery"),
            &[(&slot, Type::TEXT), (&since, Type::TIMESTAMPTZ)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"));
    release_operation(client, slot).await?;
    extended.map(drop)
}

/// Records a backfill for a slot that never existed. Returns false if the slot has a record.
pub async fn begin_backfill(
    client: &Client,
    slot: &str,
    recovery: &SlotRecovery,
    (system_identifier, timeline): (&str, u32),
) -> Result<bool, AdminError> {
    let (bound, since) = recovery.bound.columns();
    let written = client
        .execute_typed(
            // 3 is the first transaction id. A session that finds no row creates generation 1, so 2
            // marks this row.
            sql!("operation.sql", "begin_backfill"),
            &[
                (&slot, Type::TEXT),
                (&recovery.id, Type::TEXT),
                (&(recovery.failover == Failover::Yes), Type::BOOL),
                (&system_identifier, Type::TEXT),
                (&timeline_column(timeline)?, Type::INT4),
                (&bound, Type::TEXT),
                (&since, Type::TIMESTAMPTZ),
                (&recovery.unpublished_where, Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

impl SettledBound {
    fn columns(self) -> (&'static str, Option<SystemTime>) {
        match self {
            Self::Nothing => ("nothing", None),
            Self::Horizon => ("horizon", None),
            Self::Since(at) => ("since", Some(at)),
        }
    }
}

pub(crate) fn timeline_column(timeline: u32) -> Result<i32, AdminError> {
    let value = u64::from(timeline);
    i32::try_from(timeline)
        .map_err(|_| AdminError::Sql(SqlError::OutOfRange { what: "timeline", value }))
}

/// Records the new slot and the snapshot of the rows that it does not stream. Its stream is settled
/// up to its start. Rows that an earlier slot of the recovery does not stream are a part of their
/// own.
pub async fn store_slot_snapshot(
    client: &Client,
    slot: &str,
    created: &SlotSnapshot,
) -> Result<(), AdminError> {
    client
        .execute_typed(
            sql!("operation.sql", "store_slot_snapshot"),
            &[
                (&slot, Type::TEXT),
                (&created.consistent_point.to_string(), Type::TEXT),
                (&created.snapshot, Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Finishes the first part of a recovery that has another part: its rows are settled.
pub async fn finish_part(client: &Client, slot: &str) -> Result<(), AdminError> {
    client
        .execute_typed(sql!("operation.sql", "finish_part"), &[(&slot, Type::TEXT)])
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Finishes a recovery once the rows that the new slot does not stream are settled. The record then
/// describes the new slot.
pub async fn finish_recovery(client: &Client, slot: &str) -> Result<(), AdminError> {
    client
        .execute_typed(sql!("operation.sql", "finish_recovery"), &[(&slot, Type::TEXT)])
        .await
        .map_err(AdminError::sql("finish the recovery in app_outbox_relay"))?;
    Ok(())
}

/// Cancels an operation because something that it needs is missing. The settled position stays
/// recorded.
pub async fn cancel_operation(client: &Client, slot: &str) -> Result<(), AdminError> {
    client
        .execute_typed(
            in_schema!("UPDATE public.app_outbox_relay SET operation = NULL, updated_at = now() WHERE slot = $1"),
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Returns whether this session now owns the slot's operation, until it releases it or ends.
pub async fn take_operation(client: &Client, slot: &str) -> Result<bool, AdminError> {
    lock(client, slot, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))").await
}

/// Returns whether some session owns the slot's operation (`take_operation`).
pub async fn is_operation_taken(client: &Client, slot: &str) -> Result<bool, AdminError> {
    lock(client, slot, &format!("SELECT {}", lock_is_taken("$1"))).await
}

pub async fn release_operation(client: &Client, slot: &str) -> Result<(), AdminError> {
    lock(client, slot, "SELECT pg_advisory_unlock(hashtextextended($1, 0))").await.map(drop)
}

async fn lock(client: &Client, slot: &str, sql: &str) -> Result<bool, AdminError> {
    // not a command: the name of an advisory lock.
    let name = format!("walrelay operation {slot}");
    let row = client
        .query_typed_one(sql, &[(&name, Type::TEXT)])
        .await
        .map_err(AdminError::sql("take the operation on the slot"))?;
    Ok(row.get(0))
}

/// Decodes the first change after the anchor, which checks that its WAL and the publication exist.
/// The anchor must be free, and does not move.
///
/// # Errors
///
/// The change cannot be decoded through this publication.
pub async fn try_decoding(
    client: &Client,
    slot: &str,
    quoted_publication: &str,
) -> Result<(), AdminError> {
    client
        .query_typed(
            sql!("operation.sql", "try_decoding"),
            &[(&slot, Type::TEXT), (&quoted_publication, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql(format!("decode the WAL behind slot {slot:?}")))?;
    Ok(())
}

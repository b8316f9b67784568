//! Changes the number of shards: its record, and the one transaction that switches.
//!
//! ```text
//! new slots: recorded ──▶ created ─────────────────────────────┐
//! old slots: recorded ──▶ drained up to the switch position ───┴─▶ switch ──▶ old slots dropped
//! ```
//!
//! The record is in `app_outbox_relay.operation` of the slots that relays must not use. These are
//! first the new slots, before they exist. The old slots follow when they are drained, until they
//! are dropped. Rows committed before the switch position belong to the old slots, and later rows
//! to the new ones. Only one relay therefore has the rows of a key. The recorded rows of the key
//! are handed over before the new relay begins.

use pgoutput_parser::Lsn;
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, Transaction};
use walrelay_outbox_replay::{AdminError, Resharding, describe_shards, unfinished_replays};
use walrelay_outbox_store::{Outbox, Shard};
use walrelay_pg_client::{SqlClient, SqlError, sql};

use crate::sharding::Sharding;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfinishedResharding {
    pub change: Resharding,
    pub phase: ReshardingPhase,
}

/// Progress of a change of the number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReshardingPhase {
    /// The old slots have the rows, and the change may be cancelled.
    Preparing,
    /// The new slots have the rows, and the old ones are still to be dropped.
    Switched,
}

/// The next step of a command that changes the number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReshardingStep {
    /// No step, because the number is already right.
    Nothing,
    Begin(Resharding),
    GoOn(Resharding),
    /// Drop the new slots, because the number stays the same.
    CallOff(Resharding),
    /// Drop the old slots.
    CleanUp(Resharding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReshardingRefusal {
    #[error("nothing is set up: there is no slot of this outbox on this server")]
    NotSetUp,
    #[error("there are slots or records of {} and of {}", describe_shards(*.0), describe_shards(*.1))]
    SeveralNumbers(u32, u32),
    #[error("the outbox has {}, and {missing} of their slots do not exist", describe_shards(*.count))]
    Incomplete {
        /// Number of shards that should exist.
        count: u32,
        missing: usize,
    },
    #[error("a change from {} to {} was begun and is not finished", describe_shards(.0.from), describe_shards(.0.to))]
    AnotherBegun(Resharding),
}

impl ReshardingStep {
    /// Returns the next step to the wanted number, from the existing shards and an unfinished
    /// change.
    pub fn next(
        sharding: &Sharding,
        begun: Option<UnfinishedResharding>,
        wanted: u32,
    ) -> Result<Self, ReshardingRefusal> {
        if let Some(UnfinishedResharding { change, phase }) = begun {
            return match phase {
                ReshardingPhase::Switched if wanted == change.to => Ok(Self::CleanUp(change)),
                ReshardingPhase::Preparing if wanted == change.to => Ok(Self::GoOn(change)),
                ReshardingPhase::Preparing if wanted == change.from => Ok(Self::CallOff(change)),
                ReshardingPhase::Switched | ReshardingPhase::Preparing => {
                    Err(ReshardingRefusal::AnotherBegun(change))
                }
            };
        }
        let mut numbers = sharding.of_count.iter();
        let Some((count, found)) = numbers.next() else { return Err(ReshardingRefusal::NotSetUp) };
        if let Some((other, _)) = numbers.next() {
            return Err(ReshardingRefusal::SeveralNumbers(*count, *other));
        }
        let missing = (*count as usize).saturating_sub(found.with_slot.len());
        if missing > 0 {
            return Err(ReshardingRefusal::Incomplete { count: *count, missing });
        }
        Ok(match *count == wanted {
            true => Self::Nothing,
            false => Self::Begin(Resharding { from: *count, to: wanted }),
        })
    }
}

/// Reads the unfinished change, if there is one.
///
/// # Errors
///
/// There is no such table.
pub async fn read_resharding(
    client: &Client,
    outbox: &Outbox,
) -> Result<Option<UnfinishedResharding>, AdminError> {
    let base = outbox.base_slot();
    let rows = client
        .query_typed(sql!("resharding.sql", "read_resharding"), &[(&base, Type::TEXT)])
        .await
        .map_err(AdminError::sql("read app_outbox_relay.operation"))?;
    let own = |row: &&tokio_postgres::Row| Shard::of_name(row.get("slot"), base).is_some();
    let Some(first) = rows.iter().find(own) else { return Ok(None) };
    let count = |column| u32::try_from(first.get::<_, i32>(column)).unwrap_or_default();
    let is_switched = rows.iter().filter(own).any(|row| row.get("is_switched"));
    let phase = match is_switched {
        true => ReshardingPhase::Switched,
        false => ReshardingPhase::Preparing,
    };
    let change = Resharding { from: count("before"), to: count("after") };
    Ok(Some(UnfinishedResharding { change, phase }))
}

#[derive(Debug, Clone, Copy)]
pub struct ShardSlots<'a> {
    /// The slots that the change drops.
    pub old: &'a [String],
    /// The slots that the change creates.
    pub new: &'a [String],
}

/// Records the new slots before they exist, so that no relay takes one too early. Slots that are
/// already recorded stay as they are.
pub async fn begin_resharding(
    client: &Client,
    ShardSlots { old, new }: ShardSlots<'_>,
    change: Resharding,
) -> Result<(), AdminError> {
    client
        .execute_typed(
            // 3 is the first transaction id. Before the switch no transaction of the new slots is
            // settled.
            sql!("resharding.sql", "begin_resharding"),
            &[
                (&old, Type::TEXT_ARRAY),
                (&new, Type::TEXT_ARRAY),
                (&count(change.from), Type::INT4),
                (&count(change.to), Type::INT4),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Records the change on the old slots, so that their relays stop and no relay takes the slots
/// again. Returns false and writes nothing if one of them has another unfinished operation.
pub async fn block_shards(
    client: &Client,
    old: &[String],
    change: Resharding,
) -> Result<bool, AdminError> {
    let written = client
        .execute_typed(
            sql!("resharding.sql", "block_shards"),
            &[
                (&old, Type::TEXT_ARRAY),
                (&count(change.from), Type::INT4),
                (&count(change.to), Type::INT4),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == old.len() as u64)
}

/// Lets relays of the old slots continue, before the switch.
pub async fn release_shards(client: &Client, old: &[String]) -> Result<(), AdminError> {
    client
        .execute_typed(sql!("resharding.sql", "release_shards"), &[(&old, Type::TEXT_ARRAY)])
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Chooses the position of the switch. It is after everything that the old slots may have
/// published, and not before the start of any new slot. Recording the position also writes to the
/// WAL, so that every reader of the WAL reaches the position.
pub async fn choose_switch(client: &Client, old: &[String]) -> Result<Lsn, AdminError> {
    let failed = || AdminError::sql("choose the position of the switch");
    let row = client
        .query_typed_one("SELECT pg_current_wal_insert_lsn() AS at", &[])
        .await
        .map_err(failed())?;
    let at: PgLsn = row.get("at");
    client
        .execute_typed(
            sql!("resharding.sql", "choose_switch"),
            &[(&old, Type::TEXT_ARRAY), (&at.to_string(), Type::TEXT)],
        )
        .await
        .map_err(failed())?;
    Ok(Lsn::new(at.into()))
}

/// Switches to the new slots, all or nothing, and returns the number of rows handed over. Each
/// recorded row moves to the new slot of its key. Everything before `at` is settled for the new
/// slots, which relays may then use.
///
/// Rows keep their ids, unless two rows of one new slot have the same id. Then one of them gets the
/// suffix that recording would have added.
///
/// # Errors
///
/// Another operation was begun on one of the slots.
pub async fn switch_shards(
    client: &mut SqlClient,
    ShardSlots { old, new }: ShardSlots<'_>,
    at: Lsn,
) -> Result<u64, AdminError> {
    let failed = || AdminError::sql("hand over to the new shards");
    let transaction = client.transaction().await.map_err(failed())?;
    let replays = unfinished_replays(&transaction, Some(old)).await?;
    if let Some(replay) = replays.iter().find(|it| it.needs_its_slot()) {
        let what = format!("replay {}", replay.id);
        return Err(AdminError::OperationUnfinished { slot: old.join(", "), what });
    }
    let handed_over = hand_over(&transaction, old, new).await?;
    let begun = transaction
        .execute_typed(
            sql!("resharding.sql", "switch_shards"),
            &[
                (&old, Type::TEXT_ARRAY),
                (&new, Type::TEXT_ARRAY),
                (&PgLsn::from(at.as_u64()), Type::PG_LSN),
            ],
        )
        .await
        .map_err(failed())?;
    let ended = transaction
        .execute_typed(sql!("resharding.sql", "end_old_shards"), &[(&old, Type::TEXT_ARRAY)])
        .await
        .map_err(failed())?;
    if (begun, ended) != (new.len() as u64, old.len() as u64) {
        return Err(AdminError::Sql(SqlError::UnexpectedValue {
            column: "app_outbox_relay.operation",
            value: format!("a change of {ended} and {begun} slots"),
            expected: "that of all old and new shards",
        }));
    }
    transaction.commit().await.map_err(failed())?;
    Ok(handed_over)
}

/// Moves recorded rows to the shard of their key, by the hash in the publications' filters. Rows
/// without a key could be on any shard, and move to the shard of the empty key.
async fn hand_over(
    transaction: &Transaction<'_>,
    old: &[String],
    new: &[String],
) -> Result<u64, AdminError> {
    let mask = count(u32::try_from(new.len()).unwrap_or(1)) - 1;
    transaction
        .execute_typed(
            sql!("resharding.sql", "hand_over"),
            &[(&old, Type::TEXT_ARRAY), (&new, Type::TEXT_ARRAY), (&mask, Type::INT4)],
        )
        .await
        .map_err(AdminError::sql("hand over what is recorded in dispatch state"))
}

/// Converts a number of shards, of which there are at most 64.
fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::FoundShards;

    fn found(counts: &[(u32, usize)]) -> Sharding {
        let of_count = counts.iter().map(|(count, slots)| {
            let with_slot = Shard::all(*count).take(*slots).collect();
            (*count, FoundShards { with_slot, on_record: Vec::new() })
        });
        Sharding { of_count: of_count.collect() }
    }

    const CHANGE: Resharding = Resharding { from: 2, to: 4 };

    fn begun(phase: ReshardingPhase) -> Option<UnfinishedResharding> {
        Some(UnfinishedResharding { change: CHANGE, phase })
    }

    #[test]
    fn it_begins_where_all_slots_of_one_number_are_there_and_another_is_wanted() {
        let next =
            |counts: &[(u32, usize)], wanted| ReshardingStep::next(&found(counts), None, wanted);
        assert_eq!(next(&[(2, 2)], 4), Ok(ReshardingStep::Begin(CHANGE)));
        assert_eq!(next(&[(4, 4)], 4), Ok(ReshardingStep::Nothing));
        assert_eq!(next(&[], 4), Err(ReshardingRefusal::NotSetUp));
        let incomplete = ReshardingRefusal::Incomplete { count: 4, missing: 1 };
        assert_eq!(next(&[(4, 3)], 2), Err(incomplete));
        let several = ReshardingRefusal::SeveralNumbers(1, 4);
        assert_eq!(next(&[(1, 1), (4, 4)], 4), Err(several));
    }

    #[test]
    fn a_begun_change_continues_or_is_cancelled_and_only_finishes_after_the_switch() {
        let both = found(&[(2, 2), (4, 1)]);
        let next = |phase, wanted| ReshardingStep::next(&both, begun(phase), wanted);
        let (preparing, switched) = (ReshardingPhase::Preparing, ReshardingPhase::Switched);
        assert_eq!(next(preparing, 4), Ok(ReshardingStep::GoOn(CHANGE)));
        assert_eq!(next(preparing, 2), Ok(ReshardingStep::CallOff(CHANGE)));
        assert_eq!(next(switched, 4), Ok(ReshardingStep::CleanUp(CHANGE)));
        for (phase, wanted) in [(preparing, 1), (switched, 2), (switched, 8)] {
            assert_eq!(next(phase, wanted), Err(ReshardingRefusal::AnotherBegun(CHANGE)));
        }
    }
}

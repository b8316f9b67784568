//! Preconditions that several commands check before they touch a slot: unfinished operations,
//! paused keys, shards, and the WAL position of a time.

use std::time::SystemTime;
use walrelay_pg_client::SqlError;

use pgoutput_parser::Lsn;
use walrelay_core::ColumnNames;
use walrelay_outbox_admin::recovery;
use walrelay_outbox_admin::{
    AdminError, OpenReplay, PausingReplay, Reset, SlotOperation, UnfinishedResharding,
    UpgradeStage, describe_unfinished, pausing_replays, read_loss, read_operation, read_resharding,
    read_sharding, read_slot_holder, unfinished_replay,
};
use walrelay_outbox_store::{
    Outbox, WalTime, first_position_after, position_at, read_recorded_system_identifier,
    read_relay_row, relay_tables,
};
use walrelay_pg_client::{ServerErrorKind, SqlClient, TableAccess, refuse_hidden_rows};
use walrelay_relay::observe::report::rfc3339;

use super::super::replay::record;
use crate::error::Error;

/// Refuses while an operation on the slot is unfinished. In the middle of one, the slot may be
/// missing, or about to be replaced.
pub(in crate::commands) async fn refuse_unfinished(
    client: &SqlClient,
    slot: &str,
) -> Result<(), Error> {
    let unfinished = match read_operation(client, slot).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => None,
        read => read?,
    };
    match unfinished {
        Some(operation) => Err(not_finished(client, slot, &operation).await?.into()),
        None => Ok(()),
    }
}

/// Builds the error that reports the unfinished operation.
pub(in crate::commands) async fn not_finished(
    client: &SqlClient,
    slot: &str,
    operation: &SlotOperation,
) -> Result<AdminError, AdminError> {
    let what = describe_unfinished(client, slot, operation).await?;
    Ok(unfinished_as((slot, operation), what))
}

/// Builds the error from a description that the caller made.
pub(in crate::commands) fn unfinished_as(
    (slot, operation): (&str, &SlotOperation),
    what: String,
) -> AdminError {
    let slot = slot.to_owned();
    match operation {
        SlotOperation::Upgrade(upgrade) => match upgrade.stage {
            UpgradeStage::Preparing => AdminError::UpgradeBegun { slot, what },
            UpgradeStage::Prepared => AdminError::UpgradePrepared { slot },
        },
        SlotOperation::Reset(_) | SlotOperation::Recovery(_) | SlotOperation::Resharding(_) => {
            AdminError::OperationUnfinished { slot, what }
        }
    }
}

/// Refuses while a replay pauses keys of this slot. Only this slot's relay can confirm the pauses
/// and publish the rows that are queued behind them.
pub(in crate::commands) async fn refuse_while_held(
    client: &SqlClient,
    slot: &str,
) -> Result<(), Error> {
    let holding = pausing_replays(client, slot).await?;
    let Some(PausingReplay { id, keys, .. }) = holding.first() else { return Ok(()) };
    Err(Error::Unfinished {
        what: format!("{keys} key(s) of slot {slot:?} are held for replay {id}, which is not over"),
        hint: record::unfinished_hint(id),
    })
}

/// Refuses while a replay is unfinished that could not continue once these slots, their
/// anchors or their server change.
pub(in crate::commands) async fn refuse_open_replay(
    client: &SqlClient,
    slots: &[String],
) -> Result<(), Error> {
    let open = unfinished_replay(client, slots).await?;
    let Some(OpenReplay { id, slot }) = open else { return Ok(()) };
    let what =
        format!("replay {id} of slot {slot:?} is not finished, and could not go on afterwards");
    Err(Error::Unfinished { what, hint: record::unfinished_hint(&id) })
}

/// Refuses while `walrelay reshard` runs: the command needs the old slots unchanged, even before it
/// has recorded the change.
pub(in crate::commands) async fn refuse_resharding(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<(), Error> {
    let begun = match read_resharding(client, outbox).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => None,
        read => read?,
    };
    let Some(UnfinishedResharding { change, .. }) = begun else { return Ok(()) };
    let slot = outbox.slot.clone();
    let what = SlotOperation::Resharding(change).describe(&slot);
    Err(AdminError::OperationUnfinished { slot, what }.into())
}

/// Refuses if row level security hides the relay's own tables. Callers check this before they
/// report about the outbox or change it.
pub(in crate::commands) async fn refuse_hidden_state(client: &SqlClient) -> Result<(), AdminError> {
    Ok(refuse_hidden_rows(client, &relay_tables(), TableAccess::Read).await?)
}

/// Returns every shard that exists or is recorded, whichever shard was named. Without shards it
/// returns the outbox itself. During a change of the shard count it returns the old and the new
/// shards.
pub(in crate::commands) async fn every_shard(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<Vec<Outbox>, Error> {
    refuse_hidden_state(client).await?;
    let counts: Vec<u32> = read_sharding(client, outbox).await?.of_count.into_keys().collect();
    Ok(match counts.is_empty() {
        true => vec![outbox.clone()],
        false => counts.into_iter().flat_map(|count| outbox.shards(count)).collect(),
    })
}

/// Refuses a single-slot command without `--shard`, or with a shard that does not exist, when the
/// outbox is sharded.
pub(in crate::commands) async fn refuse_other_shards(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<(), Error> {
    refuse_hidden_state(client).await?;
    let (sharding, wanted) = (read_sharding(client, outbox).await?, outbox.shard);
    match sharding.other_than(wanted.count()) {
        Some(count) if !sharding.has(wanted.count()) => {
            Err(AdminError::OtherShard { count, wanted }.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a database without the outbox tables. The user may have named the consumer's database,
/// where nobody should create an outbox.
pub(in crate::commands) async fn refuse_without_outbox(
    client: &SqlClient,
    outbox: &Outbox,
) -> Result<(), Error> {
    let mut names: Vec<String> = outbox.tables.iter().map(ToString::to_string).collect();
    names.push("public.app_outbox_relay".to_owned());
    let sql = "SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS n(name, i)
                WHERE to_regclass(name) IS NULL ORDER BY i LIMIT 1";
    let action = "look for the outbox".to_owned();
    let missing = client.query_opt(sql, &[&names]).await;
    match missing.map_err(|source| SqlError::Sql { action, source })? {
        Some(row) => Err(Error::NoOutbox { table: row.get(0) }),
        None => Ok(()),
    }
}

/// Refuses a slot without a row in `app_outbox_relay`: only that row shows which rows are settled.
pub(in crate::commands) async fn refuse_unrecorded(
    client: &SqlClient,
    slot: &str,
) -> Result<(), Error> {
    match read_relay_row(client, slot).await? {
        Some(_) => Ok(()),
        None => Err(Error::Unfit {
            what: format!(
                "nothing is recorded about slot {slot:?}, so no row is known to be settled"
            ),
            hint: "let `walrelay run` record it first, or correct --slot",
        }),
    }
}

/// Returns a position before every commit of `time` or later.
pub(in crate::commands) async fn at_time(
    client: &SqlClient,
    slot: &str,
    time: SystemTime,
) -> Result<Lsn, Error> {
    let system = read_recorded_system_identifier(client, slot).await?;
    match position_at(client, &system, time).await? {
        Some(noted) => Ok(noted.lsn),
        None => {
            let earliest = first_position_after(client, &system, time).await?;
            Err(Error::Unfit {
                what: unknown_time(time, earliest),
                hint: "name a later time, or a position with its LSN; for older rows start from an anchor (`walrelay anchor \
                       list`), or publish them from the table (`walrelay replay start --source table --from-time`)",
            })
        }
    }
}

/// Explains why no position is known for a time, and names the earliest time with a known position.
fn unknown_time(time: SystemTime, earliest: Option<WalTime>) -> String {
    let time = rfc3339(time);
    match earliest {
        Some(WalTime { at, lsn }) => format!(
            "no position is known from {time} or before; the earliest known one is {lsn}, from {}",
            rfc3339(at)
        ),
        None => format!(
            "no position is known from {time} or before, nor a later one: the relay notes one a minute while it runs"
        ),
    }
}

/// Adds the session that holds the slot to an error. A relay and another command need different
/// next steps.
pub(in crate::commands) async fn with_slot_holder<T>(
    client: &SqlClient,
    done: Result<T, Error>,
) -> Result<T, Error> {
    let error = match done {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    let Some(pid) = error.holder_pid() else { return Err(error) };
    match read_slot_holder(client, pid).await {
        Ok(holder) => {
            let holder = holder.to_string();
            Err(Error::Held { holder, source: Box::new(error) })
        }
        Err(_) => Err(error),
    }
}

/// Builds the error for a cancelled reset whose anchor is gone. The slot is either unchanged or
/// lost.
pub(in crate::commands) async fn given_up(client: &SqlClient, slot: &str, reset: &Reset) -> Error {
    let what = reset.describe(slot);
    match read_loss(client, slot).await {
        Err(error) => error.into(),
        Ok(Some(lost)) => {
            let problem = format!("{}; {what} was given up: its anchor is gone", lost.problem);
            AdminError::SlotLost { slot: slot.to_owned(), problem }.into()
        }
        Ok(None) => Error::Unfit {
            what: format!("{what} was given up: its anchor is gone; the slot stands where it was"),
            hint: "start the relay, which goes on as before; `walrelay anchor list` shows which anchors there are",
        },
    }
}

/// Reports how many rows of each table are published before the slot streams.
pub(in crate::commands) async fn unpublished_rows_text(
    client: &SqlClient,
    outbox: &Outbox,
    columns: &ColumnNames,
) -> Result<String, Error> {
    let mut text = String::new();
    let Some((_, rest)) = recovery::rest(client, &outbox.slot).await? else {
        return Ok(text);
    };
    for name in &outbox.tables {
        let table = recovery::published_table(client, (outbox, name), columns).await?;
        let rows = rest.gap.count(client, &table).await.map_err(Error::Store)?;
        text.push_str(&format!("may not have been published: {rows} row(s) of {name}\n"));
    }
    Ok(text)
}

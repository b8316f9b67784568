//! The record of a replay or backfill: its id, how to resume or abandon it, and the messages about
//! it.

use walrelay_errors::Chain;
use walrelay_outbox_admin::replay::{DeadRows, Destination, Tally, replay_slot_name};
use walrelay_outbox_admin::{
    AdminError, ReplayEnd, ReplayRow, end_session, give_up_replay, note_skip_dead, read_replay,
    take_replay,
};
use walrelay_outbox_store::{DispatchStore, KeyPauseCounts, Outbox};
use walrelay_pg_client::SqlError;
use walrelay_pg_client::{ServerErrorKind, SqlClient};
use walrelay_pg_replication::{drop_slot, read_slot};
use walrelay_relay::seed::random_seed;

use crate::error::Error;

/// Returns the hint for an unfinished replay that blocks another command.
pub(in crate::commands) fn unfinished_hint(id: &str) -> String {
    format!(
        "let it finish (`walrelay replay resume {id}`), or give it up: `walrelay replay cancel {id}`"
    )
}

/// Returns the id of a new replay.
pub(in crate::commands) fn new_id() -> String {
    format!("{:08x}", random_seed() & u64::from(u32::MAX))
}

/// Locks and returns an unfinished replay of one of these slots that no other process runs. The
/// error for an unknown id names `slot`.
pub(in crate::commands) async fn take_up(
    client: &SqlClient,
    (command, id): (&str, &str),
    (slot, slots): (&str, &[&str]),
) -> Result<ReplayRow, Error> {
    let row = take(client, id, slots).await?.ok_or_else(|| missing((command, id), slot))?;
    let own = row.command();
    if own != command {
        let source = if own == "backfill" { "table" } else { "log" };
        return Err(Error::Unfinished {
            what: format!("{id} is a {own}: its rows are read from the {source}"),
            hint: format!("take it up with `walrelay replay resume {id}`"),
        });
    }
    refuse_finished((command, id), &row)?;
    Ok(row)
}

/// Locks the replay and returns its row, if it belongs to one of these slots.
async fn take(client: &SqlClient, id: &str, slots: &[&str]) -> Result<Option<ReplayRow>, Error> {
    // The lock comes before the read, because the previous holder may have made further progress.
    if !take_replay(client, id).await? {
        return Err(Error::ReplayTaken { id: id.to_owned() });
    }
    let row = read_replay(client, id).await?;
    Ok(row.filter(|row| slots.contains(&row.slot.as_str())))
}

/// Records `--skip-dead`, so that this run and all later runs leave out rows that Pub/Sub would
/// never accept.
pub(in crate::commands) async fn record_skip_dead(
    client: &SqlClient,
    (id, said): (&str, Option<DeadRows>),
    now: &mut DeadRows,
) -> Result<(), Error> {
    if said == Some(DeadRows::LeaveOut) {
        note_skip_dead(client, id).await?;
        *now = DeadRows::LeaveOut;
    }
    Ok(())
}

/// Returns the command that resumes the replay. If the record cannot be read, it returns `replay`,
/// which can abandon both kinds.
pub(in crate::commands) async fn command_of(
    client: &tokio_postgres::Client,
    id: &str,
) -> &'static str {
    match read_replay(client, id).await {
        Ok(Some(row)) => row.command(),
        Ok(None) | Err(_) => "replay",
    }
}

pub(in crate::commands) fn missing((command, id): (&str, &str), slot: &str) -> Error {
    Error::Unfit {
        what: format!("slot {slot:?} has no {command} {id:?}"),
        hint: "the id stands in the line that told how to go on",
    }
}

fn refuse_finished((command, id): (&str, &str), row: &ReplayRow) -> Result<(), Error> {
    let ended = match row.end {
        None => return Ok(()),
        Some(ReplayEnd::Done) => "is done",
        Some(ReplayEnd::GivenUp) => "was given up",
    };
    let what = format!("{command} {id} {ended}: {} row(s) were published", rows(row));
    Err(Error::Unfit { what, hint: "begin a new one" })
}

/// Returns the number of published rows. After a crash, rows published since the last record are
/// not counted.
fn rows(row: &ReplayRow) -> String {
    let is_in_place = matches!(Destination::from_json(&row.request), Ok(Destination::InPlace));
    match (row.end, is_in_place) {
        (Some(ReplayEnd::Done), _) | (_, true) => row.rows.to_string(),
        (Some(ReplayEnd::GivenUp) | None, false) => format!("at least {}", row.rows),
    }
}

/// Abandons a replay, even if its anchor is gone. Its keys continue without the unpublished rows,
/// and published rows stay published.
///
/// # Errors
///
/// No such replay is unfinished, another process runs it, or the server refuses.
pub(in crate::commands) async fn abandon(
    client: &mut SqlClient,
    (command, id): (&str, &str),
    outbox: &Outbox,
) -> Result<String, Error> {
    let row = take(client, id, &[outbox.base_slot(), &outbox.slot]).await?;
    let slot = row.as_ref().map_or(&outbox.slot, |row| &row.slot).clone();
    let store = DispatchStore::new(slot);
    match &row {
        Some(row) => refuse_finished((command, id), row)?,
        // If somebody deleted the record, its keys are still paused.
        None => {
            let KeyPauseCounts { wanted, held, .. } = store.replay_holds(client, id).await?;
            if wanted + held == 0 {
                return Err(missing((command, id), &outbox.slot));
            }
        }
    }
    end_copy(client, &replay_slot_name(store.slot(), id)).await?;
    let request = row.as_ref().map(|row| Destination::from_json(&row.request));
    let told = match (request, &row) {
        (Some(Ok(Destination::Topic(topic))), Some(row)) => {
            give_up_replay(client, id, row.rows).await?;
            format!("{} row(s) were published to {topic}, and stay there", rows(row))
        }
        _ => {
            let failed = |source| SqlError::Sql { action: "give a replay up".to_owned(), source };
            let transaction = client.transaction().await.map_err(failed)?;
            let removed = store.remove_replayed(&transaction, id).await?;
            store.lift_pauses(&transaction, id).await?;
            let published = store.replayed_rows(transaction.client(), id).await?.finished;
            give_up_replay(transaction.client(), id, published).await?;
            transaction.commit().await.map_err(failed)?;
            format!("{removed} row(s) were taken back, {published} were published")
        }
    };
    let what = row.map_or(command, |row| row.command());
    Ok(format!("{what} {id} is given up: {told}\n"))
}

/// Ends the session that holds the copy of the anchor. The copy is temporary, but the server may
/// not have noticed that its client is gone.
async fn end_copy(client: &SqlClient, slot: &str) -> Result<(), Error> {
    let Some(state) = read_slot(client, slot).await? else { return Ok(()) };
    let ended = match state.active_pid {
        Some(pid) => end_session(client, pid).await.map(drop),
        None => drop_slot(client, slot).await.map_err(AdminError::from),
    };
    match ended {
        Err(error) if error.server_kind() == Some(ServerErrorKind::Privilege) => {
            tracing::warn!(slot, error = %Chain(&error), "the slot goes once the server notices that its process is gone");
            Ok(())
        }
        ended => Ok(ended?),
    }
}

/// Explains how consumers handle copies of events.
pub(in crate::commands) const COPIES: &str = "a consumer that has seen these events skips the copies; `walrelay consumer rebuild NAME --key KEY` \
     applies a key's events again\n";

/// Returns a line about the rows that were left out, or an empty string.
pub(in crate::commands) fn left_out(tally: &Tally) -> String {
    match tally.left_out() {
        0 => String::new(),
        dead => {
            format!("left out: {dead} row(s) that Pub/Sub would never take, named in the log\n")
        }
    }
}

//! `walrelay upgrade prepare --carry-over`: moves the slot to the very end of the WAL, where pg_upgrade accepts
//! it.
//!
//! pg_upgrade refuses a slot that has not consumed every commit, even commits that the publication
//! excludes. A relay records its settled position before it confirms that position. Hence the
//! commit of the record is always unconsumed.

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::{AdminError, read_loss, unconfirmed_transactions};
use walrelay_outbox_store::{
    Outbox, advance_relay_row, read_anchors, read_relay_row, read_wal_end,
};
use walrelay_pg_client::SqlError;
use walrelay_pg_client::{ServerErrorKind, SqlClient};
use walrelay_pg_replication::{SlotError, advance_slot, read_slot, read_version};

use super::super::shared::preconditions::{
    every_shard, refuse_open_replay, refuse_resharding, refuse_unfinished,
};
use crate::error::Error;

/// The first version whose pg_upgrade carries slots over, as a `server_version_num`.
const CARRIED_OVER_SINCE: i32 = 170_000;

/// Most passes. A pass repeats if the server wrote a running-transactions record meanwhile, which
/// happens at most every 15 seconds.
const PASSES_MAX: u32 = 10;

/// Moves every slot of the outbox to the end of the WAL, past changes that the publication
/// excludes.
pub(super) async fn carry_over(client: &SqlClient, outbox: &Outbox) -> Result<String, Error> {
    let version = read_version(client).await?;
    if version < CARRIED_OVER_SINCE {
        return Err(Error::Unfit {
            what: format!("pg_upgrade carries no slot of Postgres {} over", version / 10_000),
            hint: "`walrelay upgrade prepare`, which drops the slot, and after the upgrade `walrelay slot recover`",
        });
    }
    let shards = every_shard(client, outbox).await?;
    for shard in &shards {
        refuse_unready(client, shard).await?;
    }
    // The record must be on disk, because decoding reads only flushed WAL.
    let durably = "SET synchronous_commit = local";
    let set = client.batch_execute(durably).await;
    set.map_err(|source| SqlError::Sql { action: durably.to_owned(), source })?;
    for _ in 0..PASSES_MAX {
        let end = read_wal_end(client).await?.unwrap_or(Lsn::ZERO);
        for shard in &shards {
            move_to(client, shard, end).await?;
        }
        if !note(client, &shards).await? {
            return Ok(told(&shards, end));
        }
    }
    Err(Error::Unfit {
        what: "the server writes to its log all the time".to_owned(),
        hint: "stop what writes to it, and run this again",
    })
}

/// Refuses a slot that pg_upgrade would refuse, and operations that could not continue after the
/// upgrade.
async fn refuse_unready(client: &SqlClient, outbox: &Outbox) -> Result<(), Error> {
    let slot = &outbox.slot;
    refuse_unfinished(client, slot).await?;
    refuse_resharding(client, outbox).await?;
    if let Some(lost) = read_loss(client, slot).await? {
        return Err(AdminError::SlotLost { slot: slot.clone(), problem: lost.problem }.into());
    }
    if read_slot(client, slot).await?.is_none() {
        return Err(AdminError::Slot(SlotError::SlotMissing { slot: slot.clone() }).into());
    }
    if read_relay_row(client, slot).await?.is_none() {
        return Err(Error::Unfit {
            what: format!("nothing is on record about slot {slot:?}: no relay has ever used it"),
            hint: "let `walrelay run` begin, or correct --slot",
        });
    }
    refuse_open_replay(client, std::slice::from_ref(slot)).await?;
    let anchors = read_anchors(client, slot).await?;
    if anchors.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = anchors.iter().map(|anchor| anchor.name.as_str()).collect();
    Err(Error::Unfit {
        what: format!(
            "anchors of slot {slot:?} stand back, and pg_upgrade refuses them: {}",
            names.join(", ")
        ),
        hint: "`walrelay anchor drop NAME`, for each of them",
    })
}

/// Moves the slot to `end`, and refuses if the slot has unconfirmed rows. The caller read `end`
/// before the check, so rows committed after the check are after `end`.
async fn move_to(client: &SqlClient, outbox: &Outbox, end: Lsn) -> Result<(), Error> {
    let Outbox { slot, publication, .. } = outbox;
    let waiting = match unconfirmed_transactions(client, slot, publication).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::Missing) => {
            return Err(Error::PublicationMissing { publication: publication.clone() });
        }
        read => read?,
    };
    let rows: u64 = waiting.iter().map(|transaction| transaction.rows).sum();
    if rows > 0 {
        return Err(Error::Unfit {
            what: format!("slot {slot:?} holds {rows} row(s) that are not confirmed"),
            hint: "stop the producers, then `walrelay run --until-caught-up` publishes them",
        });
    }
    let confirmed = read_slot(client, slot).await?.and_then(|state| state.confirmed_flush_lsn);
    if confirmed.is_some_and(|confirmed| confirmed < end) {
        advance_slot(client, slot, end).await?;
    }
    Ok(())
}

/// Records the confirmed position of each slot whose `restart_lsn` has passed the recorded
/// position. If the upgrade did not happen, the relay would otherwise take the slot for another one
/// of the same name. Returns true if a record was written: its commit is now unconsumed, and needs
/// another pass.
async fn note(client: &SqlClient, shards: &[Outbox]) -> Result<bool, Error> {
    let mut is_noted = false;
    for Outbox { slot, .. } in shards {
        let (state, row) = (read_slot(client, slot).await?, read_relay_row(client, slot).await?);
        let (Some(state), Some(row)) = (state, row) else { continue };
        if state.restart_lsn > Some(row.settled_lsn)
            && let Some(confirmed) = state.confirmed_flush_lsn
        {
            advance_relay_row(client, slot, confirmed).await?;
            is_noted = true;
        }
    }
    Ok(is_noted)
}

fn told(shards: &[Outbox], end: Lsn) -> String {
    let mut text = String::new();
    for Outbox { slot, .. } in shards {
        text.push_str(&format!("nothing waits: slot {slot}, at {end}\n"));
    }
    text.push_str(
        "next: stop the server now, and run pg_upgrade; producers and relays stay stopped. It refuses if this database \
         was written to since: then start the old server, and run this again\n\
         then: start the new server, walrelay upgrade finish, and the relay\n\
         instead of an upgrade: start the relay, which goes on here\n",
    );
    text
}

//! Moves the slots to the very end of the WAL, where pg_upgrade accepts them.
//!
//! pg_upgrade refuses a slot that has not consumed every commit, even commits that the publication
//! excludes. A relay records its settled position before it confirms that position. Hence the
//! commit of the record is always unconsumed.

use pgoutput_parser::Lsn;
use walrelay_outbox_replay::{existing_slot, unconfirmed_transactions};
use walrelay_outbox_store::{
    Outbox, advance_relay_row, read_anchors, read_relay_row, read_wal_end,
};
use walrelay_pg_client::{ServerErrorKind, SqlClient, SqlError};
use walrelay_pg_replication::{advance_slot, read_slot, read_version};

use super::operator::{AdminSession, Change, Operator};
use super::preconditions::{
    every_shard, refuse_open_replay, refuse_resharding, refuse_unfinished, refuse_unrecorded,
};
use super::protocol_error::ProtocolError;

/// The first version whose pg_upgrade carries slots over, as a `server_version_num`.
const CARRIED_OVER_SINCE: i32 = 170_000;

/// Most passes. A pass repeats if the server wrote a running-transactions record meanwhile, which
/// happens at most every 15 seconds.
const PASSES_MAX: u32 = 10;

/// Slots that pg_upgrade carries over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedOver {
    /// The slots.
    pub slots: Vec<String>,
    /// The end of the WAL, where the slots are.
    pub end: Lsn,
}

/// Moves every slot of the outbox to the end of the WAL, past changes that the publication
/// excludes. Returns `None` after a dry run.
///
/// # Errors
///
/// The version of Postgres cannot do this, or a slot has unconfirmed rows or anchors. Also if an
/// operation is unfinished, or the server refuses.
pub async fn carry_over<O: Operator>(
    session: &AdminSession<'_, O>,
    outbox: &Outbox,
) -> Result<Option<CarriedOver>, ProtocolError> {
    let client = session.client;
    let version = read_version(client).await?;
    if version < CARRIED_OVER_SINCE {
        return Err(ProtocolError::CarryOverUnsupported { major: version / 10_000 });
    }
    let shards = every_shard(client, outbox).await?;
    for shard in &shards {
        refuse_unready(client, shard).await?;
        refuse_unconfirmed(client, shard).await?;
    }
    let slots: Vec<String> = shards.iter().map(|shard| shard.slot.clone()).collect();
    let change = async || Ok(Change::CarryOver { slots: slots.clone() });
    if !session.agree(change).await? {
        return Ok(None);
    }
    let end = move_to_end(client, &shards).await?;
    Ok(Some(CarriedOver { slots, end }))
}

async fn move_to_end(client: &SqlClient, shards: &[Outbox]) -> Result<Lsn, ProtocolError> {
    // The record must be on disk, because decoding reads only flushed WAL.
    let durably = "SET synchronous_commit = local";
    client.batch_execute(durably).await.map_err(SqlError::sql(durably))?;
    for _ in 0..PASSES_MAX {
        let end = read_wal_end(client).await?.unwrap_or(Lsn::ZERO);
        for shard in shards {
            move_to(client, shard, end).await?;
        }
        if !record_positions(client, shards).await? {
            return Ok(end);
        }
    }
    Err(ProtocolError::WalNeverQuiet)
}

/// Refuses a slot that pg_upgrade would refuse, and operations that could not continue after the
/// upgrade.
async fn refuse_unready(client: &SqlClient, outbox: &Outbox) -> Result<(), ProtocolError> {
    let slot = &outbox.slot;
    refuse_unfinished(client, slot).await?;
    refuse_resharding(client, outbox).await?;
    existing_slot(client, slot).await?;
    refuse_unrecorded(client, slot).await?;
    refuse_open_replay(client, std::slice::from_ref(slot)).await?;
    let anchors = read_anchors(client, slot).await?;
    if anchors.is_empty() {
        return Ok(());
    }
    let names = anchors.into_iter().map(|anchor| anchor.name).collect();
    Err(ProtocolError::AnchorsInTheWay { slot: slot.clone(), names })
}

/// Refuses a slot with unconfirmed rows.
async fn refuse_unconfirmed(client: &SqlClient, outbox: &Outbox) -> Result<(), ProtocolError> {
    let Outbox { slot, publication, .. } = outbox;
    let transactions = match unconfirmed_transactions(client, slot, publication).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::Missing) => {
            return Err(ProtocolError::PublicationMissing { publication: publication.clone() });
        }
        read => read?,
    };
    match transactions.iter().map(|transaction| transaction.rows).sum() {
        0 => Ok(()),
        rows => Err(ProtocolError::RowsUnconfirmed { slot: slot.clone(), rows }),
    }
}

/// Moves the slot to `end`, and refuses if the slot has unconfirmed rows. The caller read `end`
/// before the check, so rows committed after the check are after `end`.
async fn move_to(client: &SqlClient, outbox: &Outbox, end: Lsn) -> Result<(), ProtocolError> {
    refuse_unconfirmed(client, outbox).await?;
    let slot = &outbox.slot;
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
async fn record_positions(client: &SqlClient, shards: &[Outbox]) -> Result<bool, ProtocolError> {
    let mut is_recorded = false;
    for Outbox { slot, .. } in shards {
        let (state, row) = (read_slot(client, slot).await?, read_relay_row(client, slot).await?);
        let (Some(state), Some(row)) = (state, row) else { continue };
        if state.restart_lsn > Some(row.settled_lsn)
            && let Some(confirmed) = state.confirmed_flush_lsn
        {
            advance_relay_row(client, slot, confirmed).await?;
            is_recorded = true;
        }
    }
    Ok(is_recorded)
}

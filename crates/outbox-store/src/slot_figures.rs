//! Figures of one slot for operators: the slot, its settled position, and parked rows.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::anchor::read_anchor_states;
use crate::dispatch::{DispatchStore, IncrementalCount};
use crate::relay_row::read_relay_row;
use crate::store::SlotFigures;
use crate::store_error::StoreError;
use walrelay_pg_client::sql;
use walrelay_pg_replication::{COMMIT_WAIT, SlotState, Writer, read_slot};

/// Counts the next part of dispatch state, and reads the slot.
pub async fn read_survey(
    client: &Client,
    store: &DispatchStore,
    counting: &mut IncrementalCount,
) -> Result<SlotFigures, StoreError> {
    let relay_row = read_relay_row(client, store.slot()).await?;
    let slot = read_slot(client, store.slot()).await?;
    let lag_seconds = match &slot {
        Some(slot) => lag_seconds(client, slot).await?,
        None => None,
    };
    let commit_wait_seconds = commit_wait_seconds(client).await?;
    let oldest_writer = oldest_writer(client).await?;
    let anchors = read_anchor_states(client, store.slot()).await?;
    store.count_further(client, counting).await?;
    let (counts, is_counting) = (counting.counts(), counting.is_under_way());
    Ok(SlotFigures {
        counts,
        is_counting,
        slot,
        lag_seconds,
        commit_wait_seconds,
        oldest_writer,
        relay_row,
        anchors,
    })
}

async fn commit_wait_seconds(client: &Client) -> Result<f64, StoreError> {
    // spliced: COMMIT_WAIT, which the monitor of the WAL reads also.
    let sql = format!("SELECT {COMMIT_WAIT} AS seconds");
    let read = client.query_typed_one(&sql, &[]).await;
    let row = read.map_err(StoreError::sql("look for commits that wait for a standby"))?;
    Ok(row.get("seconds"))
}

async fn oldest_writer(client: &Client) -> Result<Option<Writer>, StoreError> {
    // For sessions of other roles only the process is visible, unless the role has
    // pg_read_all_stats.
    let sql = sql!("slot_figures.sql", "oldest_writer");
    let row = client
        .query_typed_opt(sql, &[])
        .await
        .map_err(StoreError::sql("look for the oldest writing transaction"))?;
    Ok(row.map(|row| Writer {
        pid: row.get("pid"),
        prepared: row.get("prepared"),
        seconds: row.get("seconds"),
    }))
}

/// Returns the age of the confirmed position in seconds, as the server measures it for the slot's
/// session. None if the slot has no session or the role may not see it.
async fn lag_seconds(client: &Client, slot: &SlotState) -> Result<Option<f64>, StoreError> {
    let Some(pid) = slot.active_pid else { return Ok(None) };
    let sql = sql!("slot_figures.sql", "lag_seconds");
    let row = client
        .query_typed_opt(sql, &[(&pid, Type::INT4)])
        .await
        .map_err(StoreError::sql("read the lag of the replication session"))?;
    Ok(row.and_then(|row| row.get("seconds")))
}

//! `walrelay upgrade prepare`: publishes and confirms everything, then drops the slot and the
//! anchors, because a server with slots cannot be upgraded.
//!
//! ```text
//! recorded ──▶ relays release the slot ──▶ drained, confirmed ──▶ anchors and slot dropped ──▶ upgrade ──▶ slot recover
//! ```
//!
//! The command holds the lock of the slot's operation from before the operation is recorded until
//! the slot is dropped. A relay that finds the record without the lock knows that the command has
//! died, and cancels the operation.
//!
//! Producers need not stop. Rows that they write after the drain are above the settled horizon, and
//! a recovery publishes them from the table. Until the upgrade relays wait, and create no slot.

use std::time::Duration;
use walrelay_pg_client::SqlError;

use tokio::time::{Instant, sleep};
use walrelay_outbox_admin::{
    AdminError, SlotOperation, UpgradePreparation, UpgradeStage, begin_upgrade, give_up_operation,
    read_loss, read_operation, take_operation,
};
use walrelay_outbox_store::{read_anchors, read_recorded_system_identifier, read_relay_row};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::{drop_slot, read_slot, read_version};
use walrelay_relay::failpoint;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;

use super::shared::consent::may_change;
use super::shared::draining::{drain, publisher, wait_until_free};
use super::shared::preconditions::{refuse_open_replay, refuse_other_shards, refuse_unfinished};
use crate::config::{ChangeMode, RunConfig};
use crate::error::Error;
use crate::output::print;

/// Drains and drops the slot, and prints the next step. Until the slot is dropped, a failure leaves
/// everything unchanged.
///
/// # Errors
///
/// The slot is missing or lost, another operation is unfinished, a relay does not release the slot,
/// Pub/Sub refuses, or the command was interrupted.
pub async fn execute(
    (config, mode): (RunConfig, ChangeMode),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let settings = &config.settings;
    let client = connect_sql(&settings.connect).await?;
    let done = Box::pin(prepare(&client, (settings, mode), shutdown)).await;
    client.close().await;
    print(&done?)
}

async fn prepare(
    client: &SqlClient,
    (settings, mode): (&Settings, ChangeMode),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let slot = settings.relay.outbox.slot.as_str();
    refuse_other_shards(client, &settings.relay.outbox).await?;
    take(client, slot, shutdown).await?;
    let operation = read_operation(client, slot).await?;
    let begun = match operation {
        Some(SlotOperation::Upgrade(upgrade)) => Some(upgrade),
        Some(_) | None => {
            refuse_unfinished(client, slot).await?;
            None
        }
    };
    let is_begun = begun.is_some();
    if let Some(upgrade) = begun
        && read_slot(client, slot).await?.is_none()
    {
        let (here, version) =
            (read_recorded_system_identifier(client, slot).await?, read_version(client).await?);
        return match upgrade.has_happened(&here, version) {
            true => Ok(UPGRADED.to_owned()),
            // An earlier run died between dropping the slot and recording the drop.
            false => told(client, slot, 0).await,
        };
    }
    if let Some(lost) = read_loss(client, slot).await? {
        return Err(AdminError::SlotLost { slot: slot.to_owned(), problem: lost.problem }.into());
    }
    if read_relay_row(client, slot).await?.is_none() {
        return Err(Error::Unfit {
            what: format!("nothing is on record about slot {slot:?}: no relay has ever used it"),
            hint: "let `walrelay run` begin, or correct --slot",
        });
    }
    if !is_begun {
        refuse_open_replay(client, &[slot.to_owned()]).await?;
        let anchors = read_anchors(client, slot).await?.len();
        let what =
            format!("publish every pending row, then drop slot {slot} and {anchors} anchor(s)");
        if !may_change((&what, mode), shutdown).await? {
            return Ok(String::new());
        }
    }
    let system_identifier = read_recorded_system_identifier(client, slot).await?;
    let (version, stage) = (read_version(client).await?, UpgradeStage::Preparing);
    let upgrade = UpgradePreparation { system_identifier, version, stage };
    begin_upgrade(client, slot, &upgrade).await?;
    failpoint::hit("upgrade-begun");
    match Box::pin(drain_slot(client, settings, shutdown)).await {
        Ok(()) => {}
        Err(error) => {
            // Nothing is dropped yet, so relays continue as before.
            give_up_operation(client, slot).await?;
            return Err(error);
        }
    }
    failpoint::hit("upgrade-drained");
    let anchors = read_anchors(client, slot).await?;
    for anchor in &anchors {
        drop_slot(client, &anchor.slot.name).await?;
    }
    failpoint::hit("upgrade-unanchored");
    drop_slot(client, slot).await?;
    failpoint::hit("upgrade-dropped");
    told(client, slot, anchors.len()).await
}

/// Printed when the server is already upgraded.
const UPGRADED: &str = "the server is not the one that was prepared: it is upgraded\n\
     next: walrelay slot recover, unless relays run with --on-slot-lost recover, which do it by themselves\n";

/// Longest wait for the lock. Relays hold the lock only while they read the record.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause between lock attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Locks the slot's operation until the connection ends.
async fn take(client: &SqlClient, slot: &str, shutdown: &Shutdown) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    while !take_operation(client, slot).await? {
        if Instant::now() >= until {
            refuse_unfinished(client, slot).await?;
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = shutdown.requested() => return Err(Error::Interrupted),
        }
    }
    Ok(())
}

/// Publishes and confirms everything that was committed before.
async fn drain_slot(
    client: &SqlClient,
    settings: &Settings,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let slot = settings.relay.outbox.slot.as_str();
    wait_until_free(client, slot, shutdown).await?;
    let publisher = publisher(settings, shutdown).await?;
    Box::pin(drain(settings, publisher, Until::CaughtUp, shutdown)).await?;
    wait_until_free(client, slot, shutdown).await
}

async fn told(client: &SqlClient, slot: &str, anchors: usize) -> Result<String, Error> {
    let row = read_relay_row(client, slot).await?;
    let horizon = row.map_or(0, |row| row.settled_xid);
    let mut text = format!(
        "drained: everything committed before is published\ndropped: slot {slot} and {anchors} anchor(s)\n\
         on record: every transaction below {horizon} is settled\n"
    );
    let others = "SELECT slot_name::text FROM pg_replication_slots WHERE NOT temporary ORDER BY 1";
    let others = client
        .query_typed(others, &[])
        .await
        .map_err(|source| SqlError::Sql { action: "look for other slots".to_owned(), source });
    let others: Vec<String> = others?.iter().map(|other| other.get(0)).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        text.push_str(&format!("other slots stand in the way of an upgrade too: {others}\n"));
    }
    text.push_str(
        "next: upgrade the server; producers need not stop, and relays wait\n\
         then: walrelay slot recover, unless relays run with --on-slot-lost recover, which do it by themselves\n\
         instead of an upgrade: walrelay slot recover goes on here\n",
    );
    Ok(text)
}

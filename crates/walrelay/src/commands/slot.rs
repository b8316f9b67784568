//! `walrelay slot` and `walrelay upgrade`, as far as they work on the slot. Only explicit commands
//! create or drop slots (I9).

mod carry_over;
mod reset;
mod skipped_rows;

use tokio_postgres::error::SqlState;
use walrelay_errors::{Code, Coded};
use walrelay_outbox_admin::lifecycle::operation_resumer::OperationResumer;
use walrelay_outbox_admin::lifecycle::outcome::Outcome;
use walrelay_outbox_admin::lookahead::{MoveTarget, Question, look_ahead};
use walrelay_outbox_admin::recovery;
use walrelay_outbox_admin::{
    AdminError, SlotOperation, UpgradePreparation, UpgradeStage, adopt_slot, count_unsettled_rows,
    read_loss, read_operation, unconfirmed_transactions,
};
use walrelay_outbox_store::{
    Outbox, advance_relay_row, delete_relay_row, is_same_origin, read_recorded_system_identifier,
    read_relay_row,
};
use walrelay_pg_client::{ServerErrorKind, SqlClient, connect_sql};
use walrelay_pg_replication::{
    SlotError, advance_slot, drop_slot, read_server_identity, read_slot,
};
use walrelay_relay::observe::health::Health;
use walrelay_relay::shutdown::Shutdown;

use self::skipped_rows::{FIRST_XID, SkippedRows, settled_of};
use super::shared::cancellable::attended;
use super::shared::consent::may_change;
use super::shared::preconditions::{
    given_up, not_finished, refuse_other_shards, refuse_resharding, refuse_unfinished,
    refuse_while_held, unpublished_rows_text, with_slot_holder,
};
use crate::config::{
    AdvanceOrder, ChangeMode, DatabaseConfig, RecoverOrder, SlotAction, SlotConfig,
};
use crate::error::Error;
use crate::output::print;

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, the slot does not exist, or the slot is in use.
pub async fn execute(config: SlotConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let connect = &config.database.connect;
    let client = tokio::select! {
        connected = connect_sql(connect) => connected?,
        () = shutdown.requested() => return Err(Error::Interrupted),
    };
    let work = Box::pin(act(&client, (&config.database, config.action), shutdown));
    let done = attended((connect, &client), work, shutdown).await;
    let done = with_slot_holder(&client, done).await;
    client.close().await;
    print(&done?)
}

async fn act(
    client: &SqlClient,
    (database, action): (&DatabaseConfig, SlotAction),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let outbox = &database.outbox;
    let slot = outbox.slot.as_str();
    // `upgrade prepare --carry-over` handles all slots of the outbox.
    if action != SlotAction::CarryOver {
        refuse_other_shards(client, outbox).await?;
    }
    match &action {
        SlotAction::Reset(_)
        | SlotAction::Recover(_)
        | SlotAction::CarryOver
        | SlotAction::Adopt
        | SlotAction::CancelUpgrade => {}
        SlotAction::Drop { .. } | SlotAction::Advance(_) => {
            refuse_unfinished(client, slot).await?;
            refuse_resharding(client, outbox).await?;
        }
    }
    match action {
        SlotAction::Drop { mode, discard_rows } => {
            drop_checked(client, (outbox, discard_rows), (mode, shutdown)).await
        }
        SlotAction::Advance(order) => advance(client, database, order).await,
        SlotAction::Reset(order) => {
            let health = Health::new();
            let finisher = finisher(client, database, (&health, shutdown));
            reset::reset(&finisher, outbox, &order).await
        }
        SlotAction::Recover(order) => {
            let health = Health::new();
            recover(&finisher(client, database, (&health, shutdown)), outbox, &order).await
        }
        SlotAction::CarryOver => carry_over::carry_over(client, outbox).await,
        SlotAction::Adopt => adopt(client, outbox).await,
        SlotAction::CancelUpgrade => {
            let health = Health::new();
            cancel_upgrade(&finisher(client, database, (&health, shutdown))).await
        }
    }
}

fn finisher<'a>(
    client: &'a SqlClient,
    database: &'a DatabaseConfig,
    (health, stop): (&'a Health, &'a Shutdown),
) -> OperationResumer<'a> {
    OperationResumer {
        client,
        connect: &database.connect,
        slot: &database.outbox.slot,
        health,
        stop,
    }
}

/// Creates the new slot. The relay then publishes the rows that the new slot does not stream.
async fn recover(
    finisher: &OperationResumer<'_>,
    outbox: &Outbox,
    order: &RecoverOrder,
) -> Result<String, Error> {
    let OperationResumer { client, slot, .. } = finisher;
    if let Some(cancelled) = cancelled_upgrade(finisher).await? {
        return Ok(cancelled);
    }
    match recovery::begin(client, outbox, order.since).await {
        Ok(()) => {}
        // The setup could be read, so the error does not say otherwise.
        Err(error) if error.code() == Code::SlotNotLost => {
            return Err(AdminError::NotLost { slot: outbox.slot.clone() }.into());
        }
        Err(error) => return Err(error.into()),
    }
    let what = match finisher.finish().await? {
        Outcome::Pending(recovery) => recovery.describe(slot),
        Outcome::Elsewhere { what } => {
            return Ok(format!("{what}: another process is at it\n"));
        }
        Outcome::Finished(done) => return Ok(format!("finished: {}\n", done.describe(slot))),
        Outcome::GivenUp(reset) => return Err(given_up(client, slot, &reset).await),
        Outcome::Nothing | Outcome::CalledOff(_) => {
            return Ok("the slot is recovered: a relay has done it\n".to_owned());
        }
    };
    let mut text = format!("slot {slot}: {what}\n");
    text.push_str(&unpublished_rows_text(client, outbox, &order.columns).await?);
    text.push_str("start the relay: it publishes them first, and then what the slot streams\n");
    Ok(text)
}

/// Cancels the preparation of an upgrade.
async fn cancel_upgrade(finisher: &OperationResumer<'_>) -> Result<String, Error> {
    match cancelled_upgrade(finisher).await? {
        Some(cancelled) => Ok(cancelled),
        None => Err(Error::Unfit {
            what: format!("no upgrade of slot {:?} is being prepared", finisher.slot),
            hint: "after `walrelay upgrade prepare` has dropped the slot, `walrelay slot recover` creates a new one",
        }),
    }
}

/// Cancels the preparation of an upgrade, if one is unfinished and its slot still exists.
async fn cancelled_upgrade(finisher: &OperationResumer<'_>) -> Result<Option<String>, Error> {
    let OperationResumer { client, slot, .. } = finisher;
    let Some(
        begun @ SlotOperation::Upgrade(UpgradePreparation {
            stage: UpgradeStage::Preparing, ..
        }),
    ) = read_operation(client, slot).await?
    else {
        return Ok(None);
    };
    match finisher.finish().await? {
        Outcome::Elsewhere { .. } => Err(not_finished(client, slot, &begun).await?.into()),
        Outcome::CalledOff(_) if read_loss(client, slot).await?.is_none() => Ok(Some(format!(
            "slot {slot} is still there: the upgrade is called off, and relays go on\n"
        ))),
        Outcome::CalledOff(_)
        | Outcome::Nothing
        | Outcome::Finished(_)
        | Outcome::GivenUp(_)
        | Outcome::Pending(_) => Ok(None),
    }
}

/// Adopts a slot that an upgrade carried over. `pg_upgrade` accepted the slot, so everything before
/// the upgrade was confirmed.
async fn adopt(client: &SqlClient, outbox: &Outbox) -> Result<String, Error> {
    let slot = outbox.slot.as_str();
    let Some(state) = read_slot(client, slot).await? else {
        return Err(Error::Unfit {
            what: format!("slot {slot:?} does not exist: the upgrade has not carried it over"),
            hint: "`walrelay slot recover` makes a new one, and has what may be missing published from the table",
        });
    };
    if let Some(problem) = state.mismatch(state.database.as_deref().unwrap_or_default()) {
        return Err(AdminError::SlotUnusable { slot: slot.to_owned(), problem }.into());
    }
    let (Some(at), false) = (state.confirmed_flush_lsn, state.is_lost()) else {
        let problem = "was carried over and is invalidated".to_owned();
        return Err(AdminError::SlotLost { slot: slot.to_owned(), problem }.into());
    };
    let row = read_relay_row(client, slot).await?;
    let here = read_recorded_system_identifier(client, slot).await?;
    if row.is_none_or(|row| row.system_identifier == here) {
        return Err(Error::Unfit {
            what: format!(
                "slot {slot:?} is on record as this server's own, or not at all: nothing is adopted"
            ),
            hint: "after a loss, `walrelay slot recover`; for the first time, `walrelay init`",
        });
    }
    if !is_same_origin(client, slot, &outbox.tables).await? {
        return Err(AdminError::OtherDatabase { slot: slot.to_owned() }.into());
    }
    match read_operation(client, slot).await? {
        // Such an operation needs more than a slot, and adopting would delete its record.
        Some(
            SlotOperation::Reset(_) | SlotOperation::Recovery(_) | SlotOperation::Resharding(_),
        ) => refuse_unfinished(client, slot).await?,
        Some(SlotOperation::Upgrade(_)) | None => {}
    }
    let timeline = read_server_identity(client).await?.timeline;
    adopt_slot(client, slot, (&here, timeline, at)).await?;
    Ok(format!("adopted: slot {slot}, which streams from {at}\n"))
}

async fn drop_checked(
    client: &SqlClient,
    (outbox, discard_rows): (&Outbox, u64),
    (mode, shutdown): (ChangeMode, &Shutdown),
) -> Result<String, Error> {
    let slot = outbox.slot.as_str();
    let missing = || AdminError::Slot(SlotError::SlotMissing { slot: slot.to_owned() });
    let state = read_slot(client, slot).await?.ok_or_else(missing)?;
    if state.is_lost() {
        // A lost slot cannot be read. The record of its settled position is needed for a recovery,
        // so the record stays.
        let what = format!("drop slot {slot}, which is lost");
        if !may_change((&what, mode), shutdown).await? {
            return Ok(String::new());
        }
        drop_slot(client, slot).await?;
        return Ok(format!(
            "dropped: slot {slot}, which was lost already; what it had settled stays on record\n"
        ));
    }
    refuse_while_held(client, slot).await?;
    let rows = match state.mismatch(state.database.as_deref().unwrap_or_default()) {
        // No relay has used a slot of another plugin or database.
        Some(_) => 0,
        None => waiting_rows(client, outbox).await?,
    };
    if rows > discard_rows {
        return Err(Error::Unfit {
            what: format!(
                "slot {slot:?} holds {rows} row(s) that are not confirmed; dropped with it, they are never \
                 published (--discard-rows {rows} accepts that)"
            ),
            hint: "start the relay to publish them first",
        });
    }
    let what = format!("drop slot {slot} with {rows} row(s) that are not confirmed");
    if !may_change((&what, mode), shutdown).await? {
        return Ok(String::new());
    }
    drop_slot(client, slot).await?;
    // With the record left behind, the next start would report the slot as lost.
    match delete_relay_row(client, slot).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => {}
        deleted => deleted?,
    }
    Ok(format!("dropped: slot {slot}, with {rows} row(s) that were not confirmed\n"))
}

/// Counts the unconfirmed rows of the slot. Without its publication the slot cannot be decoded, so
/// the rows are counted in the tables.
async fn waiting_rows(client: &SqlClient, outbox: &Outbox) -> Result<u64, Error> {
    let Outbox { slot, publication, tables, .. } = outbox;
    match unconfirmed_transactions(client, slot, publication).await {
        Ok(transactions) => Ok(transactions.iter().map(|transaction| transaction.rows).sum()),
        Err(error) if error.server_kind() == Some(ServerErrorKind::Missing) => {
            let row = read_relay_row(client, slot).await?;
            let settled_xid = row.map_or(FIRST_XID, |row| row.settled_xid);
            let mut rows = 0;
            for table in tables {
                rows += count_unsettled_rows(client, table, settled_xid).await?;
            }
            Ok(rows)
        }
        Err(error) => Err(error.into()),
    }
}

/// Moves the slot past exactly the transaction that `to` belongs to, or to `to` if `to` belongs to
/// no transaction.
async fn advance(
    client: &SqlClient,
    database: &DatabaseConfig,
    AdvanceOrder { to, discard_rows, columns }: AdvanceOrder,
) -> Result<String, Error> {
    let outbox = &database.outbox;
    let Outbox { slot, publication, .. } = outbox;
    let found = look_ahead(Question {
        connect: &database.connect,
        slot,
        publication,
        id: &columns.id,
        from: settled_of(client, slot).await?,
        reach: MoveTarget::Transaction(to),
    });
    let losses = SkippedRows::of(client, outbox, &columns, found.await?).await?;
    losses.refuse_unless(discard_rows)?;
    // The slot moves without decoding, and so also passes a row that the server cannot send.
    let lsn = advance_slot(client, slot, losses.target).await?;
    // Otherwise the next start would report the skipped rows as a gap.
    match advance_relay_row(client, slot, lsn).await {
        Err(error) if error.sql_state() == Some(&SqlState::UNDEFINED_TABLE) => {}
        advanced => advanced?,
    }
    Ok(format!("{}slot {slot} is now at {lsn}\n", losses.told()))
}

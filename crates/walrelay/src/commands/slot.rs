//! `walrelay slot`: show, create, drop, advance. Never done by anything else (I9).

use walrelay_postgres::{
    SqlClient, StoreError, advance_slot, connect_sql, create_slot, delete_relay_row, drop_slot,
    read_publication, read_slot,
};
use walrelay_relay::observe::report::slot_report;

use super::init::failover;
use super::status;
use crate::config::{DatabaseConfig, SlotAction, SlotConfig};
use crate::error::Error;
use crate::output::print;

/// Does it, and says what was done.
///
/// # Errors
///
/// Postgres cannot be reached, or refuses: there is no such slot, or it is in use.
pub async fn execute(config: SlotConfig) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let done = act(&client, &config.database, config.action).await;
    client.close().await;
    print(&done?)
}

async fn act(
    client: &SqlClient,
    database: &DatabaseConfig,
    action: SlotAction,
) -> Result<String, Error> {
    let slot = database.slot.as_str();
    match action {
        SlotAction::Show(format) => {
            let missing = || StoreError::SlotMissing { slot: slot.to_owned() };
            let state = read_slot(client, slot).await?.ok_or_else(missing)?;
            Ok(status::render(&slot_report(&state), format))
        }
        SlotAction::Create(kind) => {
            // A slot that is older than its publication fails for ever.
            if read_publication(client, &database.publication).await?.is_none() {
                return Err(Error::PublicationMissing {
                    publication: database.publication.clone(),
                });
            }
            let lsn = create_slot(client, slot, failover(kind)).await?;
            Ok(format!("created: slot {slot}, from {lsn}\n"))
        }
        SlotAction::Drop => {
            drop_slot(client, slot).await?;
            // With the record left behind, the next start would take the slot for lost.
            match delete_relay_row(client, slot).await {
                Err(StoreError::Sql { source, .. })
                    if source.code() == Some(&tokio_postgres::error::SqlState::UNDEFINED_TABLE) => {
                }
                deleted => deleted?,
            }
            Ok(format!("dropped: slot {slot}\n"))
        }
        SlotAction::Advance(target) => {
            let lsn = advance_slot(client, slot, target).await?;
            Ok(format!("slot {slot} is now at {lsn}\n"))
        }
    }
}

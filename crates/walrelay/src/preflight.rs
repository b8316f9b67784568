//! Before a session: is the server what the configuration says?

use walrelay_postgres::{SqlClient, SystemIdentity, read_relay_row};

use crate::config::RunConfig;
use crate::relay_error::RelayError;

/// Refuses a server whose positions are not those of dispatch state.
///
/// # Errors
///
/// What is not as it should be, all at once, each with its fix.
pub async fn gate(
    sql: &SqlClient,
    config: &RunConfig,
    identity: &SystemIdentity,
) -> Result<(), RelayError> {
    let slot = &config.relay.slot;
    let row = read_relay_row(sql, slot).await.map_err(RelayError::Store)?;
    match row {
        Some(row) if row.system_identifier != identity.system_identifier => {
            Err(RelayError::OtherSystem {
                slot: slot.clone(),
                settled: row.settled_lsn,
                recorded: row.system_identifier,
                found: identity.system_identifier.clone(),
            })
        }
        Some(_) | None => Ok(()),
    }
}

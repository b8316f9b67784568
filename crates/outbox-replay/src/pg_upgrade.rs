//! State that a server made by `pg_upgrade` keeps from the old server.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::SCHEMA;

use crate::admin_error::AdminError;
use crate::operation::timeline_column;
use crate::positions::with_positions_before;

/// Moves a recovery that began on another server to this one. The recovery creates its slot again.
pub async fn move_recovery_to_server(
    client: &Client,
    slot: &str,
    (system_identifier, timeline): (&str, u32),
) -> Result<(), AdminError> {
    client
        .execute_typed(
            // spliced: the CTE of `with_positions_before`.
            &format!(
                "WITH {}
             UPDATE {SCHEMA}.app_outbox_relay
                SET operation = operation - '{{parts,settled_snapshot,place}}'::text[], settled_lsn = '0/0',
                    system_identifier = $2, timeline = $3,
                    generation = generation + 1, updated_at = now()
              WHERE slot = $1 AND operation ->> 'kind' = 'recovery' AND system_identifier <> $2",
                with_positions_before("$2")
            ),
            &[
                (&slot, Type::TEXT),
                (&system_identifier, Type::TEXT),
                (&timeline_column(timeline)?, Type::INT4),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

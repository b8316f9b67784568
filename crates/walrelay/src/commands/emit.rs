//! `walrelay emit`: writes one event with the producer's SQL function.

use serde::Serialize;
use serde_json::json;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use walrelay_outbox_admin::AdminError;
use walrelay_pg_client::{SqlClient, connect_sql, sql};

use crate::config::{EmitConfig, OutputFormat};
use crate::error::Error;
use crate::output::print;

/// Writes the event, and prints its version and its id.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, or `walrelay init` has not created the function.
pub async fn execute(config: EmitConfig) -> Result<(), Error> {
    let client = connect_sql(&config.connect).await?;
    let done = emit(&client, &config).await;
    client.close().await;
    print(&done?)
}

/// The output of `emit -o json`.
#[derive(Debug, Serialize)]
struct EmittedEvent {
    /// None if the role may not read the outbox.
    event_id: Option<String>,
    version: i64,
}

async fn emit(client: &SqlClient, config: &EmitConfig) -> Result<String, Error> {
    let EmitConfig { aggregate_type, aggregate_id, event_type, payload, .. } = config;
    let row = client
        .query_typed_one(
            "SELECT public.app_outbox_emit($1, $2, $3, $4::text::jsonb)",
            &[
                (aggregate_type, Type::TEXT),
                (aggregate_id, Type::TEXT),
                (event_type, Type::TEXT),
                (payload, Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("emit an event"))?;
    let version: i64 = row.get(0);
    let id = event_id(client, config, version).await?;
    Ok(match config.format {
        OutputFormat::Json => {
            format!("{}\n", json!(EmittedEvent { event_id: id, version }))
        }
        OutputFormat::Text => {
            let id = id.as_deref().unwrap_or("unknown: this role may not read app_outbox");
            format!("version {version}, event id {id}\n")
        }
    })
}

/// Returns the id of the event. A producer's role may emit events without the permission to read
/// them.
async fn event_id(
    client: &SqlClient,
    config: &EmitConfig,
    version: i64,
) -> Result<Option<String>, Error> {
    let found = client
        .query_typed_opt(
            sql!("emit.sql", "event_id"),
            &[
                (&config.aggregate_type, Type::TEXT),
                (&config.aggregate_id, Type::TEXT),
                (&version, Type::INT8),
            ],
        )
        .await;
    match found {
        Ok(row) => Ok(row.map(|row| row.get(0))),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(None),
        Err(error) => Err(AdminError::sql("read the event")(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_documented() {
        let event = EmittedEvent { event_id: Some("e-1".to_owned()), version: 3 };
        crate::json_output::assert_documented("emit", &event);
    }
}

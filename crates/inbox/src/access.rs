//! Errors, and the refusal to work on rows that row level security hides. `walrelay-inbox-admin` uses
//! them also.

use walrelay_pg_client::{SqlClient, SqlError, TableAccess, in_schema, refuse_hidden_rows};

use crate::error::InboxError;
use crate::migrations::inbox_tables;

/// Returns the conversion of a SQL error of this action.
pub fn failed(action: &str) -> impl FnOnce(tokio_postgres::Error) -> InboxError {
    let action = action.to_owned();
    move |source| InboxError::Store(SqlError::Sql { action, source })
}

/// Returns the error about an unregistered consumer.
#[must_use]
pub fn unknown(consumer: &str) -> InboxError {
    InboxError::Unregistered { consumer: consumer.to_owned() }
}

/// Refuses to read an inbox whose rows row level security hides. Such an inbox would look empty.
pub async fn refuse_hidden(client: &SqlClient) -> Result<(), InboxError> {
    Ok(refuse_hidden_rows(client, &inbox_tables(), TableAccess::Read).await?)
}

/// Refuses to change events and keys of an inbox with hidden rows, which would silently stay
/// unchanged.
pub async fn refuse_hidden_changes(client: &SqlClient) -> Result<(), InboxError> {
    Ok(refuse_hidden_rows(client, &inbox_tables()[1..], TableAccess::Update).await?)
}

/// Refuses to apply events to an inbox with hidden rows. One error reports all tables, so that one
/// fix suffices.
pub async fn refuse_hidden_writes(client: &SqlClient) -> Result<(), InboxError> {
    let consumers = refuse_hidden_rows(client, &inbox_tables()[..1], TableAccess::Read).await;
    let events = refuse_hidden_rows(client, &inbox_tables()[1..], TableAccess::Write).await;
    Ok(match (consumers, events) {
        (
            Err(SqlError::RowsHidden { tables, role, policies }),
            Err(SqlError::RowsHidden { tables: others, policies: more, .. }),
        ) => Err(SqlError::RowsHidden {
            tables: format!("{tables}, {others}"),
            role,
            policies: format!("{policies}; {more}"),
        }),
        (consumers, events) => consumers.and(events),
    }?)
}

/// Refuses consumers' rows that row level security hides.
pub async fn refuse_hidden_consumers(
    client: &SqlClient,
    rows: TableAccess,
) -> Result<(), InboxError> {
    Ok(refuse_hidden_rows(client, &inbox_tables()[..1], rows).await?)
}

/// Returns whether the database has the inbox's tables.
pub async fn has_inbox(client: &SqlClient) -> Result<bool, InboxError> {
    let sql = in_schema!("SELECT to_regclass('public.app_inbox_consumer') IS NOT NULL");
    let row = client.query_one(sql, &[]).await.map_err(failed("look for an inbox"))?;
    Ok(row.get(0))
}

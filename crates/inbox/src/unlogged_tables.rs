//! Finds inbox tables that a crash of the server would empty.
//!
//! An unlogged table is truncated at recovery. The inbox would then forget which events were
//! applied, and redelivered events would be applied twice.

use walrelay_pg_client::{SqlClient, sql};

use crate::access::failed;
use crate::error::InboxError;

/// Returns the unlogged tables of the inbox.
pub async fn unlogged_inbox_tables(client: &SqlClient) -> Result<Vec<String>, InboxError> {
    let sql = sql!("unlogged_tables.sql", "unlogged_inbox_tables");
    let rows =
        client.query_typed(sql, &[]).await.map_err(failed("check the tables of the inbox"))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Refuses an inbox with an unlogged table.
pub(crate) async fn refuse_unlogged(client: &SqlClient) -> Result<(), InboxError> {
    let tables = unlogged_inbox_tables(client).await?;
    match tables.is_empty() {
        true => Ok(()),
        false => Err(InboxError::Unlogged { tables }),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_errors::Coded as _;

    use super::*;

    #[test]
    fn the_fix_names_every_table() {
        let tables = ["app_inbox", "app_inbox_key"].map(str::to_owned).to_vec();
        let fix = InboxError::Unlogged { tables }.fix().unwrap_or_default();
        for table in ["app_inbox", "app_inbox_key"] {
            assert!(fix.contains(&format!("ALTER TABLE public.{table} SET LOGGED")), "{fix}");
        }
    }
}

//! Counts the rows of the inbox that a prune would delete.

use std::time::Duration;

use walrelay_pg_client::{SqlClient, sql};

use walrelay_inbox::InboxError;
use walrelay_inbox::access::{failed, refuse_hidden};

/// Returns the number of finished rows older than this, and of all rows of earlier generations.
pub async fn prunable_rows(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<i64, InboxError> {
    let sql = sql!("prunable_rows.sql", "count");
    refuse_hidden(client).await?;
    let row = client.query_one(sql, &[&consumer, &older_than.as_secs_f64()]).await;
    Ok(row.map_err(failed("count old rows of the inbox"))?.get(0))
}

//! Counts the rows of the inbox that a prune would delete.

use std::time::Duration;

use walrelay_pg_client::{SqlClient, TableAccess, refuse_hidden_rows};

use super::admin::{failed, refuse_hidden_consumers};
use crate::error::InboxError;
use crate::migrations::inbox_tables;

/// Returns the number of finished rows older than this, and of all rows of earlier generations.
///
/// # Errors
///
/// Fails if the database reports an error.
pub async fn prunable_rows(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<i64, InboxError> {
    let sql = "SELECT count(*) FROM public.app_inbox AS i \
                 JOIN public.app_inbox_consumer AS c ON c.consumer = i.consumer \
                WHERE i.consumer = $1 \
                  AND (i.generation < c.generation OR i.status IN ('done', 'late', 'discarded') \
                       AND i.received_at < now() - make_interval(secs => $2))";
    refuse_hidden_consumers(client, TableAccess::Read).await?;
    refuse_hidden_rows(client, &inbox_tables()[1..], TableAccess::Read).await?;
    let row = client.query_one(sql, &[&consumer, &older_than.as_secs_f64()]).await;
    Ok(row.map_err(failed("count old rows of the inbox"))?.get(0))
}

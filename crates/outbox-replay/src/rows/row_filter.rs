//! The row filter with which the outbox is published.

use tokio_postgres::Client;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::QualifiedName;
use walrelay_pg_replication::read_publication;

use crate::admin_error::AdminError;

/// Returns the row filter of an outbox without shards, in SQL about a row. None if every row is
/// published. The filters of shards divide the rows, and together let every row pass.
pub async fn read_row_filter(
    client: &Client,
    outbox: &Outbox,
    table: &QualifiedName,
) -> Result<Option<String>, AdminError> {
    if !outbox.shard.is_whole() {
        return Ok(None);
    }
    let publication = read_publication(client, &outbox.publication).await?;
    Ok(publication.and_then(|it| it.listed(table)?.row_filter.clone()))
}

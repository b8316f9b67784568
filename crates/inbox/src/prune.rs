//! Deletes finished rows of the inbox, and rows of earlier generations.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::Type;
use walrelay_pg_client::{Parameter, SqlClient, TableAccess, in_schema, refuse_hidden_rows, sql};

use crate::access::{failed, refuse_hidden_consumers, unknown};
use crate::error::InboxError;
use crate::migrations::inbox_tables;

/// The rows deleted in one transaction, few enough to hold locks only for moments.
const BATCH_ROWS: i64 = 10_000;

/// The effect of one step of a prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneStep {
    /// Rows deleted.
    pub rows: u64,
    /// Idle keys deleted.
    pub keys: u64,
    /// Whether rows may be left that are old enough.
    pub has_more: bool,
}

/// Deletes one batch of finished rows. Works through a pooler in transaction mode.
pub async fn prune_step(
    client: &SqlClient,
    consumer: &str,
    older_than: Duration,
) -> Result<PruneStep, InboxError> {
    let sql = sql!("prune.sql", "prune");
    refuse_hidden_consumers(client, TableAccess::Update).await?;
    refuse_hidden_rows(client, &inbox_tables()[1..], TableAccess::Delete).await?;
    // Recorded first, because an audit must not report rows as missing that are about to be
    // deleted. If no row is that old, the horizon stays, because the inbox is still complete.
    let note = sql!("prune.sql", "note_pruned");
    let seconds = older_than.as_secs_f64();
    let noted =
        client.query_typed_opt(note, &[(&consumer, Type::TEXT), (&seconds, Type::FLOAT8)]).await;
    let noted = noted.map_err(failed("note how far the inbox is pruned"))?;
    let noted = noted.ok_or_else(|| unknown(consumer))?;
    let (generation, cutoff): (i32, Option<SystemTime>) = (noted.get(0), noted.get(1));
    let parameters: [Parameter<'_>; 4] = [
        (&consumer, Type::TEXT),
        (&cutoff, Type::TIMESTAMPTZ),
        (&generation, Type::INT4),
        (&BATCH_ROWS, Type::INT8),
    ];
    let deleted = client.execute_typed(sql, &parameters).await;
    let rows = deleted.map_err(failed("delete old rows of the inbox"))?;
    if rows == BATCH_ROWS.unsigned_abs() {
        return Ok(PruneStep { rows, keys: 0, has_more: true });
    }
    let keys =
        in_schema!("DELETE FROM public.app_inbox_key WHERE consumer = $1 AND generation < $2");
    let earlier: [Parameter<'_>; 2] = [(&consumer, Type::TEXT), (&generation, Type::INT4)];
    let forgotten = client.execute_typed(keys, &earlier).await;
    forgotten.map_err(failed("delete keys of earlier generations"))?;
    Ok(PruneStep { rows, keys: 0, has_more: false })
}

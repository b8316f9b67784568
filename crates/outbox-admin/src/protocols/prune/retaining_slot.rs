//! The slot whose record keeps old rows in the outbox, for the log.

use walrelay_errors::Code;
use walrelay_pg_client::{PgError, SqlClient, is_settled_sql, own_rows_sql, sql};

use super::condition::{Condition, refusal};
use crate::protocols::protocol_error::ProtocolError;

/// Logs which slot has not settled rows that are old enough, and their number.
pub(super) async fn log_retaining_slot(
    client: &SqlClient,
    condition: &Condition,
) -> Result<(), ProtocolError> {
    let oldest = client.query_opt(sql!("retaining_slot.sql", "oldest_record"), &[]).await;
    let Some(oldest) = oldest.map_err(PgError::from)? else { return Ok(()) };
    let (slot, is_there): (String, bool) = (oldest.get("slot"), oldest.get("is_there"));
    let (Condition { table, seconds, .. }, is_old) = (condition, condition.is_old("$1"));
    let is_settled = is_settled_sql("c.xmin", "$2::text::xid8");
    let is_own = own_rows_sql(table, "c");
    // spliced: the table and the condition on its column.
    let statement = format!(
        "SELECT count(*) FROM {table} c
          WHERE {is_old} AND NOT {is_settled} AND {is_own}"
    );
    let settled_xid: String = oldest.get("settled_xid");
    let row = client.query_one(&statement, &[seconds, &settled_xid]).await;
    let rows: i64 = row.map_err(|error| refusal(table, error))?.get(0);
    let table = table.to_string();
    match (rows, is_there) {
        (0, _) => {}
        (_, true) => {
            tracing::info!(
                slot,
                table,
                rows,
                "old rows stay in the outbox until the slot has settled them"
            );
        }
        (_, false) => {
            let error_code = Code::SlotRecordLeftOver.name();
            tracing::warn!(
                error_code,
                slot,
                table,
                rows,
                "the record of a slot that does not exist keeps old rows in the outbox"
            );
        }
    }
    Ok(())
}

//! The row of one event on the outbox's side.

use serde_json::Value;
use tokio_postgres::types::Type;
use walrelay_pg_client::{
    QualifiedName, SCHEMA, SqlClient, TableAccess, is_settled_sql, own_rows_sql, quote_identifier,
    quote_literal, read_columns, refuse_hidden_rows, sql, text_form_sql,
};

use crate::audit::{object_of, outbox_failed};
use crate::event_commands::object;
use walrelay_inbox::InboxError;

/// The member of a traced row that the row filter of the publication leaves out.
pub const LEFT_OUT: &str = "left_out_by_row_filter";

/// The maximum bytes of a stored value in a trace. A larger value is no identifier, and could be
/// too large for the server to convert to JSON.
const TRACED_BYTES_MAX: u32 = 4_096;

/// Returns the first ids of rows that begin like this, six at most. Reads the whole table.
pub async fn outbox_ids_like(
    outbox: &SqlClient,
    table: &QualifiedName,
    id: &str,
    start: &str,
) -> Result<Vec<String>, InboxError> {
    let id = text_form_sql(&format!("o.{}", quote_identifier(id)));
    // spliced: names of the outbox table and its column.
    let sql = format!(
        "SELECT DISTINCT {id} AS id FROM {table} AS o WHERE starts_with({id}, $1) ORDER BY 1 LIMIT 6"
    );
    let rows = outbox.query(&sql, &[&start]).await.map_err(outbox_failed("look for ids"))?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// Returns up to six event ids of dispatch state that begin with `start`.
pub async fn dispatch_ids_like(
    outbox: &SqlClient,
    slots: &[String],
    start: &str,
) -> Result<Vec<String>, InboxError> {
    let rows = outbox
        .query(sql!("outbox_trace.sql", "dispatch_ids_like"), &[&slots, &start])
        .await
        .map_err(outbox_failed("look for ids"))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns an event's outbox row, without its payload and other large values. Null if there is no
/// row. If several rows have the id, returns one of them with their number. That row is settled
/// only if all are. If the row filter of the publication leaves the row out, the row says so.
pub async fn trace_outbox(
    outbox: &SqlClient,
    slots: &[String],
    (table, row_filter): (&QualifiedName, Option<&str>),
    id: &str,
    event_id: &str,
) -> Result<Value, InboxError> {
    let id = text_form_sql(&format!("o.{}", quote_identifier(id)));
    let filter = row_filter.unwrap_or("true");
    let is_own = own_rows_sql(table, "o");
    let read = std::slice::from_ref(table);
    refuse_hidden_rows(outbox, read, TableAccess::Read).await.map_err(InboxError::Outbox)?;
    let (_, columns) = read_columns(outbox, table).await.map_err(InboxError::Outbox)?;
    let values: Vec<String> = columns
        .iter()
        .filter(|column| !["payload", "headers"].contains(&column.name.as_str()))
        .map(|column| {
            let value = format!("o.{}", quote_identifier(&column.name));
            let key = quote_literal(&column.name);
            // As text, because a parsed number would lose digits.
            let cast = if column.type_oid == Type::NUMERIC.oid() { "::text" } else { "" };
            format!(
                "({key}, CASE WHEN pg_column_size({value}) <= {TRACED_BYTES_MAX} THEN to_jsonb({value}{cast}) END)"
            )
        })
        .collect();
    // spliced: the schema.
    let settled_xid = format!(
        "(SELECT r.settled_xid FROM {SCHEMA}.app_outbox_relay AS r WHERE r.slot = ANY ($2) ORDER BY 1 LIMIT 1)"
    );
    // spliced: names of the outbox table and its columns.
    let sql = format!(
        "SELECT ((SELECT jsonb_object_agg(c.name, c.value) FROM (VALUES {}) AS c(name, value))
                 || jsonb_build_object(
                  'settled', {})
                 || CASE WHEN ({filter}) THEN '{{}}' ELSE jsonb_build_object('{LEFT_OUT}', true) END)::text
           FROM {table} AS o WHERE {id} = $1 AND {is_own} ORDER BY ({filter}) IS NOT TRUE",
        values.join(", "),
        is_settled_sql("o.xmin", &settled_xid)
    );
    let rows = outbox.query(&sql, &[&event_id, &slots]).await;
    let rows = rows.map_err(outbox_failed("read the outbox"))?;
    let mut found = object_of(rows.first());
    if rows.len() > 1 {
        found["rows_with_this_id"] = rows.len().into();
        found["settled"] = rows.iter().all(|row| object(row)["settled"] == true).into();
    }
    Ok(found)
}

/// Returns an event's row in dispatch state, without its message. Null if there is no row.
pub async fn trace_dispatch(
    outbox: &SqlClient,
    slots: &[String],
    event_id: &str,
) -> Result<Value, InboxError> {
    let sql = sql!("outbox_trace.sql", "trace_dispatch");
    let row = outbox.query_opt(sql, &[&slots, &event_id]).await;
    Ok(object_of(row.map_err(outbox_failed("read dispatch state"))?.as_ref()))
}

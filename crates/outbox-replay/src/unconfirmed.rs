//! The transactions of outbox rows that a slot has not confirmed.
//!
//! Only decoding shows them, so the slot must be free. Reading does not move the slot.

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, Type};
use walrelay_pg_client::{
    QualifiedName, TableAccess, is_unsettled_sql, own_rows_sql, quote_identifier,
    refuse_hidden_rows, sql,
};

use crate::admin_error::AdminError;

/// A committed transaction that the slot has not confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnconfirmedTransaction {
    /// Position just after the commit. Advancing the slot to it skips the transaction.
    pub end_lsn: Lsn,
    /// Number of rows: inserts into published tables, without other changes.
    pub rows: u64,
}

/// Returns the transactions that the slot would deliver through the publication, in commit order.
///
/// # Errors
///
/// The slot is in use, lost or missing, or the publication cannot be used for decoding.
pub async fn unconfirmed_transactions(
    client: &Client,
    slot: &str,
    publication: &str,
) -> Result<Vec<UnconfirmedTransaction>, AdminError> {
    // The first byte of a message is its kind. A commit's position is its end.
    let sql = sql!("unconfirmed.sql", "unconfirmed_transactions");
    let rows = client
        .query_typed(sql, &[(&slot, Type::TEXT), (&quote_identifier(publication), Type::TEXT)])
        .await
        .map_err(AdminError::sql(format!("read the unconfirmed changes of slot {slot:?}")))?;
    let transactions = rows.iter().map(|row| UnconfirmedTransaction {
        end_lsn: Lsn::new(row.get::<_, PgLsn>("end_lsn").into()),
        rows: row.get::<_, i64>("rows").unsigned_abs(),
    });
    Ok(transactions.collect())
}

/// Counts rows of a table whose transaction is not known to be settled: not below `settled_xid`.
/// With a row filter, which is SQL about a row, only rows that are published.
/// The count includes every unpublished row, and perhaps some published rows.
///
/// # Errors
///
/// The table cannot be read, or its rows are hidden.
pub async fn count_unsettled_rows(
    client: &Client,
    (table, row_filter): (&QualifiedName, Option<&str>),
    settled_xid: u64,
) -> Result<u64, AdminError> {
    refuse_hidden_rows(client, std::slice::from_ref(table), TableAccess::Read).await?;
    let is_own = own_rows_sql(table, "t");
    let is_unsettled = is_unsettled_sql("t.xmin", "$1::text::xid8");
    let is_published = row_filter.unwrap_or("true");
    // spliced: the table and its row filter.
    let sql = format!(
        "SELECT count(*) AS rows FROM {table} t WHERE {is_unsettled} AND {is_own} AND ({is_published})"
    );
    let row = client
        .query_typed_one(&sql, &[(&settled_xid.to_string(), Type::TEXT)])
        .await
        .map_err(AdminError::sql(format!("count the rows of {table}")))?;
    Ok(row.get::<_, i64>("rows").unsigned_abs())
}

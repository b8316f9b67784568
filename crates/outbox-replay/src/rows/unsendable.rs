//! Finds rows in the outbox table that the server cannot send, without reading their values.
//!
//! Replication sends each value as text in UTF-8. The server fails at a value whose text exceeds 1
//! GiB, and at text of a SQL_ASCII database that is not valid UTF-8. Each stream then ends before
//! the row. The transaction's id is known by then, and the table still has its rows.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::{
    QualifiedName, TableColumn, is_unsettled_sql, own_rows_sql, quote_identifier, read_columns,
    text_form_sql,
};

use crate::admin_error::AdminError;
use crate::rows::encoding::UNCHECKED_ENCODING;

/// A row of a transaction, as in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionRow {
    pub event_id: String,
    /// Whether the server cannot send the row, judged by lengths and bytes.
    pub is_unsendable: bool,
}

/// Rows of one transaction in one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransactionRows {
    pub count: u64,
    /// The first rows, with those that cannot be sent first.
    pub rows: Vec<TransactionRow>,
}

/// Maximum rows of a transaction that are returned. More ids are of no use to an operator.
const ROWS_MAX: u32 = 1_000;

/// Maximum text of a row: the server's largest allocation (`MaxAllocSize`), less the rest of the
/// message.
const ROW_TEXT_BYTES_MAX: u64 = (1 << 30) - 4_096;

/// Values up to this size are searched for bytes that are not UTF-8.
const SEARCHED_BYTES_MAX: u32 = 1 << 20;

/// Valid UTF-8 text, byte by byte in hexadecimal (RFC 3629).
const VALID_UTF8: &str = "^(?:[0-7].|(?:c[2-9a-f]|d.)[89ab].|e0[ab].[89ab].|e[1-9a-f](?:[89ab].){2}|f0[9ab].(?:[89ab].){2}|f[1-3](?:[89ab].){3}|f48.(?:[89ab].){2})*$";

const BYTEA: u32 = 17;
const TEXT_TYPES: [u32; 5] = [25, 1_042, 1_043, 114, 3_802];

/// Returns the rows of the table that this transaction wrote. Rows of its subtransactions have ids
/// of their own, which the server does not reveal, and are left out. `settled_xid` distinguishes
/// the transaction from an ancient one with the same 32 bits.
pub async fn rows_of_transaction(
    client: &Client,
    (table, id_column): (&QualifiedName, &str),
    (xid, settled_xid): (u32, u64),
) -> Result<TransactionRows, AdminError> {
    let (_, columns) = read_columns(client, table).await?;
    let id = text_form_sql(&format!("t.{}", quote_identifier(id_column)));
    let is_own = own_rows_sql(table, "t");
    let is_unsettled = is_unsettled_sql("t.xmin", "$2::text::xid8");
    // spliced: names of the outbox table and its columns.
    let sql = format!(
        "SELECT event_id, is_unsendable, count(*) OVER () AS rows
           FROM (SELECT {id} AS event_id, {} AS is_unsendable, t.cmin::text::bigint AS command, t.ctid AS place
                   FROM {table} t
                  WHERE t.xmin = $1::text::xid AND {is_unsettled} AND {is_own}) AS found
          ORDER BY is_unsendable DESC, command, place LIMIT {ROWS_MAX}",
        guard(&columns)
    );
    let (xid, settled_xid) = (xid.to_string(), settled_xid.to_string());
    let found =
        client
            .query_typed(&sql, &[(&xid, Type::TEXT), (&settled_xid, Type::TEXT)])
            .await
            .map_err(AdminError::sql(format!("search {table} for rows of transaction {xid}")))?;
    let count = found.first().map_or(0, |row| row.get::<_, i64>("rows").unsigned_abs());
    let rows = found.iter().map(|row| TransactionRow {
        event_id: row.get("event_id"),
        is_unsendable: row.get("is_unsendable"),
    });
    Ok(TransactionRows { count, rows: rows.collect() })
}

/// Returns SQL for whether a row `t` cannot be sent. Lengths come from the TOAST pointer, so that
/// no large value is read.
fn guard(columns: &[TableColumn]) -> String {
    let (mut sizes, mut texts) = (vec!["0::bigint".to_owned()], vec!["false".to_owned()]);
    for TableColumn { name, type_oid, .. } in columns {
        let column = format!("t.{}", quote_identifier(name));
        let size = match *type_oid {
            BYTEA => format!("2 * octet_length({column})::bigint"),
            25 | 1_042 | 1_043 => format!("octet_length({column})::bigint"),
            _ => format!("pg_column_size({column})::bigint"),
        };
        sizes.push(format!("coalesce({size}, 0)"));
        if TEXT_TYPES.contains(type_oid) {
            texts.push(format!(
                "CASE WHEN getdatabaseencoding() = '{UNCHECKED_ENCODING}'
                       AND pg_column_size({column}) <= {SEARCHED_BYTES_MAX}
                      THEN encode(convert_to(concat({column}), '{UNCHECKED_ENCODING}'), 'hex') !~ '{VALID_UTF8}'
                      ELSE false END"
            ));
        }
    }
    format!("({} > {ROW_TEXT_BYTES_MAX} OR {})", sizes.join(" + "), texts.join(" OR "))
}

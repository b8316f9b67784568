//! The rows that another publisher has not published: the condition for them, and their numbers.

use tokio_postgres::types::{ToSql, Type};
use walrelay_outbox_replay::read_row_filter;
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{
    QualifiedName, SqlClient, SqlError, own_rows_sql, quote_identifier, read_columns, sql,
};

use crate::protocols::preconditions::may_read;
use crate::protocols::protocol_error::ProtocolError;

/// How another publisher marks the rows that it has not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpublished {
    /// This column is null in them.
    Column(String),
    /// This condition, SQL about a row, is true for them.
    Where(String),
}

/// The rows of a table, by the answer to the condition for unpublished rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredRows {
    /// The table, quoted.
    pub table: String,
    /// Rows for which the condition is true. They are published.
    pub unpublished: u64,
    /// Rows for which the condition is false. They are never published.
    pub published: u64,
    /// Rows for which the condition is null. They are never published.
    pub unknown: u64,
}

impl AnsweredRows {
    pub(super) const fn is_empty(&self) -> bool {
        self.unpublished == 0 && self.published == 0 && self.unknown == 0
    }
}

impl Unpublished {
    /// Returns the condition for unpublished rows, as SQL about a row with no names of tables.
    ///
    /// # Errors
    ///
    /// A table does not have the column, or the column is never null. The condition is invalid, may
    /// change its answer, or means different things for two tables.
    pub(super) async fn condition(
        &self,
        client: &SqlClient,
        tables: &[QualifiedName],
    ) -> Result<String, ProtocolError> {
        match self {
            Self::Column(column) => {
                for table in tables {
                    refuse_unless_nullable(client, table, column).await?;
                }
                Ok(format!("{} IS NULL", quote_identifier(column)))
            }
            Self::Where(given) => condition_of_tables(client, tables, given).await,
        }
    }
}

/// Refuses a column that is missing, or never null. A table that does not exist lacks the column.
async fn refuse_unless_nullable(
    client: &SqlClient,
    table: &QualifiedName,
    column: &str,
) -> Result<(), ProtocolError> {
    let name = table.to_string();
    let sql = sql!("unpublished_rows.sql", "can_be_null");
    let found = client.query_typed_opt(sql, &[(&name, Type::TEXT), (&column, Type::TEXT)]).await;
    let found = found.map_err(SqlError::sql("look for the column of unpublished rows"))?;
    let column = column.to_owned();
    match found.map(|row| row.get::<_, bool>("can_be_null")) {
        Some(true) => Ok(()),
        Some(false) => Err(ProtocolError::UnpublishedColumnNeverNull { table: name, column }),
        None => Err(ProtocolError::UnpublishedColumnMissing { table: name, column }),
    }
}

async fn condition_of_tables(
    client: &SqlClient,
    tables: &[QualifiedName],
    given: &str,
) -> Result<String, ProtocolError> {
    let mut first: Option<String> = None;
    for table in tables {
        if !may_read(client, &table.to_string()).await? {
            return Err(ProtocolError::NoOutbox { table: table.to_string() });
        }
        client.batch_execute("BEGIN").await.map_err(SqlError::sql(PREPARE))?;
        let prepared = prepared(client, table, given).await;
        let ended = client.batch_execute("ROLLBACK").await;
        let condition = prepared?;
        ended.map_err(SqlError::sql(PREPARE))?;
        if first.get_or_insert_with(|| condition.clone()) != &condition {
            let problem =
                format!("it means {condition} for {table}, and another text for another table");
            return Err(ProtocolError::ConditionRefused { problem });
        }
    }
    first.ok_or_else(|| ProtocolError::ConditionRefused { problem: "there is no table".to_owned() })
}

const PREPARE: &str = "prepare the condition for unpublished rows";

/// Returns the condition in the server's text form, which means the same in every session.
///
/// The server checks it as the condition of an index on an empty copy of the table. Such a condition
/// has no subquery, no other table, and only functions that give the same answer for ever.
async fn prepared(
    client: &SqlClient,
    table: &QualifiedName,
    given: &str,
) -> Result<String, ProtocolError> {
    // spliced: the table.
    let copy = format!("CREATE TEMPORARY TABLE walrelay_condition (LIKE {table})");
    client.batch_execute(&copy).await.map_err(SqlError::sql(PREPARE))?;
    // spliced: the condition. A message of the extended protocol has one statement only.
    let index = format!(
        "CREATE INDEX walrelay_condition_index ON pg_temp.walrelay_condition ((1)) WHERE ({given}\n)"
    );
    if let Err(error) = client.execute_typed(&index, &[]).await {
        let problem = error.as_db_error().map(|refusal| refusal.message().to_owned());
        return Err(match problem {
            Some(problem) => ProtocolError::ConditionRefused { problem },
            None => SqlError::sql(PREPARE)(error).into(),
        });
    }
    let path = "SET LOCAL search_path TO pg_catalog";
    client.batch_execute(path).await.map_err(SqlError::sql(PREPARE))?;
    let of = [(&"pg_temp.walrelay_condition_index" as &(dyn ToSql + Sync), Type::TEXT)];
    let row = client.query_typed_one(sql!("unpublished_rows.sql", "condition"), &of).await;
    let condition: Option<String> = row.map_err(SqlError::sql(PREPARE))?.get("condition");
    // The server stores no condition that is always true.
    Ok(condition.unwrap_or_else(|| "true".to_owned()))
}

/// Counts the rows of each table by the answer to the condition, without rows that the row filter of
/// the publication leaves out. Tables that the role may not read have no rows here.
pub(super) async fn count_answers(
    client: &SqlClient,
    outbox: &Outbox,
    condition: &str,
) -> Result<Vec<AnsweredRows>, ProtocolError> {
    let mut counted = Vec::new();
    for table in &outbox.tables {
        let name = table.to_string();
        if !may_read(client, &name).await? {
            continue;
        }
        let filter = read_row_filter(client, outbox, table).await?;
        // spliced: the table, and conditions on its rows.
        let counting = format!(
            "SELECT count(*) FILTER (WHERE {condition}) AS unpublished,
                    count(*) FILTER (WHERE NOT ({condition})) AS published,
                    count(*) FILTER (WHERE ({condition}) IS NULL) AS unknown
               FROM {table} AS o WHERE {} AND ({})",
            own_rows_sql(table, "o"),
            filter.as_deref().unwrap_or("true")
        );
        let row = client.query_typed_one(&counting, &[]).await;
        let row = row.map_err(SqlError::sql("count the unpublished rows of the outbox"))?;
        let count = |column| row.get::<_, i64>(column).unsigned_abs();
        counted.push(AnsweredRows {
            table: name,
            unpublished: count("unpublished"),
            published: count("published"),
            unknown: count("unknown"),
        });
    }
    Ok(counted)
}

/// Returns the columns of a table that show failed rows. Many publishers set the mark of published
/// rows in such rows also.
pub(super) async fn columns_of_failures(
    client: &SqlClient,
    table: &QualifiedName,
) -> Result<Vec<String>, ProtocolError> {
    if !may_read(client, &table.to_string()).await? {
        return Ok(Vec::new());
    }
    let (_, columns) = read_columns(client, table).await?;
    let names = columns.into_iter().map(|column| column.name);
    Ok(names.filter(|name| may_show_failures(name)).collect())
}

fn may_show_failures(column: &str) -> bool {
    let plain = column.to_ascii_lowercase().replace('_', "");
    plain.contains("error")
        || plain.contains("attempt")
        || plain.ends_with("status")
        || plain.starts_with("processedon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_usual_publishers_show_failures() {
        for column in [
            "error",
            "last_error",
            "status",
            "Status",
            "attempts",
            "ProcessedOnUtc",
            "processed_on",
        ] {
            assert!(may_show_failures(column), "{column}");
        }
        for column in ["published_at", "payload", "headers", "statusless", "id"] {
            assert!(!may_show_failures(column), "{column}");
        }
    }
}

//! A side-by-side rebuild: the next generation fills tables in another schema, and one transaction
//! moves the rows into the live tables.
//!
//! ```text
//! rebuild recorded ──▶ events applied in the schema ──▶ rows moved, new generation current
//! ```

use std::time::SystemTime;

use tokio_postgres::{GenericClient, Transaction};
use walrelay_pg_client::{
    QualifiedName, SCHEMA, SqlClient, TableAccess, quote_literal, refuse_hidden_rows, sql,
};

use crate::admin::{contained, stop_batches};
use walrelay_inbox::InboxError;
use walrelay_inbox::access::{failed, refuse_hidden_consumers, unknown};

/// A side-by-side rebuild of one consumer in one schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SideBySideRebuild<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) schema: &'a str,
}

/// A table that the rebuild fills, and the live table that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedTable {
    pub(crate) name: String,
    /// The table's name with its schema.
    pub(crate) staged: String,
    /// The live table. `None` if the search path has no table of this name.
    pub(crate) live: Option<QualifiedName>,
    /// The names and types of the writable columns.
    pub(crate) columns: Vec<String>,
    /// The names and types of the writable columns of the live table.
    pub(crate) live_columns: Vec<String>,
    /// The names of the writable columns, quoted for SQL.
    pub(crate) quoted: Vec<String>,
    /// The table for a `FROM`, without the rows of tables that inherit from it: each of those is a
    /// table of its own here.
    pub(crate) staged_rows: String,
    /// The live table for a `FROM`, without the rows of tables that inherit from it: a handler does
    /// not write them through it. `None` if there is no live table.
    pub(crate) live_rows: Option<String>,
}

impl StagedTable {
    /// Returns the live table's name for SQL. `None` if there is no live table.
    pub(super) fn live_name(&self) -> Option<String> {
        self.live.as_ref().map(ToString::to_string)
    }
}

/// The database session that has locked a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildHolder {
    pub pid: i32,
    /// The time at which it connected. `None` if the role may not see that.
    pub since: Option<SystemTime>,
}

/// The events that the new generation lacks compared with the current one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GenerationDifference {
    /// The events that the current generation has applied and the new one has not received.
    pub missing: i64,
    /// The events that are pending or dead in the new generation.
    pub unfinished: i64,
}

impl SideBySideRebuild<'_> {
    pub(crate) async fn tables(&self, client: &SqlClient) -> Result<Vec<StagedTable>, InboxError> {
        let sql = sql!("side_by_side_rebuild.sql", "tables");
        let rows = client.query(sql, &[&self.schema]).await;
        let rows = rows.map_err(failed("list the tables of the schema"))?;
        let of = |row: &tokio_postgres::Row| StagedTable {
            name: row.get("name"),
            staged: row.get("staged"),
            live: live_table(row),
            columns: row.get("columns"),
            live_columns: row.get("live_columns"),
            quoted: row.get("quoted"),
            staged_rows: row.get("staged_rows"),
            live_rows: row.get("live_rows"),
        };
        Ok(rows.iter().map(of).collect())
    }

    /// Refuses if row level security may hide rows of a live table from the role. Such rows would
    /// stay beside the new ones.
    pub(crate) async fn refuse_hidden_rows(
        &self,
        client: &SqlClient,
        tables: &[StagedTable],
    ) -> Result<(), InboxError> {
        let live: Vec<_> = tables.iter().filter_map(|table| table.live.clone()).collect();
        Ok(refuse_hidden_rows(client, &live, TableAccess::Write).await?)
    }

    /// Returns whether a table, named in SQL, has rows.
    pub(crate) async fn has_rows(
        &self,
        client: &SqlClient,
        table: &str,
    ) -> Result<bool, InboxError> {
        let sql = format!("SELECT EXISTS (SELECT FROM {table})");
        let row = client.query_one(&sql, &[]).await;
        Ok(row.map_err(failed("check whether tables are empty"))?.get(0))
    }

    /// Returns the identities of the schema's tables and of their files. `TRUNCATE` gives a table
    /// another file.
    pub(crate) async fn files(
        &self,
        client: &impl GenericClient,
    ) -> Result<Vec<String>, InboxError> {
        let sql = sql!("side_by_side_rebuild.sql", "files");
        let row = client.query_one(sql, &[&self.schema]).await;
        Ok(row.map_err(failed("identify the schema's tables"))?.get(0))
    }

    /// Returns whether the schema still has the tables, with the files, that the unfinished rebuild
    /// has begun to fill. Otherwise rows that the inbox lists as applied are missing in the schema.
    pub(crate) async fn has_its_tables(
        &self,
        client: &impl GenericClient,
    ) -> Result<bool, InboxError> {
        const FAILED: &str = "compare the schema's tables";
        let files = self.files(client).await?;
        let sql = sql!("side_by_side_rebuild.sql", "has_files");
        let row = client.query_opt(sql, &[&self.consumer, &files]).await;
        Ok(row.map_err(failed(FAILED))?.ok_or_else(|| unknown(self.consumer))?.get(0))
    }

    /// Locks the rebuild against other processes until the session ends. Returns false if another
    /// process has the lock. Where the operating system allows it, the server checks during each
    /// statement that the client is connected. Otherwise the statement of a killed command would
    /// continue and keep the lock.
    pub(crate) async fn claim(&self, client: &SqlClient) -> Result<bool, InboxError> {
        let row =
            client.query_one(sql!("side_by_side_rebuild.sql", "claim"), &[&self.consumer]).await;
        Ok(row.map_err(failed("claim the rebuild"))?.get(0))
    }

    /// Returns the session that has locked the rebuild. `None` if it has just ended.
    pub(crate) async fn holder(
        &self,
        client: &SqlClient,
    ) -> Result<Option<RebuildHolder>, InboxError> {
        let row =
            client.query_opt(sql!("side_by_side_rebuild.sql", "holder"), &[&self.consumer]).await;
        let row = row.map_err(failed("find the process that rebuilds"))?;
        Ok(row.map(|row| RebuildHolder { pid: row.get(0), since: row.get(1) }))
    }

    /// Returns the highest position that the generation has applied. A rebuild that continues starts
    /// above it, so that its events do not count as late.
    pub(crate) async fn last_position(
        &self,
        client: &SqlClient,
        generation: i32,
    ) -> Result<u64, InboxError> {
        let sql = sql!("side_by_side_rebuild.sql", "last_position");
        let row = client.query_one(sql, &[&self.consumer, &generation]).await;
        let row = row.map_err(failed("read the positions of the generation"))?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    /// Records the rebuild of these files in the consumer's row if no other rebuild is recorded, and
    /// returns the current generation. Deletes the inbox rows of an earlier rebuild.
    pub(crate) async fn begin(
        &self,
        client: &mut SqlClient,
        files: &[String],
    ) -> Result<i32, InboxError> {
        const FAILED: &str = "note the rebuild";
        refuse_hidden_consumers(client, TableAccess::Update).await?;
        let transaction = client.transaction().await.map_err(failed(FAILED))?;
        let sql = sql!("side_by_side_rebuild.sql", "begin");
        let row = transaction.query_opt(sql, &[&self.consumer, &self.schema, &files]).await;
        let row = row.map_err(failed(FAILED))?.ok_or_else(|| unknown(self.consumer))?;
        let generation: i32 = row.get(0);
        forget(&transaction, self.consumer, generation + 1).await?;
        transaction.commit().await.map_err(failed(FAILED))?;
        Ok(generation)
    }

    /// Returns the server's time, the end of the time range to compare.
    pub(crate) async fn moment(&self, client: &SqlClient) -> Result<SystemTime, InboxError> {
        let row = client.query_one("SELECT now()", &[]).await;
        Ok(row.map_err(failed("read the server's clock"))?.get(0))
    }

    /// Compares the new generation with the current one. Only events from before `moment` count,
    /// because both generations have received those.
    pub(crate) async fn compare(
        &self,
        client: &SqlClient,
        generation: i32,
        moment: SystemTime,
    ) -> Result<GenerationDifference, InboxError> {
        let sql = sql!("side_by_side_rebuild.sql", "compare");
        let row = client.query_one(sql, &[&self.consumer, &generation, &moment]).await;
        let row = row.map_err(failed("compare the generations"))?;
        Ok(GenerationDifference { missing: row.get(0), unfinished: row.get(1) })
    }

    pub(crate) async fn stop_others(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<(), InboxError> {
        stop_batches(transaction, self.consumer).await
    }

    /// Locks the staged and the live tables against new foreign keys and against replacement until
    /// the transaction ends. Readers and writers continue.
    pub(crate) async fn lock_tables(
        &self,
        transaction: &Transaction<'_>,
        tables: &[StagedTable],
    ) -> Result<(), InboxError> {
        let staged = tables.iter().map(|table| table.staged.clone());
        let live = tables.iter().filter_map(StagedTable::live_name);
        let names: Vec<String> = staged.chain(live).collect();
        let sql = format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", names.join(", "));
        transaction.batch_execute(&sql).await.map_err(failed("lock the tables"))
    }

    /// Moves the rows, or runs `switch_sql` instead, and makes the new generation current.
    pub(crate) async fn switch(
        &self,
        transaction: &Transaction<'_>,
        tables: &[StagedTable],
        switch_sql: Option<&str>,
    ) -> Result<(), InboxError> {
        let moved = match switch_sql {
            Some(sql) => transaction.batch_execute(&contained(sql)).await,
            None => transaction.batch_execute(&moving(tables)).await,
        };
        moved.map_err(failed("switch to the new tables"))?;
        let sql = sql!("side_by_side_rebuild.sql", "switch");
        let changed = transaction.execute(sql, &[&self.consumer, &self.schema]).await;
        match changed.map_err(failed("switch to the new generation"))? {
            0 => Err(unknown(self.consumer)),
            _ => Ok(()),
        }
    }
}

fn live_table(row: &tokio_postgres::Row) -> Option<QualifiedName> {
    let name = |column| row.get::<_, Option<String>>(column);
    Some(QualifiedName::new(name("live_schema")?, name("live_name")?))
}

/// Abandons an unfinished rebuild and deletes the inbox rows of its generation. The tables remain
/// unchanged.
pub(crate) async fn abandon(client: &mut SqlClient, consumer: &str) -> Result<(), InboxError> {
    const FAILED: &str = "cancel the rebuild";
    refuse_hidden_consumers(client, TableAccess::Update).await?;
    let transaction = client.transaction().await.map_err(failed(FAILED))?;
    stop_batches(&transaction, consumer).await?;
    let sql = sql!("side_by_side_rebuild.sql", "abandon");
    let row = transaction.query_opt(sql, &[&consumer]).await;
    let row = row.map_err(failed(FAILED))?.ok_or_else(|| unknown(consumer))?;
    forget(&transaction, consumer, row.get::<_, i32>(0) + 1).await?;
    transaction.commit().await.map_err(failed(FAILED))
}

/// Deletes the inbox rows of a generation.
async fn forget(
    transaction: &Transaction<'_>,
    consumer: &str,
    generation: i32,
) -> Result<(), InboxError> {
    for table in ["app_inbox", "app_inbox_key"] {
        let sql = format!("DELETE FROM {SCHEMA}.{table} WHERE consumer = $1 AND generation = $2");
        let deleted = transaction.execute(&sql, &[&consumer, &generation]).await;
        deleted.map_err(failed("delete the rows of an abandoned generation"))?;
    }
    Ok(())
}

/// Returns the statements that move each table's rows into the live table. Readers see all old
/// rows or all new rows, and never wait. Grants, indexes, views and policies are unaffected,
/// because the live tables remain.
fn moving(tables: &[StagedTable]) -> String {
    // TRUNCATE refuses a table with deferred checks. The last events of the fill may have left some.
    let mut sql = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED; ".to_owned();
    for table in tables.iter().rev() {
        sql.push_str(&emptying(table));
    }
    for table in tables {
        let into = table.live_name().unwrap_or_default();
        let (from, columns) = (&table.staged_rows, table.quoted.join(", "));
        // spliced: the names of the tables and columns.
        sql.push_str(&format!(
            "INSERT INTO {into} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {from}; "
        ));
        // An identity column continues after the highest value of the moved rows.
        sql.push_str(&format!(
            "DO {}; ",
            // spliced: the table's name.
            quote_literal(&format!(
                "DECLARE c record; BEGIN \
                   FOR c IN SELECT a.attname FROM pg_catalog.pg_attribute AS a \
                             WHERE a.attrelid = {0}::pg_catalog.regclass AND a.attidentity <> '' LOOP \
                     EXECUTE pg_catalog.format('SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence(%L, %L), m.v) \
                       FROM (SELECT max(%I) AS v FROM {1}) AS m WHERE m.v IS NOT NULL', {0}, c.attname, c.attname); \
                   END LOOP; END",
                quote_literal(&into),
                into
            ))
        ));
    }
    for table in tables {
        sql.push_str(&comparing(table));
    }
    // One statement, because tables that reference each other are emptied only together.
    let staged: Vec<&str> = tables.iter().map(|table| table.staged.as_str()).collect();
    sql.push_str(&format!("TRUNCATE {}", staged.join(", ")));
    sql
}

/// Returns the statements that delete the rows of a live table, and fail if one remains: a trigger,
/// a rule or a policy may keep it, and its effect would then be there twice.
fn emptying(table: &StagedTable) -> String {
    let StagedTable { name, live_rows, .. } = table;
    let rows = live_rows.as_deref().unwrap_or_default();
    // spliced: the table's name.
    let body = format!(
        "DECLARE remaining bigint; BEGIN \
           SELECT pg_catalog.count(*) INTO remaining FROM {rows}; \
           IF remaining > 0 THEN \
             RAISE EXCEPTION '% row(s) of % remain after DELETE', remaining, {} \
               USING HINT = 'A trigger, a rule or a policy of the table keeps them. \
                             Give the role a policy for DELETE.'; \
           END IF; \
         END",
        quote_literal(name)
    );
    format!("DELETE FROM {rows}; DO {}; ", quote_literal(&body))
}

/// Returns the statement that fails if a live table has another number of rows than its new table.
/// A trigger, a rule or a policy may have suppressed or added rows.
fn comparing(table: &StagedTable) -> String {
    let StagedTable { name, staged_rows, live_rows, .. } = table;
    let live_rows = live_rows.as_deref().unwrap_or_default();
    // spliced: the names of the tables.
    let body = format!(
        "DECLARE moved bigint; filled bigint; BEGIN \
           SELECT pg_catalog.count(*) INTO moved FROM {live_rows}; \
           SELECT pg_catalog.count(*) INTO filled FROM {staged_rows}; \
           IF moved <> filled THEN \
             RAISE EXCEPTION '% has % row(s) after the move, and the new table % row(s)', {}, moved, filled \
               USING HINT = 'A trigger, a rule or a policy of the table drops or adds rows.'; \
           END IF; \
         END",
        quote_literal(name)
    );
    format!("DO {}; ", quote_literal(&body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_plan_of_the_comparison_is_quadratic() {
        // One pass and one aggregate. Without statistics a join can become a nested loop.
        let sql = sql!("side_by_side_rebuild.sql", "compare");
        for join in ["JOIN", "EXISTS", " IN (SELECT", "ALL ("] {
            assert!(!sql.contains(join), "{join} in {sql}");
        }
    }

    #[test]
    fn rows_are_moved_without_touching_the_tables_themselves() {
        let table = StagedTable {
            name: "balances".into(),
            staged: "fresh.balances".into(),
            live: Some(QualifiedName::new("shop", "balances")),
            columns: vec!["id text".into()],
            live_columns: vec!["id text".into()],
            quoted: vec!["id".into()],
            staged_rows: "ONLY fresh.balances".into(),
            live_rows: Some("ONLY shop.balances".into()),
        };
        let sql = moving(&[table]);
        for part in [
            "DELETE FROM ONLY shop.balances;",
            "INSERT INTO shop.balances (id) OVERRIDING SYSTEM VALUE SELECT id FROM ONLY fresh.balances;",
            "TRUNCATE fresh.balances",
        ] {
            assert!(sql.contains(part), "{part} is missing in {sql}");
        }
        assert!(!sql.contains("TRUNCATE shop"), "readers would wait: {sql}");
    }
}

//! Rows that may not have been settled when a slot was lost, read from the table in a stable order.
//!
//! Two stored facts fix the set. Every transaction below the settled horizon is settled, and the
//! new slot streams everything that its snapshot does not see. This module reads the rows between
//! the two. The row's number in the order identifies it, so that a second attempt finds the rows
//! recorded by the first.

use pgoutput_parser::PgTimestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_pg_client::{
    QualifiedName, SCHEMA, TableColumn, TimeType, is_comparable_sql, own_rows_sql,
    quote_identifier, quote_literal, sql, text_form_sql,
};

use crate::admin_error::AdminError;

/// The rows of the outbox tables that are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsettledRows {
    /// The transactions that the new slot does not stream: visible in this snapshot
    /// (`pg_snapshot`).
    pub snapshot: String,
    /// The rows of these transactions that are settled.
    pub settled: SettledRows,
    /// The selection among the rest.
    pub scope: Scope,
}

/// A selection of rows. Empty fields match all rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    pub aggregate_types: Vec<String>,
    pub aggregate_ids: Vec<String>,
    pub event_ids: Vec<String>,
    /// Rows from this place on, in reading order.
    pub from: Option<RowCursor>,
}

/// A place in the reading order: an aggregate, or a row of an aggregate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowCursor {
    pub key: AggregateKey,
    /// The row's values of [`SourceTable::order`]. Empty for the first row of the aggregate.
    pub order: Vec<Option<String>>,
}

/// An aggregate, as text. A field is empty if the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AggregateKey {
    pub aggregate_type: String,
    pub aggregate_id: String,
}

/// The settled rows among the rows that a snapshot sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettledRows {
    None,
    /// Rows of every transaction below this one.
    Below(u64),
    /// Rows that an earlier snapshot sees.
    SeenIn(String),
    /// Rows of events before this time.
    Before(PgTimestamp),
    /// Rows that another publisher has published.
    Unless {
        /// SQL about a row, which is true for unpublished rows. If it is null, the row is published.
        condition: String,
    },
}

/// An outbox table, described as in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTable {
    pub name: QualifiedName,
    pub oid: u32,
    /// The published columns.
    pub columns: Vec<TableColumn>,
    /// Column of the aggregate type, if there is one.
    pub aggregate_type: Option<String>,
    /// Column of the aggregate id, if there is one.
    pub aggregate_id: Option<String>,
    /// Columns that order an aggregate's rows: version, time, and an event id that counts up, if
    /// they exist. Nulls are first. Rows that are equal in all of them are in the order in which
    /// their transaction inserted them, which the columns do not show.
    pub order: Vec<String>,
    /// Column of the event id.
    pub id: String,
    /// Column of the event's time, if there is one.
    pub occurred_at: Option<String>,
    /// The condition on the rows that are read: the publication's row filter, and perhaps others.
    pub row_filter: Option<String>,
}

impl SourceTable {
    /// Returns SQL for the type and id of a row's aggregate as text, in an order that every
    /// database has.
    fn key(&self) -> [String; 2] {
        [&self.aggregate_type, &self.aggregate_id].map(|column| match column {
            Some(name) => {
                format!("{} COLLATE \"C\"", text_form_sql(&format!("t.{}", quote_identifier(name))))
            }
            None => "''::text COLLATE \"C\"".to_owned(),
        })
    }

    /// Returns the table with another condition on its rows, in addition to its row filter.
    #[must_use]
    pub fn with_condition(self, condition: &str) -> Self {
        let row_filter = match &self.row_filter {
            Some(filter) => format!("({filter}) AND ({condition})"),
            None => condition.to_owned(),
        };
        Self { row_filter: Some(row_filter), ..self }
    }

    /// Returns SQL for the event id of a row `t` as text. Empty if it is null.
    pub(crate) fn event_id(&self) -> String {
        text_form_sql(&format!("t.{}", quote_identifier(&self.id)))
    }

    /// Returns the column of the event's time, and its type.
    ///
    /// # Errors
    ///
    /// The table has no such column, or its values are not times.
    pub fn time_column(&self) -> Result<(&TableColumn, TimeType), AdminError> {
        let found = self.column(self.occurred_at.as_deref()).and_then(|at| self.columns.get(at));
        let of_time = found.and_then(|column| Some((column, TimeType::of(column)?)));
        of_time.ok_or_else(|| AdminError::NoTimeColumn { table: self.name.to_string() })
    }

    /// Returns the index of a column.
    #[must_use]
    pub fn column(&self, name: Option<&str>) -> Option<usize> {
        self.columns.iter().position(|column| Some(column.name.as_str()) == name)
    }
}

/// Aliases of the parts of a row's key in the select list.
pub(crate) const KEY_COLUMNS: [&str; 2] = ["walrelay_key_type", "walrelay_key_id"];

/// Returns a condition on a row `t`, which is neither frozen nor ancient: the snapshot sees it.
fn seen_in(snapshot: &str) -> String {
    let snapshot = quote_literal(snapshot);
    let end = format!("pg_snapshot_xmax({snapshot}::pg_snapshot)");
    let of_row = format!("{end}::text::bigint - (age(t.xmin)::bigint - age({end}::xid))");
    format!("pg_visible_in_snapshot(greatest({of_row}, 3)::text::xid8, {snapshot}::pg_snapshot)")
}

/// Returns a condition on rows of one aggregate: a row that is equal in these columns, or a later
/// one. Nulls are first in the order.
fn from_row(order: &[String], values: &[Option<String>]) -> String {
    let mut condition = "true".to_owned();
    for (column, value) in order.iter().zip(values).rev() {
        let column = format!("t.{}", quote_identifier(column));
        condition = match value {
            Some(value) => {
                let value = quote_literal(value);
                format!("({column} > {value} OR ({column} = {value} AND {condition}))")
            }
            None => format!("({column} IS NOT NULL OR {condition})"),
        };
    }
    condition
}

impl UnsettledRows {
    /// Returns a condition on the rows of a table called `t`. A row has only the low half of its
    /// transaction id. The high half is that of the nearest transaction before now. An id that
    /// seems younger than now is ancient, and is settled if any row is.
    ///
    /// The distance between a row's transaction and the end of the snapshot is the difference of
    /// two ages. All ages of a transaction count from one number, which is read with the first age
    /// (`GetStableLatestTransactionId`). Counting from another number, such as the end of the
    /// query's own snapshot, would be wrong. Sessions that began or committed in between would
    /// shift the ids, and the condition would leave out a row whose transaction seems to be
    /// running.
    fn condition(&self, table: &SourceTable) -> Result<String, AdminError> {
        let seen = seen_in(&self.snapshot);
        // A frozen row may show any transaction id, or the frozen id.
        let seen_or_frozen = format!("(t.xmin::text::bigint < 3 OR age(t.xmin) < 0 OR {seen})");
        Ok(match &self.settled {
            SettledRows::None => seen_or_frozen,
            SettledRows::Below(xid) => {
                let settled = format!("'{xid}'::xid8");
                let is_comparable = is_comparable_sql(&settled);
                format!(
                    "CASE WHEN {is_comparable} THEN age(t.xmin) BETWEEN 0 AND age({settled}::xid) AND {seen}
                          ELSE {seen_or_frozen} END"
                )
            }
            SettledRows::SeenIn(earlier) => {
                format!(
                    "t.xmin::text::bigint >= 3 AND age(t.xmin) >= 0 AND {seen} AND NOT {}",
                    seen_in(earlier)
                )
            }
            SettledRows::Before(moment) => {
                let (column, time) = table.time_column()?;
                let (column, micros) = (quote_identifier(&column.name), moment.as_micros());
                let first = time.moment_sql(&format!(
                    "timestamptz '2000-01-01 00:00:00+00' + interval '1 microsecond' * {micros}"
                ));
                format!("t.{column} >= {first} AND {seen_or_frozen}")
            }
            // The condition may raise an error on a later row, which is none of these.
            SettledRows::Unless { condition } => {
                format!("CASE WHEN {seen_or_frozen} THEN ({condition}) ELSE false END")
            }
        })
    }

    /// Returns a condition on the columns of the rows, with `AND` before it.
    fn wanted(&self, table: &SourceTable) -> String {
        let Scope { aggregate_types, aggregate_ids, event_ids, from } = &self.scope;
        let [by_type, by_id] = table.key();
        let mut text = format!(" AND {}", own_rows_sql(&table.name, "t"));
        if let Some(filter) = &table.row_filter {
            // In the server's text form: columns without the table, and only built-in functions.
            text.push_str(&format!(" AND ({filter})"));
        }
        let id = table.event_id();
        let wanted = [(&by_type, aggregate_types), (&by_id, aggregate_ids), (&id, event_ids)];
        for (expression, values) in wanted {
            if !values.is_empty() {
                let values: Vec<String> = values.iter().map(|value| quote_literal(value)).collect();
                text.push_str(&format!(" AND {expression} IN ({})", values.join(", ")));
            }
        }
        if let Some(RowCursor { key, order }) = from {
            let AggregateKey { aggregate_type, aggregate_id } = key;
            let (first, second) = (quote_literal(aggregate_type), quote_literal(aggregate_id));
            let of_key = |operator| format!("({by_type}, {by_id}) {operator} ({first}, {second})");
            match table.order.len() == order.len() {
                true => {
                    let (behind, from_row) = (of_key(">"), from_row(&table.order, order));
                    text.push_str(&format!(" AND ({behind} OR ({} AND {from_row}))", of_key("=")));
                }
                false => text.push_str(&format!(" AND {}", of_key(">="))),
            }
        }
        text
    }

    /// Returns SQL for the rows in order, with their key after their columns. The outer query
    /// measures and converts values. In this query, the sort would contain the whole values.
    pub(crate) fn ordered(&self, table: &SourceTable) -> Result<String, AdminError> {
        let mut selected = String::new();
        for column in &table.columns {
            selected.push_str(&format!("t.{}, ", quote_identifier(&column.name)));
        }
        let ([by_type, by_id], [key_type, key_id]) = (table.key(), KEY_COLUMNS);
        self.query(table, &format!("{selected}{by_type} AS {key_type}, {by_id} AS {key_id}"))
    }

    /// Returns SQL for the rows of a table in order, as the simple protocol sends them.
    ///
    /// `cmin` is the number of the statement in its transaction. It orders the rows of a
    /// transaction that have no version and the same time. `ctid` orders the rows of a statement.
    /// Both may change, so a place in the order never contains them.
    fn query(&self, table: &SourceTable, selected: &str) -> Result<String, AdminError> {
        let mut order = format!("{}, ", table.key().join(", "));
        for column in &table.order {
            order.push_str(&format!("t.{} NULLS FIRST, ", quote_identifier(column)));
        }
        Ok(format!(
            "SELECT {selected} FROM {} t WHERE {}{} ORDER BY {order}t.cmin::text::bigint, t.tableoid, t.ctid",
            table.name,
            self.condition(table)?,
            self.wanted(table)
        ))
    }

    /// Returns the numbers (from 0) and ids of the rows that dispatch state has. They are settled.
    ///
    /// Dispatch state does not name the table of a row. An id that is also in another table of the
    /// outbox may be of either, so its rows are left out: published twice rather than never.
    pub async fn recorded(
        &self,
        client: &Client,
        (table, slot): (&SourceTable, &str),
        all: &[SourceTable],
    ) -> Result<Vec<(u32, String)>, AdminError> {
        let id = format!("{} AS id", table.event_id());
        let others = all.iter().filter(|it| it.name != table.name);
        let is_unique: String = others
            .map(|it| {
                let (name, event_id, is_own) = (&it.name, it.event_id(), own_rows_sql(&it.name, "t"));
                format!(" AND NOT EXISTS (SELECT FROM {name} AS t WHERE {is_own} AND {event_id} = numbered.id)")
            })
            .collect();
        // spliced: the query of the rows.
        let sql = format!(
            "SELECT n, numbered.id FROM (SELECT (row_number() OVER () - 1)::int8 AS n, rows.id
                              FROM ({}) AS rows) AS numbered
              WHERE EXISTS (SELECT FROM {SCHEMA}.app_outbox_dispatch d
                             WHERE d.slot = $1 AND d.event_id = numbered.id){is_unique}
              ORDER BY n",
            self.query(table, &id)?
        );
        let rows = client
            .query_typed(&sql, &[(&slot, Type::TEXT)])
            .await
            .map_err(AdminError::sql(format!("look which rows of {} are recorded", table.name)))?;
        let number = |row: &Row| u32::try_from(row.get::<_, i64>("n")).ok();
        Ok(rows.iter().filter_map(|row| Some((number(row)?, row.get("id")))).collect())
    }

    /// Deletes the pending rows of dispatch state that would overtake an earlier row of their
    /// aggregate. They are then read from the table, in order. Returns their number.
    ///
    /// A relay may record the rows behind a request before it knows the result of the request. If it
    /// then ends, the rows of the request are not recorded.
    pub async fn forget_overtaking(
        &self,
        client: &Client,
        (table, slot): (&SourceTable, &str),
    ) -> Result<u64, AdminError> {
        let id = format!("{} AS id", table.event_id());
        let [by_type, by_id] = table.key();
        let rows = self.query(table, &format!("{id}, ({by_type}, {by_id})::text AS key"))?;
        // spliced: the query of the rows.
        let sql = format!(
            "WITH numbered AS (SELECT row_number() OVER () AS n, rows.id, rows.key FROM ({rows}) AS rows),
                  known AS (SELECT event_id, status, edited_at FROM {SCHEMA}.app_outbox_dispatch
                             WHERE slot = $1 AND replay_id = ''),
                  overtaking AS (
                    SELECT r.id, k.status, bool_or(k.event_id IS NULL) OVER (PARTITION BY r.key ORDER BY r.n) AS is_late
                      FROM numbered AS r LEFT JOIN known AS k ON k.event_id = r.id)
             DELETE FROM {SCHEMA}.app_outbox_dispatch AS d USING overtaking AS o
              WHERE d.slot = $1 AND d.replay_id = '' AND d.event_id = o.id AND o.is_late AND d.status = 'retrying'
                AND d.edited_at IS NULL
                AND EXISTS (SELECT FROM known WHERE known.status = 'retrying')"
        );
        let deleted = client.execute_typed(&sql, &[(&slot, Type::TEXT)]).await;
        deleted.map_err(AdminError::sql(format!("order the recorded rows of {}", table.name)))
    }

    pub async fn count(&self, client: &Client, table: &SourceTable) -> Result<u64, AdminError> {
        let name = &table.name;
        let sql = format!(
            "SELECT count(*) AS rows FROM {name} t WHERE {}{}",
            self.condition(table)?,
            self.wanted(table)
        );
        let row = client
            .query_typed_one(&sql, &[])
            .await
            .map_err(AdminError::sql(format!("count the rows of {name}")))?;
        Ok(row.get::<_, i64>("rows").unsigned_abs())
    }

    /// Returns the event ids of the first rows, in order.
    pub async fn ids(
        &self,
        client: &Client,
        table: &SourceTable,
        limit: usize,
    ) -> Result<Vec<String>, AdminError> {
        let id = format!("{} AS id", table.event_id());
        let sql = format!("{} LIMIT {limit}", self.query(table, &id)?);
        let rows = client.query_typed(&sql, &[]).await;
        let rows = rows.map_err(AdminError::sql(format!("list rows of {}", table.name)))?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }

    /// Returns whether all transactions that the snapshot sees are visible now. A commit that waits
    /// for a synchronous standby is in the WAL before other sessions see it.
    pub async fn is_visible(&self, client: &Client) -> Result<bool, AdminError> {
        let row = client
            .query_typed_one(
                sql!("unsettled_rows.sql", "is_visible"),
                &[(&self.snapshot, Type::TEXT)],
            )
            .await
            .map_err(AdminError::sql("read running transactions"))?;
        Ok(row.get("is_visible"))
    }
}

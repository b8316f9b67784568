//! Rows that may not have been settled when a slot was lost, read from the table in an order that is
//! the same each time.
//!
//! The set is fixed by two stored facts: every transaction below the settled horizon is settled, and
//! the new slot streams whatever its snapshot does not see. What lies in between is read here. A row's
//! number in the order names it, so that a second attempt finds what the first has recorded.

use pgoutput_parser::PgTimestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_pg_client::TableColumn;

use crate::admin_error::AdminError;
use walrelay_pg_client::{QualifiedName, quote_identifier, quote_literal};

/// Which rows of the outbox tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// What the new slot does not stream: transactions visible in this snapshot (`pg_snapshot`).
    pub snapshot: String,
    /// What is settled of it.
    pub settled: SettledRows,
    /// Which of the rest are wanted.
    pub scope: Scope,
}

/// Which rows are wanted; all, where nothing is named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Those of these aggregate types.
    pub aggregate_types: Vec<String>,
    /// Those of these aggregates.
    pub aggregate_ids: Vec<String>,
    /// Those with these event ids.
    pub event_ids: Vec<String>,
    /// Those from this place on, in the order in which rows are read.
    pub from: Option<RowPlace>,
}

/// A place in the order in which rows are read: an aggregate, or a row of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowPlace {
    /// The aggregate.
    pub key: AggregateKey,
    /// The row's values of [`GapTable::order`]; empty for the first row of the aggregate.
    pub order: Vec<Option<String>>,
}

/// An aggregate, as text; empty where the table has no such column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AggregateKey {
    /// Its type.
    pub aggregate_type: String,
    /// Its id.
    pub aggregate_id: String,
}

/// What is settled of the rows that a snapshot sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettledRows {
    /// None of them.
    None,
    /// Those of every transaction below this one.
    Below(u64),
    /// Those of events before this moment.
    Before(PgTimestamp),
}

/// An outbox table, as its rows are described in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapTable {
    /// Its name.
    pub name: QualifiedName,
    /// Its oid.
    pub oid: u32,
    /// Its columns that are published.
    pub columns: Vec<TableColumn>,
    /// That of the aggregate type, if it has one.
    pub aggregate_type: Option<String>,
    /// That of the aggregate id, if it has one.
    pub aggregate_id: Option<String>,
    /// Those that give the order within an aggregate: version, time, event id; as far as it has them.
    pub order: Vec<String>,
    /// The column of the event id.
    pub id: String,
    /// The column of the event's time, if the table has one.
    pub occurred_at: Option<String>,
    /// Only rows for which this holds are read: those that the publication has of it.
    pub row_filter: Option<String>,
}

impl GapTable {
    /// Type and id of a row's aggregate as text, in an order that every database has.
    fn key(&self) -> [String; 2] {
        [&self.aggregate_type, &self.aggregate_id].map(|column| match column {
            Some(name) => format!("coalesce(t.{}::text, '') COLLATE \"C\"", quote_identifier(name)),
            None => "''::text COLLATE \"C\"".to_owned(),
        })
    }

    /// Which column of its rows this one is.
    #[must_use]
    pub fn column(&self, name: Option<&str>) -> Option<usize> {
        self.columns.iter().position(|column| Some(column.name.as_str()) == name)
    }
}

/// What the parts of a row's key are called where they are selected.
pub(crate) const KEY_COLUMNS: [&str; 2] = ["walrelay_key_type", "walrelay_key_id"];

/// A condition on rows of one aggregate: this row or one behind it. Nulls are last in the order.
fn from_row(order: &[String], values: &[Option<String>]) -> String {
    let mut condition = "true".to_owned();
    for (column, value) in order.iter().zip(values).rev() {
        let column = format!("t.{}", quote_identifier(column));
        condition = match value {
            Some(value) => {
                let value = quote_literal(value);
                format!(
                    "({column} > {value} OR {column} IS NULL OR ({column} = {value} AND {condition}))"
                )
            }
            None => format!("({column} IS NULL AND {condition})"),
        };
    }
    condition
}

impl Gap {
    /// A condition on the rows of a table called `t`. The missing half of a row's transaction id is that
    /// of the nearest one before now; one that looks younger than now is ancient, and settled where anything
    /// is.
    ///
    /// How far a row's transaction lies before the end of the snapshot is the difference of two ages, because
    /// all ages of a transaction count from one number, which is read when the first is asked for
    /// (`GetStableLatestTransactionId`). Counted from anything else, such as the end of the snapshot that the
    /// query runs under, the ids are shifted by whoever has begun or committed in between, and a row that
    /// seems to be of a running transaction is left out.
    fn condition(&self, table: &GapTable) -> Result<String, AdminError> {
        let snapshot = quote_literal(&self.snapshot);
        let end = format!("pg_snapshot_xmax({snapshot}::pg_snapshot)");
        let of_row = format!("{end}::text::bigint - (age(t.xmin)::bigint - age({end}::xid))");
        let seen = format!(
            "pg_visible_in_snapshot(greatest({of_row}, 3)::text::xid8, {snapshot}::pg_snapshot)"
        );
        // What is frozen may show any transaction id, or the one that stands for all of them.
        let seen_or_frozen = format!("(t.xmin::text::bigint < 3 OR age(t.xmin) < 0 OR {seen})");
        Ok(match self.settled {
            SettledRows::None => seen_or_frozen,
            SettledRows::Below(xid) => {
                format!("age(t.xmin) BETWEEN 0 AND age('{xid}'::xid8::xid) AND {seen}")
            }
            SettledRows::Before(moment) => {
                let Some(column) = &table.occurred_at else {
                    return Err(AdminError::NoTimeColumn { table: table.name.to_string() });
                };
                let (column, micros) = (quote_identifier(column), moment.as_micros());
                let first = format!(
                    "timestamptz '2000-01-01 00:00:00+00' + interval '1 microsecond' * {micros}"
                );
                format!("t.{column} >= {first} AND {seen_or_frozen}")
            }
        })
    }

    /// A condition on the columns of the rows, and before it `AND`; nothing where all are wanted.
    fn wanted(&self, table: &GapTable) -> String {
        let Scope { aggregate_types, aggregate_ids, event_ids, from } = &self.scope;
        let [by_type, by_id] = table.key();
        let mut text = match &table.row_filter {
            // As the server shows it: columns without the table, functions of the server's own.
            Some(filter) => format!(" AND ({filter})"),
            None => String::new(),
        };
        let id = format!("t.{}::text", quote_identifier(&table.id));
        let wanted = [(&by_type, aggregate_types), (&by_id, aggregate_ids), (&id, event_ids)];
        for (expression, values) in wanted {
            if !values.is_empty() {
                let values: Vec<String> = values.iter().map(|value| quote_literal(value)).collect();
                text.push_str(&format!(" AND {expression} IN ({})", values.join(", ")));
            }
        }
        if let Some(RowPlace { key, order }) = from {
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

    /// The rows in their order, with their key behind their columns. Values are measured and converted
    /// outside of it: inside they would be sorted in full.
    pub(crate) fn ordered(&self, table: &GapTable) -> Result<String, AdminError> {
        let mut selected = String::new();
        for column in &table.columns {
            selected.push_str(&format!("t.{}, ", quote_identifier(&column.name)));
        }
        let ([by_type, by_id], [key_type, key_id]) = (table.key(), KEY_COLUMNS);
        self.query(table, &format!("{selected}{by_type} AS {key_type}, {by_id} AS {key_id}"))
    }

    /// The rows of a table in their order, as the simple protocol gives them.
    fn query(&self, table: &GapTable, selected: &str) -> Result<String, AdminError> {
        let mut order = format!("{}, ", table.key().join(", "));
        for column in &table.order {
            order.push_str(&format!("t.{}, ", quote_identifier(column)));
        }
        Ok(format!(
            "SELECT {selected} FROM {} t WHERE {}{} ORDER BY {order}t.tableoid, t.ctid",
            table.name,
            self.condition(table)?,
            self.wanted(table)
        ))
    }

    /// The numbers of those rows, from 0, that dispatch state has, and their ids: they are settled.
    ///
    /// # Errors
    ///
    /// The role may not read the table; the server refused, or the connection ended.
    pub async fn recorded(
        &self,
        client: &Client,
        (table, slot): (&GapTable, &str),
    ) -> Result<Vec<(u32, String)>, AdminError> {
        let id = format!("t.{}::text AS id", quote_identifier(&table.id));
        let sql = format!(
            "SELECT n, numbered.id FROM (SELECT (row_number() OVER () - 1)::int8 AS n, rows.id
                              FROM ({}) AS rows) AS numbered
              WHERE EXISTS (SELECT FROM public.app_outbox_dispatch d
                             WHERE d.slot = $1 AND d.event_id = numbered.id)
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

    /// How many rows that are, in all.
    ///
    /// # Errors
    ///
    /// The role may not read the table; the server refused, or the connection ended.
    pub async fn count(&self, client: &Client, table: &GapTable) -> Result<u64, AdminError> {
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

    /// The event ids of the first rows, in order.
    ///
    /// # Errors
    ///
    /// The role may not read the table; the server refused, or the connection ended.
    pub async fn ids(
        &self,
        client: &Client,
        table: &GapTable,
        limit: usize,
    ) -> Result<Vec<String>, AdminError> {
        let id = format!("coalesce(t.{}::text, '') AS id", quote_identifier(&table.id));
        let sql = format!("{} LIMIT {limit}", self.query(table, &id)?);
        let rows = client.query_typed(&sql, &[]).await;
        let rows = rows.map_err(AdminError::sql(format!("list rows of {}", table.name)))?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }

    /// Whether everything that the snapshot sees can be seen by now: a commit that waits for a
    /// synchronous standby is in the log before others see it.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn is_visible(&self, client: &Client) -> Result<bool, AdminError> {
        let row = client
            .query_typed_one(
                "SELECT NOT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                                     WHERE pg_visible_in_snapshot(xip, $1::text::pg_snapshot)) AS is_visible",
                &[(&self.snapshot, Type::TEXT)],
            )
            .await
            .map_err(AdminError::sql("look at running transactions"))?;
        Ok(row.get("is_visible"))
    }
}

//! Reads many rows of dispatch state for an operator: counts and pages.

use std::time::{Duration, SystemTime};

use pgoutput_parser::Position;
use tokio_postgres::types::{PgLsn, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::operator_commands::{COLUMNS, NEW_UPDATED_AT, dispatch_row, refuse};
use super::stored_text::{ERROR_BYTES_MAX, MOMENT, prepend_line, storable_line};
use super::{DispatchRow, DispatchStatus, DispatchStore, seconds, signed};
use crate::store_error::StoreError;
use walrelay_pg_client::{Parameter, SCHEMA, SqlText, sql};

/// A selection of rows. A field that is `None` matches all rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchQuery {
    pub state: StateFilter,
    /// Only rows of this topic, by its full name.
    pub topic: Option<String>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    /// Only rows whose last failure has this code.
    pub error_code: Option<String>,
    /// Only rows parked longer ago than this.
    pub older_than: Option<Duration>,
    /// Only rows parked before this [moment](DispatchStore::moment), which is also the reference
    /// for ages. The selection does not grow while pages are read.
    pub until: Option<SystemTime>,
}

/// The states that an operator asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateFilter {
    /// Rows that only a person can fix: dead rows, and rows whose topic or permission is missing.
    #[default]
    NeedsPerson,
    /// Unfinished rows: dead and retrying.
    Open,
    /// Rows without an attempt, because they are queued behind other rows of their key.
    Queued,
    Only(DispatchStatus),
    Any,
}

macro_rules! needs_operator {
    () => {
        "('NOT_FOUND', 'PERMISSION_DENIED', 'UNAUTHENTICATED', 'FAILED_PRECONDITION')"
    };
}

/// gRPC codes of failures that only an operator can fix.
pub(super) const NEEDS_OPERATOR: &str = needs_operator!();

impl StateFilter {
    const fn sql(self) -> &'static str {
        match self {
            Self::NeedsPerson => {
                concat!(
                    "(status = 'dead' OR status = 'retrying' AND error_code IN ",
                    needs_operator!(),
                    ")"
                )
            }
            Self::Open => "status IN ('dead', 'retrying')",
            Self::Queued => "status = 'retrying' AND error_code IS NULL",
            Self::Only(DispatchStatus::Retrying) => "status = 'retrying'",
            Self::Only(DispatchStatus::Dead) => "status = 'dead'",
            Self::Only(DispatchStatus::Published) => "status = 'published'",
            Self::Only(DispatchStatus::Discarded) => "status = 'discarded'",
            Self::Any => "true",
        }
    }
}

/// The row after which a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageStart {
    pub position: Position,
    /// Id of the row. None starts the page after all rows of the position.
    pub event_id: Option<String>,
}

impl From<&DispatchRow> for PageStart {
    fn from(row: &DispatchRow) -> Self {
        Self { position: row.position, event_id: Some(row.event_id.clone()) }
    }
}

/// The new destination of a row that could not be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDestination {
    pub topic: String,
    pub ordering_key: String,
}

impl DispatchStore {
    /// Reads the server's clock, for a query whose result must not grow.
    pub async fn moment(&self, client: &Client) -> Result<SystemTime, StoreError> {
        let row = client
            .query_typed_one("SELECT now() AS moment", &[])
            .await
            .map_err(StoreError::sql("read the server's clock"))?;
        Ok(row.get("moment"))
    }

    pub async fn count(&self, client: &Client, query: &DispatchQuery) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT count(*) AS rows FROM {SCHEMA}.app_outbox_dispatch WHERE {}",
            condition(query)
        );
        let (age, mut parameters) = self.parameters(query);
        parameters.extend(later_parameters(&age, query));
        let row = client
            .query_typed_one(&sql, &parameters)
            .await
            .map_err(StoreError::sql("count rows of dispatch state"))?;
        Ok(u64::try_from(row.get::<_, i64>("rows")).unwrap_or_default())
    }

    /// Returns the matching rows after a row, in position order, at most `limit`.
    pub async fn page(
        &self,
        client: &Client,
        query: &DispatchQuery,
        behind: Option<&PageStart>,
        limit: u32,
    ) -> Result<Vec<DispatchRow>, StoreError> {
        // spliced: the columns that `dispatch_row` reads, and the condition of the query.
        let sql = format!(
            "SELECT {COLUMNS} FROM {SCHEMA}.app_outbox_dispatch
              WHERE {}
                AND ($8 IS NULL OR (commit_lsn, tx_index) > ($8, $9)
                     OR ((commit_lsn, tx_index) = ($8, $9) AND event_id > $10))
              ORDER BY commit_lsn, tx_index, event_id
              LIMIT $11",
            condition(query)
        );
        let lsn = behind.map(|place| PgLsn::from(place.position.commit_lsn.as_u64()));
        let index = behind.map(|place| signed(place.position.tx_index, "row index")).transpose()?;
        let event_id = behind.and_then(|place| place.event_id.as_deref());
        let limit = i64::from(limit);
        let (age, mut parameters) = self.parameters(query);
        parameters.extend(later_parameters(&age, query));
        parameters.push((&lsn, Type::PG_LSN));
        parameters.push((&index, Type::INT4));
        parameters.push((&event_id, Type::TEXT));
        parameters.push((&limit, Type::INT8));
        let rows: Vec<Row> = client
            .query_typed(&sql, &parameters)
            .await
            .map_err(StoreError::sql("list dispatch state"))?;
        rows.iter().map(dispatch_row).collect()
    }

    /// Like [`edit`](Self::edit), and changes topic and ordering key, which the message carries.
    ///
    /// The caller ensures that the row never had a valid destination. A row that was in its key's
    /// order would leave a gap there and overtake rows of the new key.
    ///
    /// # Errors
    ///
    /// The row does not exist or is published.
    pub async fn reroute(
        &self,
        client: &mut Client,
        event_id: &str,
        message: &[u8],
        route: &NewDestination,
    ) -> Result<(), StoreError> {
        let failed = "edit a row of dispatch state";
        let transaction = client.transaction().await.map_err(StoreError::sql(failed))?;
        let status = self.lock(&transaction, event_id).await?;
        refuse(event_id, status, &[DispatchStatus::Published], "edited")?;
        // spliced: the history.
        let sql = format!(
            "UPDATE {SCHEMA}.app_outbox_dispatch AS d
                SET message = $3, topic = $4, ordering_key = $5, status = 'retrying', attempts = 0,
                    next_attempt_at = now(), error_code = NULL, last_error = {}, updated_at = {NEW_UPDATED_AT},
                    edited_at = now()
              WHERE slot = $1 AND event_id = $2",
            prepend_line(&format!("format('edited and routed again at %s', {MOMENT})"), "d.last_error"),
        );
        transaction
            .execute_typed(
                &sql,
                &[
                    (&self.slot, Type::TEXT),
                    (&event_id, Type::TEXT),
                    (&message, Type::BYTEA),
                    (&route.topic, Type::TEXT),
                    (&route.ordering_key, Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql(failed))?;
        self.notify(&transaction).await?;
        transaction.commit().await.map_err(StoreError::sql(failed))
    }

    /// Like [`discard`](Self::discard), for many rows in one transaction. Finished rows stay as
    /// they are. Returns the number of discarded rows.
    pub async fn discard_all(
        &self,
        client: &mut Client,
        event_ids: &[String],
        reason: &str,
    ) -> Result<u64, StoreError> {
        let failed = "discard rows of dispatch state";
        let transaction = client.transaction().await.map_err(StoreError::sql(failed))?;
        // spliced: the history.
        let sql = format!(
            "WITH chosen AS MATERIALIZED (
               SELECT event_id FROM {SCHEMA}.app_outbox_dispatch
                WHERE slot = $1 AND event_id = ANY ($2) AND status IN ('retrying', 'dead')
                ORDER BY event_id
                  FOR UPDATE)
             UPDATE {SCHEMA}.app_outbox_dispatch AS d
                SET status = 'discarded', next_attempt_at = NULL, last_error = {}, updated_at = {}
              WHERE d.slot = $1 AND d.event_id = ANY (ARRAY(SELECT event_id FROM chosen))",
            prepend_line(&format!("format('discarded at %s: %s', {MOMENT}, $3)"), "d.last_error"),
            NEW_UPDATED_AT.replace("updated_at", "d.updated_at"),
        );
        let reason = storable_line(reason, ERROR_BYTES_MAX);
        let rows: [Parameter<'_>; 2] = [(&self.slot, Type::TEXT), (&event_ids, Type::TEXT_ARRAY)];
        let discarded = transaction
            .execute_typed(&sql, &[rows[0].clone(), rows[1].clone(), (&reason, Type::TEXT)])
            .await
            .map_err(StoreError::sql(failed))?;
        transaction
            .execute_typed(&WAKE_NEXT_OF_ALL, &rows)
            .await
            .map_err(StoreError::sql(failed))?;
        self.notify(&transaction).await?;
        transaction.commit().await.map_err(StoreError::sql(failed))?;
        Ok(discarded)
    }

    /// Returns the first four parameters, and the fifth parameter's value, which outlives this
    /// call.
    fn parameters<'a>(&'a self, query: &'a DispatchQuery) -> (Option<f64>, Vec<Parameter<'a>>) {
        let parameters: Vec<Parameter<'_>> = vec![
            (&self.slot, Type::TEXT),
            (&query.topic, Type::TEXT),
            (&query.ordering_key, Type::TEXT),
            (&query.error_code, Type::TEXT),
        ];
        (query.older_than.map(seconds), parameters)
    }
}

/// After discards, makes the first row of each key due if it was queued.
///
/// The ids are an array, and a CASE hides the status from the planner. Without statistics it would
/// otherwise read all retrying rows of the slot for each key.
static WAKE_NEXT_OF_ALL: SqlText = SqlText::new(|| sql!("operator_pages.sql", "wake_next_of_all"));

fn condition(query: &DispatchQuery) -> String {
    // spliced: the condition of the state.
    format!(
        "slot = $1 AND {} AND ($2 IS NULL OR topic = $2) AND ($3 IS NULL OR ordering_key = $3)
         AND ($4 IS NULL OR error_code = $4)
         AND ($5 IS NULL OR parked_at < coalesce($6, now()) - make_interval(secs => $5))
         AND ($6 IS NULL OR parked_at <= $6) AND ($7 IS NULL OR event_type = $7)",
        query.state.sql()
    )
}

/// Returns the fifth to seventh parameter.
fn later_parameters<'a>(age: &'a Option<f64>, query: &'a DispatchQuery) -> [Parameter<'a>; 3] {
    let age: &(dyn ToSql + Sync) = age;
    [(age, Type::FLOAT8), (&query.until, Type::TIMESTAMPTZ), (&query.event_type, Type::TEXT)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_to_wake_are_found_by_their_ids_whatever_the_planner_knows() {
        let sql = sql!("operator_pages.sql", "wake_next_of_all");
        let (_, update) = sql.split_once("UPDATE").expect("an update");
        let (head, _) = update.split_once("ARRAY(").expect("an array of ids");
        for choice in ["FROM", "JOIN", "status"] {
            assert!(
                !head.contains(choice),
                "{choice} lets the planner choose another index: {sql}"
            );
        }
        let (_, tail) = sql.rsplit_once("AS n))").expect("the end of the array");
        assert!(tail.trim_start().starts_with("AND CASE"), "the status is not hidden: {tail}");
    }
}

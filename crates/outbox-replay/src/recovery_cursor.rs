//! The progress of a recovery, in `app_outbox_relay.operation`.
//!
//! An interrupted recovery continues at the recorded row. The place is valid for one snapshot. A
//! new slot has another snapshot, and its recovery starts at the first row.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_pg_client::sql;

use crate::admin_error::AdminError;
use crate::operation::SlotSnapshot;
use crate::rows::unsettled_rows::{AggregateKey, RowCursor, SourceTable};

/// The row at which a recovery continues. Every row before it is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryCursor {
    /// The tables that were read, in order. The row is in the last one.
    pub tables: Vec<String>,
    /// The columns that order the last table.
    pub columns: Vec<String>,
    /// Number of rows before this row.
    pub number: u32,
    pub row: RowCursor,
}

impl RecoveryCursor {
    /// Returns the columns that order a table: aggregate type, aggregate id, and the order within
    /// an aggregate.
    #[must_use]
    pub fn columns_of(table: &SourceTable) -> Vec<String> {
        let key = [&table.aggregate_type, &table.aggregate_id];
        let key = key.map(|column| column.clone().unwrap_or_default());
        key.into_iter().chain(table.order.iter().cloned()).collect()
    }

    /// Returns the index of the row's table in `tables`. None if the recovery read other tables, or
    /// read them in another order, because then the place is not valid.
    #[must_use]
    pub fn table_among(&self, tables: &[SourceTable]) -> Option<usize> {
        let last = self.tables.len().checked_sub(1)?;
        let read = tables.get(..self.tables.len())?;
        let is_same =
            read.iter().zip(&self.tables).all(|(one, name)| one.name.to_string() == *name);
        let table = tables.get(last)?;
        let has_values = self.row.order.len() == table.order.len();
        (is_same && has_values && self.columns == Self::columns_of(table)).then_some(last)
    }
}

/// Records the row at which this part of a recovery continues. Returns false if another part is
/// published now.
pub async fn note_place(
    client: &Client,
    (slot, part): (&str, &SlotSnapshot),
    place: &RecoveryCursor,
) -> Result<bool, AdminError> {
    let RecoveryCursor { tables, columns, number, row: RowCursor { key, order } } = place;
    let written = client
        .execute_typed(
            sql!("recovery_cursor.sql", "note_place"),
            &[
                (&slot, Type::TEXT),
                (&part.consistent_point.to_string(), Type::TEXT),
                (&part.snapshot, Type::TEXT),
                (tables, Type::TEXT_ARRAY),
                (columns, Type::TEXT_ARRAY),
                (&i64::from(*number), Type::INT8),
                (&key.aggregate_type, Type::TEXT),
                (&key.aggregate_id, Type::TEXT),
                (order, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(AdminError::sql("note how far the recovery has come"))?;
    Ok(written == 1)
}

/// Reads the row at which this part of a recovery continues. None means the first row.
pub async fn read_recovery_cursor(
    client: &Client,
    (slot, part): (&str, &SlotSnapshot),
) -> Result<Option<RecoveryCursor>, AdminError> {
    let row = client
        .query_typed_opt(
            sql!("recovery_cursor.sql", "read_recovery_cursor"),
            &[(&slot, Type::TEXT), (&part.snapshot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("read how far the recovery has come"))?;
    Ok(row.and_then(|row| {
        Some(RecoveryCursor {
            tables: row.get("tables"),
            columns: row.get("columns"),
            number: u32::try_from(row.get::<_, Option<i64>>("number")?).ok()?,
            row: RowCursor {
                key: AggregateKey {
                    aggregate_type: row.get("aggregate_type"),
                    aggregate_id: row.get("aggregate_id"),
                },
                order: row.get("order_values"),
            },
        })
    }))
}

//! Reads the rows of the tables: from Postgres in production, from memory in the simulation.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use walrelay_pg_client::SqlClient;
use walrelay_relay::error::RelayError;

use crate::rows::large_values::ServerEncoding;
use crate::rows::source_row::SourceRow;
use crate::rows::unsettled_rows::{SourceTable, UnsettledRows};

pub trait RowReader: Send + Sync + 'static {
    /// Returns whether every transaction in the snapshot is visible to readers.
    fn is_visible(
        &self,
        gap: &UnsettledRows,
    ) -> impl Future<Output = Result<bool, RelayError>> + Send;

    /// Returns the rows of a table, in their order.
    fn rows(
        &self,
        gap: &UnsettledRows,
        table: &SourceTable,
    ) -> impl Future<Output = Result<Rows, RelayError>> + Send;
}

pub type Rows = BoxStream<'static, Result<SourceRow, RelayError>>;

#[derive(Debug)]
pub(crate) struct PostgresRowReader {
    pub(crate) client: SqlClient,
    pub(crate) text: ServerEncoding,
}

impl RowReader for PostgresRowReader {
    async fn is_visible(&self, gap: &UnsettledRows) -> Result<bool, RelayError> {
        Ok(gap.is_visible(&self.client).await?)
    }

    async fn rows(&self, gap: &UnsettledRows, table: &SourceTable) -> Result<Rows, RelayError> {
        let rows = gap.rows(&self.client, (table, self.text)).await?;
        Ok(rows.map_err(RelayError::from).boxed())
    }
}

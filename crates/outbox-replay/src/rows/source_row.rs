//! Rows of a table, as a recovery or a backfill reads them.
//!
//! In a `SQL_ASCII` database values are sent as hexadecimal digits, because the server refuses to
//! send bytes that are not UTF-8.

use std::future::ready;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use pgoutput_parser::Column;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use crate::admin_error::AdminError;
use crate::rows::large_values::{ServerEncoding, sent_form_sql};
use crate::rows::unsettled_rows::{AggregateKey, KEY_COLUMNS, SourceTable, UnsettledRows};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceValue {
    Null,
    /// The text form. It is UTF-8 unless the database has no encoding.
    Text(Vec<u8>),
    /// A value that was not read, because no message can contain it.
    TooLarge {
        /// Size of the text form in bytes.
        bytes: usize,
    },
}

impl SourceValue {
    /// Returns the value as a column of the replication stream.
    #[must_use]
    pub fn as_column(&self) -> Column<'_> {
        match self {
            Self::Null => Column::Null,
            Self::Text(text) => Column::Text(text),
            Self::TooLarge { bytes } => Column::TooLarge { bytes: *bytes },
        }
    }
}

/// A row of the table, in the reading order of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRow {
    pub values: Vec<SourceValue>,
    /// The row's aggregate, which orders the rows. None if it is not valid UTF-8.
    pub key: Option<AggregateKey>,
}

/// Returns how the server of this connection sends text.
pub async fn read_server_text(client: &Client) -> Result<ServerEncoding, AdminError> {
    let sql = "SELECT current_setting('server_encoding') = 'SQL_ASCII'";
    let row = client.query_typed_one(sql, &[]).await;
    let row = row.map_err(AdminError::sql("read the encoding of the server"))?;
    Ok(if row.get(0) { ServerEncoding::Unknown } else { ServerEncoding::Utf8 })
}

impl UnsettledRows {
    /// Returns the rows, without values that are too large for a message.
    pub async fn rows(
        &self,
        client: &Client,
        (table, text): (&SourceTable, ServerEncoding),
    ) -> Result<BoxStream<'static, Result<SourceRow, AdminError>>, AdminError> {
        let [key_type, key_id] =
            KEY_COLUMNS.map(|column| sent_form_sql(&format!("t.{column}"), text));
        let sql = format!(
            "SELECT {}, {key_type}, {key_id} FROM ({} OFFSET 0) AS t",
            table.selected(text),
            self.ordered(table)?
        );
        let action = format!("read rows of {}", table.name);
        let sent = client.simple_query_raw(&sql).await.map_err(AdminError::sql(action.clone()))?;
        let table = table.clone();
        let rows = sent.filter_map(move |message| {
            ready(match message {
                Ok(SimpleQueryMessage::Row(row)) => Some(SourceRow::read(&row, (&table, text))),
                Ok(_) => None,
                Err(source) => Some(Err(AdminError::sql(action.clone())(source))),
            })
        });
        Ok(rows.boxed())
    }
}

impl SourceRow {
    fn read(
        row: &SimpleQueryRow,
        (table, text): (&SourceTable, ServerEncoding),
    ) -> Result<Self, AdminError> {
        let values = table.values(row)?;
        let value = |(value, column): (Column<'_>, _)| match value {
            Column::Null | Column::UnchangedToast => Ok(SourceValue::Null),
            Column::TooLarge { bytes } => Ok(SourceValue::TooLarge { bytes }),
            Column::Text(bytes) | Column::Binary(bytes) => {
                text.sent(column, bytes).map(SourceValue::Text)
            }
        };
        let values = values.into_iter().zip(&table.columns).map(value).collect::<Result<_, _>>()?;
        // The key follows the columns and the column with the sizes of oversized values.
        let first = table.columns.len() + 1;
        let part = |index: usize| {
            let sent = row.get(index).unwrap_or_default();
            let bytes = text.decode_text(sent.as_bytes()).ok()?;
            String::from_utf8(bytes).ok()
        };
        let key = part(first)
            .zip(part(first + 1))
            .map(|(aggregate_type, aggregate_id)| AggregateKey { aggregate_type, aggregate_id });
        Ok(Self { values, key })
    }
}

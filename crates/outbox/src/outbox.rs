//! The schema of the functions that write events.

use tokio_postgres::{Error, Transaction};

use crate::event::Event;

/// The result of [`emit_once`](crate::emit_once()).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// Id of the event, as text.
    pub event_id: String,
    /// Version of the event within its aggregate.
    pub version: i64,
    /// Whether this call wrote the event. If not, the caller must roll its own change back.
    pub is_new: bool,
}

/// The outbox of one schema. The default finds the functions through the `search_path`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outbox {
    /// Empty, or the quoted schema with a dot.
    qualifier: String,
}

impl Outbox {
    /// Names the schema that `walrelay init --schema` was given, without quotes.
    #[must_use]
    pub fn in_schema(schema: &str) -> Self {
        Self { qualifier: format!("\"{}\".", schema.replace('"', "\"\"")) }
    }

    /// Writes one event, as [`emit`](crate::emit()) does.
    ///
    /// # Errors
    ///
    /// Those of [`emit`](crate::emit()).
    pub async fn emit(
        &self,
        transaction: &Transaction<'_>,
        event: &Event<'_>,
    ) -> Result<i64, Error> {
        let sql = format!("SELECT {}app_outbox_emit($1, $2, $3, $4, $5, $6, $7)", self.qualifier);
        let headers = event.header_document();
        let row = transaction.query_one(&sql, &event.parameters(&headers)).await?;
        row.try_get(0)
    }

    /// Writes one event unless the key has one, as [`emit_once`](crate::emit_once()) does.
    ///
    /// # Errors
    ///
    /// Those of [`emit_once`](crate::emit_once()).
    pub async fn emit_once(
        &self,
        transaction: &Transaction<'_>,
        event: &Event<'_>,
        idempotency_key: &str,
    ) -> Result<Emitted, Error> {
        let sql = format!(
            "SELECT event_id::text, version, is_new FROM {}app_outbox_emit_once($1, $2, $3, $4, $8, $5, $6, $7)",
            self.qualifier
        );
        let headers = event.header_document();
        let mut parameters = event.parameters(&headers).to_vec();
        parameters.push(&idempotency_key);
        let row = transaction.query_one(&sql, &parameters).await?;
        Ok(Emitted { event_id: row.try_get(0)?, version: row.try_get(1)?, is_new: row.try_get(2)? })
    }
}

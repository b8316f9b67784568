//! The schema of the functions that write events, and the statements that call them.

use crate::emitted::Emitted;
use crate::event::Event;
use crate::transaction::Transaction;

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
    pub async fn emit<T: Transaction>(
        &self,
        transaction: T,
        event: &Event<'_>,
    ) -> Result<i64, T::Error> {
        let sql = format!("SELECT {}app_outbox_emit($1, $2, $3, $4, $5, $6, $7)", self.qualifier);
        transaction.query_version(&sql, event).await
    }

    /// Writes one event unless the key has one, as [`emit_once`](crate::emit_once()) does.
    pub async fn emit_once<T: Transaction>(
        &self,
        transaction: T,
        event: &Event<'_>,
        idempotency_key: &str,
    ) -> Result<Emitted, T::Error> {
        let sql = format!(
            "SELECT event_id::text, version, is_new FROM {}app_outbox_emit_once($1, $2, $3, $4, $8, $5, $6, $7)",
            self.qualifier
        );
        transaction.query_emitted(&sql, event, idempotency_key).await
    }
}

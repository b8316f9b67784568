//! Reads the heads of all keys, one page at a time.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::DispatchStore;
use crate::store_error::StoreError;
use walrelay_pg_client::{SqlText, sql};

/// The first row of a key that will be published again.
#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    pub topic: String,
    /// The ordering key, never empty.
    pub ordering_key: String,
    /// Whether the row has a due time. A row without one is due when its key is next claimed, and
    /// no notification is sent.
    pub is_timed: bool,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the key, because this output reaches logs.
        f.debug_struct("Head")
            .field("topic", &self.topic)
            .field("is_timed", &self.is_timed)
            .finish_non_exhaustive()
    }
}

impl DispatchStore {
    /// Returns the heads of at most `limit` keys after the key `after`, ordered by topic and key.
    pub async fn heads_after(
        &self,
        client: &Client,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Head>, StoreError> {
        let (topic, ordering_key) = after.unwrap_or_default();
        let rows = client
            .query_typed(
                &HEADS,
                &[
                    (&self.slot, Type::TEXT),
                    (&topic, Type::TEXT),
                    (&ordering_key, Type::TEXT),
                    (&i64::from(limit), Type::INT8),
                ],
            )
            .await
            .map_err(StoreError::sql("look through parked keys"))?;
        let head = |row: &tokio_postgres::Row| Head {
            topic: row.get("topic"),
            ordering_key: row.get("ordering_key"),
            is_timed: row.get("is_timed"),
        };
        Ok(rows.iter().map(head).collect())
    }
}

// Probes the index once per key, however many rows each key has.
static HEADS: SqlText = SqlText::new(|| sql!("heads.sql", "heads"));

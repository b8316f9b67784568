//! Test producers: insert rows of several aggregates in transactions, and roll some transactions
//! back.

use tokio_postgres::Client;

use crate::checker::Committed;

/// The rows to insert.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The outbox table with its schema.
    pub table: String,
    /// The value of `aggregatetype`.
    pub aggregate_type: String,
    /// The prefix of aggregate names, followed by a number. The order within a key is known only if
    /// a single producer writes the key. Concurrent producers therefore need different prefixes.
    pub aggregate_prefix: String,
    /// The number of committed rows. Rolled-back rows are additional.
    pub rows_count: u32,
    /// The number of aggregates that the rows are spread over.
    pub aggregates_count: u32,
    /// The number of rows per transaction. The last transaction may be smaller.
    pub rows_per_transaction: u32,
    /// The number of committed transactions before each rolled-back one. 0 means no rollback.
    pub rollback_every: u32,
    /// The size of the padding in the payload.
    pub padding_bytes: u32,
    /// The first row number and therefore the first version. A later workload can continue the same
    /// aggregates.
    pub first_number: u32,
}

impl Workload {
    /// Returns a workload for `public.app_outbox` with three aggregates and seven rows per
    /// transaction. A rolled-back transaction follows every fifth commit.
    #[must_use]
    pub fn of_rows(rows_count: u32) -> Self {
        Self {
            table: "public.app_outbox".into(),
            aggregate_type: "video".into(),
            aggregate_prefix: "v-".into(),
            rows_count,
            aggregates_count: 3,
            rows_per_transaction: 7,
            rollback_every: 5,
            padding_bytes: 0,
            first_number: 0,
        }
    }

    /// Inserts the rows and returns the committed ones in commit order.
    ///
    /// # Errors
    ///
    /// The first statement that failed. After a lost connection, the last transaction may or may
    /// not be committed.
    pub async fn insert(&self, client: &Client) -> Result<Vec<Committed>, tokio_postgres::Error> {
        let mut committed = Vec::new();
        let end = self.first_number + self.rows_count;
        let mut first = self.first_number;
        let mut transactions_count = 0;
        while first < end {
            let count = self.rows_per_transaction.max(1).min(end - first);
            committed.extend(self.transaction(client, first, count, "COMMIT").await?);
            transactions_count += 1;
            if self.rollback_every > 0 && transactions_count % self.rollback_every == 0 {
                self.transaction(client, first, count, "ROLLBACK").await?;
            }
            first += count;
        }
        Ok(committed)
    }

    async fn transaction(
        &self,
        client: &Client,
        first: u32,
        count: u32,
        end: &str,
    ) -> Result<Vec<Committed>, tokio_postgres::Error> {
        // The payload's text has the format that jsonb prints, so that the texts can be compared.
        let sql = format!(
            "INSERT INTO {} (aggregatetype, aggregateid, event_type, version, payload)
             SELECT $1, $2 || (n % $3), 'test.inserted', n,
                    ('{{\"n\": ' || n || ', \"padding\": \"' || repeat('x', $4) || '\"}}')::jsonb
               FROM generate_series($5::bigint, $6::bigint) AS n
             RETURNING id::text, aggregateid, payload::text",
            self.table
        );
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] = [
            &self.aggregate_type,
            &self.aggregate_prefix,
            &i64::from(self.aggregates_count.max(1)),
            &i32::try_from(self.padding_bytes).unwrap_or(i32::MAX),
            &i64::from(first),
            &i64::from(first + count - 1),
        ];
        client.batch_execute("BEGIN").await?;
        let inserted = client.query(&sql, &parameters).await?;
        client.batch_execute(end).await?;
        let committed = inserted.iter().map(|row| Committed {
            event_id: row.get(0),
            key: row.get(1),
            data: row.get::<_, String>(2).into_bytes(),
        });
        Ok(committed.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::postgres::TestDatabase;

    #[tokio::test]
    async fn a_workload_returns_the_rows_in_the_table() {
        let Some(database) = TestDatabase::create_or_skip().await else { return };
        let client = database.client();
        let table = "CREATE TABLE app_outbox (
            id uuid DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text,
            event_type text, version bigint, payload jsonb)";
        client.batch_execute(table).await.unwrap();

        let workload = Workload { padding_bytes: 10, ..Workload::of_rows(100) };
        let committed = workload.insert(client).await.unwrap();

        let sql = "SELECT id::text, payload::text FROM app_outbox";
        let held = client.query(sql, &[]).await.unwrap();
        let held: BTreeSet<(String, String)> =
            held.iter().map(|row| (row.get(0), row.get(1))).collect();
        let returned: BTreeSet<(String, String)> = committed
            .iter()
            .map(|row| (row.event_id.clone(), String::from_utf8(row.data.clone()).unwrap()))
            .collect();
        assert_eq!(held, returned);
        assert_eq!(committed.len(), 100);
        assert_eq!(committed.iter().map(|row| &row.key).collect::<BTreeSet<_>>().len(), 3);
        // Three transactions were rolled back. Their ids never appear, and no number is missing.
        assert_eq!(committed[0].data, br#"{"n": 0, "padding": "xxxxxxxxxx"}"#);
    }
}

//! Producers for tests: rows over several aggregates, in transactions, some of them rolled back.

use tokio_postgres::Client;

use crate::checker::Committed;

/// What to insert.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The outbox table, schema and all.
    pub table: String,
    /// Goes into `aggregatetype`.
    pub aggregate_type: String,
    /// Aggregates are called this and a number. Order within a key is known only if one producer
    /// alone writes it, so producers that run at the same time need different prefixes.
    pub aggregate_prefix: String,
    /// How many rows are to be committed; those rolled back come on top.
    pub rows_count: u32,
    /// Over how many aggregates they are spread.
    pub aggregates_count: u32,
    /// How many rows one transaction inserts; the last one may be smaller.
    pub rows_per_transaction: u32,
    /// After this many committed transactions one is rolled back; 0 for never.
    pub rollback_every: u32,
    /// How much padding the payload carries.
    pub padding_bytes: u32,
    /// Row numbers, hence versions, start here; a later workload on the same aggregates goes on.
    pub first_number: u32,
}

impl Workload {
    /// Rows for `public.app_outbox`, three aggregates, transactions of seven, every fifth followed
    /// by one that is rolled back.
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

    /// Inserts everything and returns what was committed, in commit order.
    ///
    /// # Errors
    ///
    /// The first statement that failed; with the connection lost, whether the last transaction was
    /// committed is then unknown.
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
        // The payload's text is written as jsonb prints it, so that it can be compared as it is.
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
    async fn what_a_workload_returns_is_what_the_table_holds() {
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
        // 15 transactions, so three were rolled back: their ids are gone, their numbers are not.
        assert_eq!(committed[0].data, br#"{"n": 0, "padding": "xxxxxxxxxx"}"#);
    }
}

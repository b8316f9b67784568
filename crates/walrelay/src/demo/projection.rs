//! The demo's read model in another database, which a consumer keeps up to date.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use walrelay_errors::{Chain, Code};
use walrelay_inbox::{
    Consumer, Effect, Endpoint, Event, Handler, HandlerError, Health, InboxError, Metrics,
    Settings, Transaction, migrate_inbox,
};
use walrelay_inbox_admin::admin;
use walrelay_pg_client::{ConnectConfig, PgEnv, SqlClient, SqlText, connect_sql, sql};
use walrelay_relay::shutdown::Shutdown;

const CONSUMER: &str = "order_state";
const DATABASE: &str = "read_model";

/// Counts the events per order, because an UPSERT alone would hide an event that was applied twice.
static WRITE: SqlText = SqlText::new(|| sql!("projection.sql", "write"));

/// Reads the expected state of each order from the source.
static SOURCE: SqlText = SqlText::new(|| sql!("projection.sql", "source"));

const READ_MODEL: &str = "SELECT id, version, status, events FROM order_state";

/// The handler that applies events to the read model.
struct OrderState;

impl Handler for OrderState {
    async fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), HandlerError> {
        let mut events: Vec<&Event> = events.iter().collect();
        // Sorting by order id makes all batches lock rows in the same order, which avoids
        // deadlocks. The sort is stable, so the events of one order stay in order.
        events.sort_by_key(|event| event.ordering_key.as_str());
        let write = transaction.prepare(&WRITE).await?;
        for event in events {
            let order: Value = serde_json::from_slice(&event.data).map_err(HandlerError::dead)?;
            let status = order["status"].as_str();
            transaction.execute(&write, &[&event.ordering_key, &event.version, &status]).await?;
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct ReadModel {
    source: SqlClient,
    own: SqlClient,
    settings: Settings,
}

impl ReadModel {
    /// Creates the database, the inbox and the table.
    pub(crate) async fn create(
        server_url: impl Fn(&str) -> String,
        subscription: &str,
        endpoint: Endpoint,
    ) -> Result<Self, Error> {
        let at = |url: &str| {
            ConnectConfig::parse(url, &PgEnv::default()).map_err(|_| failed("no such database"))
        };
        let source = connect_sql(&at(&server_url("postgres"))?).await?;
        let refused = |error: tokio_postgres::Error| failed(Chain(&error));
        source.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await.map_err(refused)?;
        let connect = at(&server_url(DATABASE))?;
        let own = connect_sql(&connect).await?;
        migrate_inbox(&own).await?;
        admin::register(&own, CONSUMER, subscription).await.map_err(Error::Inbox)?;
        own.batch_execute(sql!("projection.sql", "create_order_state")).await.map_err(refused)?;
        let settings = Settings::new(CONSUMER, Effect::handler(OrderState), connect, endpoint);
        Ok(Self { source, own, settings })
    }

    /// Applies events until `stop` is requested.
    pub(crate) fn keep(
        &self,
        stop: Shutdown,
    ) -> impl Future<Output = Result<(), InboxError>> + use<> {
        let settings = self.settings.clone();
        async move {
            let consumer = Consumer::prepare(settings).await?;
            let (metrics, health) = (Metrics::new(CONSUMER), Health::new(CONSUMER));
            Box::pin(consumer.run(stop.requested(), metrics, health)).await
        }
    }

    /// Waits at most `patience` until every committed event is applied, and compares.
    pub(crate) async fn compare(&self, patience: Duration) -> Result<Comparison, Error> {
        let until = Instant::now() + patience;
        loop {
            let comparison = Comparison::of(
                &read(&self.source, &SOURCE).await?,
                &read(&self.own, READ_MODEL).await?,
            );
            if comparison.is_equal() || Instant::now() >= until {
                return Ok(comparison);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn close(self) {
        self.source.close().await;
        self.own.close().await;
    }
}

/// The state of an order, in the source or in the read model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order {
    version: i64,
    status: Option<String>,
    events: i64,
}

async fn read(client: &SqlClient, sql: &str) -> Result<BTreeMap<String, Order>, Error> {
    let rows = client.query(sql, &[]).await.map_err(|error| failed(Chain(&error)))?;
    let order = |row: &tokio_postgres::Row| Order {
        version: row.get(1),
        status: row.get(2),
        events: row.get(3),
    };
    Ok(rows.iter().map(|row| (row.get(0), order(row))).collect())
}

/// The result of comparing the read model with its source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Orders in the source.
    pub orders: u64,
    /// Orders that the read model lacks or has in another state.
    pub different: u64,
    pub applied: u64,
    pub missing: u64,
    /// Events that were applied more than once.
    pub repeated: u64,
}

impl Comparison {
    fn of(source: &BTreeMap<String, Order>, read_model: &BTreeMap<String, Order>) -> Self {
        let mut comparison = Self::default();
        for (id, order) in source {
            let found = read_model.get(id);
            let applied = found.map_or(0, |found| found.events);
            comparison.orders += 1;
            comparison.different += u64::from(found != Some(order));
            comparison.applied += applied.unsigned_abs();
            comparison.missing += u64::try_from(order.events - applied).unwrap_or(0);
            comparison.repeated += u64::try_from(applied - order.events).unwrap_or(0);
        }
        comparison
    }

    /// Returns whether every event was applied exactly once.
    #[must_use]
    pub(crate) const fn is_equal(&self) -> bool {
        self.different == 0
    }
}

fn failed(what: impl ToString) -> Error {
    Error::refused(Code::DemoFailed, format!("the read model: {}", what.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_event_and_a_repeated_one_are_told_apart() {
        let order = |version, events| Order { version, status: Some("paid".into()), events };
        let source: BTreeMap<String, Order> =
            [("a".into(), order(2, 2)), ("b".into(), order(3, 3)), ("c".into(), order(1, 1))]
                .into();
        let read_model = [("a".into(), order(2, 3)), ("b".into(), order(3, 3))].into();
        let expected = Comparison { orders: 3, different: 2, applied: 6, missing: 1, repeated: 1 };
        assert_eq!(Comparison::of(&source, &read_model), expected);
        assert!(!expected.is_equal() && Comparison::of(&source, &source).is_equal());
    }
}

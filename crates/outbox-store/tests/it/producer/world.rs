//! A producer's database, and the events in its outbox.

use std::ops::Deref;

use tokio_postgres::error::DbError;
use walrelay_outbox_store::migrate;
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

pub(crate) struct ProducerDatabase {
    pub(crate) database: TestDatabase,
    session: TestClient,
}

impl Deref for ProducerDatabase {
    type Target = TestClient;

    fn deref(&self) -> &TestClient {
        &self.session
    }
}

/// Returns a world of its own for each test.
pub(crate) async fn world() -> Option<ProducerDatabase> {
    let database = TestDatabase::create_or_skip().await?;
    let session = database.connect().await;
    let outbox = QualifiedName::new("public", "app_outbox");
    migrate(&session, &[outbox]).await.expect("the migrations run");
    Some(ProducerDatabase { database, session })
}

impl ProducerDatabase {
    pub(crate) async fn session(&self) -> TestClient {
        self.database.connect().await
    }

    /// Returns `type id event version payload` of each event, oldest first.
    pub(crate) async fn outbox(&self) -> Vec<String> {
        let sql = "SELECT concat_ws(' ', aggregatetype, aggregateid, event_type, version, payload)
                     FROM app_outbox ORDER BY occurred_at, ctid";
        let rows = self.query(sql, &[]).await.expect("the outbox");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns the error that refuses this statement.
    pub(crate) async fn refused(&self, sql: &str) -> DbError {
        refused(&self.session, sql).await
    }
}

pub(crate) async fn refused(session: &TestClient, sql: &str) -> DbError {
    let error = session.batch_execute(sql).await.expect_err(sql);
    error.as_db_error().expect("an error of the server").clone()
}

//! A migrated database, and sessions on it that can open transactions.

use std::ops::{Deref, DerefMut};

use tokio_postgres::Client;
use walrelay_postgres::{QualifiedName, migrate};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// A separate session, which ends when it is dropped.
pub(crate) struct Session(TestClient);

impl Session {
    pub(crate) async fn on(database: &TestDatabase) -> Self {
        Self(TestClient::connect(database.url()).await)
    }

    /// Opens a session of another role.
    pub(crate) async fn as_role(database: &TestDatabase, role: &str) -> Self {
        let mut config: tokio_postgres::Config =
            database.url().parse().expect("a connection string");
        config.user(role);
        Self::opened(&config).await
    }

    /// Opens a session with these settings.
    pub(crate) async fn opened(config: &tokio_postgres::Config) -> Self {
        Self(TestClient::open(config).await.expect("a connection"))
    }

    /// Opens a session. None while the server accepts none, as just after sessions were terminated.
    pub(crate) async fn try_at(url: &str) -> Option<Self> {
        TestClient::try_connect(url).await.ok().map(Self)
    }

    /// Returns the value of a single column and row, as text.
    pub(crate) async fn text(&self, sql: &str) -> String {
        let row = self.0.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

/// Returns a new database with all tables.
pub(crate) async fn migrated() -> (TestDatabase, Session) {
    let database = TestDatabase::create().await;
    let session = Session::on(&database).await;
    migrate_all(&session).await;
    (database, session)
}

/// Creates all tables in a database that has none.
pub(crate) async fn migrate_all(session: &Session) {
    let outbox = QualifiedName::new("public", "app_outbox");
    migrate(session, &[outbox]).await.expect("the migrations run");
}

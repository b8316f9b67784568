//! A database with the migrations run, and sessions on it that can open transactions.

use std::ops::{Deref, DerefMut};

use tokio_postgres::Client;
use walrelay_postgres::{QualifiedName, migrate};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// A session of its own; ends when dropped.
pub(crate) struct Session(TestClient);

impl Session {
    pub(crate) async fn on(database: &TestDatabase) -> Self {
        Self(TestClient::connect(database.url()).await)
    }

    /// A session of another role.
    pub(crate) async fn as_role(database: &TestDatabase, role: &str) -> Self {
        let mut config: tokio_postgres::Config =
            database.url().parse().expect("a connection string");
        config.user(role);
        Self::opened(&config).await
    }

    /// A session with these settings.
    pub(crate) async fn opened(config: &tokio_postgres::Config) -> Self {
        Self(TestClient::open(config).await.expect("a connection"))
    }

    /// None while none can be had, as just after sessions were ended.
    pub(crate) async fn try_at(url: &str) -> Option<Self> {
        TestClient::try_connect(url).await.ok().map(Self)
    }

    /// The one value of the one row, as text.
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

/// A fresh database with all tables, on each installed version or on the oldest.
pub(crate) async fn migrated() -> (TestDatabase, Session) {
    let database = TestDatabase::create().await;
    let session = Session::on(&database).await;
    migrate_all(&session).await;
    (database, session)
}

/// All tables in a database that has none.
pub(crate) async fn migrate_all(session: &Session) {
    let outbox = QualifiedName::new("public", "app_outbox");
    migrate(session, &[outbox]).await.expect("the migrations run");
}

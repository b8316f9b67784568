//! A database with the migrations run, and sessions on it that can open transactions.

use std::ops::{Deref, DerefMut};

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};
use walrelay_postgres::{QualifiedName, migrate};
use walrelay_testkit::postgres::TestDatabase;

/// A session of its own; ends when dropped.
pub(crate) struct Session {
    client: Client,
    _connection: JoinSet<()>,
}

impl Session {
    pub(crate) async fn on(database: &TestDatabase) -> Self {
        Self::at(database.url(), "").await
    }

    /// A session of another role.
    pub(crate) async fn as_role(database: &TestDatabase, role: &str) -> Self {
        Self::at(database.url(), role).await
    }

    async fn at(url: &str, role: &str) -> Self {
        let mut config: tokio_postgres::Config = url.parse().expect("a connection string");
        if !role.is_empty() {
            config.user(role);
        }
        Self::with(&config).await.expect("a connection")
    }

    /// None while none can be had, as just after sessions were ended.
    pub(crate) async fn try_at(url: &str) -> Option<Self> {
        Self::with(&url.parse().expect("a connection string")).await.ok()
    }

    async fn with(config: &tokio_postgres::Config) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = config.connect(NoTls).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        Ok(Self { client, _connection: tasks })
    }

    /// The one value of the one row, as text.
    pub(crate) async fn text(&self, sql: &str) -> String {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// A fresh database with all tables, on each installed version or on the oldest.
pub(crate) async fn migrated() -> (TestDatabase, Session) {
    let database = TestDatabase::create().await;
    let session = Session::on(&database).await;
    let outbox = QualifiedName::new("public", "app_outbox");
    migrate(&session, &[outbox]).await.expect("the migrations run");
    (database, session)
}

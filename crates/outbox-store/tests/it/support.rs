//! A database with the migrations run.

use walrelay_outbox_store::migrate;
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// A fresh database with all tables, on each installed version or on the oldest.
pub(crate) async fn migrated() -> (TestDatabase, TestClient) {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    migrate_all(&session).await;
    (database, session)
}

/// All tables in a database that has none.
pub(crate) async fn migrate_all(session: &TestClient) {
    let outbox = QualifiedName::new("public", "app_outbox");
    migrate(session, &[outbox]).await.expect("the migrations run");
}

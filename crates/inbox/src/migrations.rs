//! The consumer's tables and functions, as SQL that is safe to run again.
//!
//! The files in `migrations/inbox` are the source. They are embedded here, so that `psql -f` and a
//! program that links this crate do the same. Each file is one `DO` statement, so it is atomic.

use std::borrow::Cow;

use tokio_postgres::Client;
use walrelay_pg_client::{QualifiedName, SqlError, own_table, schema, schema_sql};

/// The tables a consumer keeps in its own database, in the order they are created.
pub const INBOX_TABLES: [&str; 3] = ["app_inbox_consumer", "app_inbox", "app_inbox_key"];

/// One file of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxMigration {
    /// Name of the file in `migrations/`, or `schema` for the creation of the schema.
    pub file: &'static str,
    /// One SQL statement, atomic and safe to run again.
    pub sql: Cow<'static, str>,
}

/// The files, in the order they have to run.
const FILES: [(&str, &str); 6] = [
    ("inbox/0001_app_inbox.sql", include_str!("../migrations/0001_app_inbox.sql")),
    ("inbox/0002_app_inbox_take.sql", include_str!("../migrations/0002_app_inbox_take.sql")),
    ("inbox/0003_app_inbox_run.sql", include_str!("../migrations/0003_app_inbox_run.sql")),
    ("inbox/0004_app_inbox_settle.sql", include_str!("../migrations/0004_app_inbox_settle.sql")),
    ("inbox/0005_app_inbox_apply.sql", include_str!("../migrations/0005_app_inbox_apply.sql")),
    ("inbox/0006_app_event_ledger.sql", include_str!("../migrations/0006_app_event_ledger.sql")),
];

/// Returns the migrations of a consumer's database for the schema of this process, in the order they
/// have to run.
#[must_use]
pub fn inbox_migrations() -> Vec<InboxMigration> {
    let creation = schema_sql().map(|sql| ("schema", sql));
    let files = creation.into_iter().chain(FILES);
    files.map(|(file, sql)| InboxMigration { file, sql: schema().qualify(sql) }).collect()
}

/// The tables of a consumer, in the schema where the migrations create them.
#[must_use]
pub fn inbox_tables() -> Vec<QualifiedName> {
    INBOX_TABLES.map(own_table).into()
}

/// Creates the tables and functions of a consumer that are missing.
///
/// # Errors
///
/// The server refused a file, which the error names. Earlier files have taken effect.
pub async fn migrate_inbox(client: &Client) -> Result<(), SqlError> {
    for InboxMigration { file, sql } in inbox_migrations() {
        let action = format!("run migration {file}");
        client.batch_execute(&sql).await.map_err(SqlError::sql(action))?;
    }
    Ok(())
}

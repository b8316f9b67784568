//! The consumer's tables and functions, as SQL that is safe to run again.
//!
//! The files in `migrations/inbox` are the source. They are embedded here, so that `psql -f` and a
//! program that links this crate do the same. Each file is one `DO` statement, so it is atomic.

use tokio_postgres::Client;
use walrelay_pg_client::{QualifiedName, SqlError};

/// The tables a consumer keeps in its own database, in the order they are created.
pub const INBOX_TABLES: [&str; 3] = ["app_inbox_consumer", "app_inbox", "app_inbox_key"];

/// One file of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxMigration {
    /// Name of the file in `migrations/`.
    pub file: &'static str,
    /// One SQL statement, atomic and safe to run again.
    pub sql: &'static str,
}

/// The migrations of a consumer's database, in the order they have to run.
pub const INBOX_MIGRATIONS: [InboxMigration; 6] = [
    InboxMigration {
        file: "inbox/0001_app_inbox.sql",
        sql: include_str!("../migrations/0001_app_inbox.sql"),
    },
    InboxMigration {
        file: "inbox/0002_app_inbox_take.sql",
        sql: include_str!("../migrations/0002_app_inbox_take.sql"),
    },
    InboxMigration {
        file: "inbox/0003_app_inbox_run.sql",
        sql: include_str!("../migrations/0003_app_inbox_run.sql"),
    },
    InboxMigration {
        file: "inbox/0004_app_inbox_settle.sql",
        sql: include_str!("../migrations/0004_app_inbox_settle.sql"),
    },
    InboxMigration {
        file: "inbox/0005_app_inbox_apply.sql",
        sql: include_str!("../migrations/0005_app_inbox_apply.sql"),
    },
    InboxMigration {
        file: "inbox/0006_app_event_ledger.sql",
        sql: include_str!("../migrations/0006_app_event_ledger.sql"),
    },
];

/// The tables of a consumer, in the schema where the migrations create them.
#[must_use]
pub fn inbox_tables() -> Vec<QualifiedName> {
    INBOX_TABLES.map(|table| QualifiedName::new("public", table)).into()
}

/// Creates the tables and functions of a consumer that are missing.
///
/// # Errors
///
/// The server refused a file, which the error names. Earlier files have taken effect.
pub async fn migrate_inbox(client: &Client) -> Result<(), SqlError> {
    for InboxMigration { file, sql } in INBOX_MIGRATIONS {
        let action = format!("run migration {file}");
        client.batch_execute(sql).await.map_err(SqlError::sql(action))?;
    }
    Ok(())
}

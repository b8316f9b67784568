//! What one of our sessions waits for, as another sees it: locks, and transactions that have to end.

use std::fmt;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::sql_error::SqlError;

/// A session that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Blocker {
    /// Its server process; 0 is a prepared transaction, which has none.
    pid: i32,
    /// Its role; empty where it is not told.
    user: String,
    /// Its application name; empty where it is not told.
    application: String,
    /// What it does, as in `idle in transaction`; empty where the role may not know.
    state: String,
    /// How long its transaction has been open; zero where the role may not know.
    open_for: Duration,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("a prepared transaction (see pg_prepared_xacts)");
        }
        write!(f, "process {}", self.pid)?;
        let parts = [("role", &self.user), ("application", &self.application)];
        for (name, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
            write!(f, ", {name} {value}")?;
        }
        if !self.state.is_empty() {
            write!(f, ", {} for {} s", self.state, self.open_for.as_secs())?;
        }
        Ok(())
    }
}

/// Whom a session waits for, the one that has been open longest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers(Vec<Blocker>);

impl Blockers {
    /// Whether it waits for nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these are the same sessions, however long they have been open by now.
    #[must_use]
    pub fn are_those_of(&self, other: &Self) -> bool {
        let pids = |it: &Self| it.0.iter().map(|blocker| blocker.pid).collect::<Vec<_>>();
        pids(self) == pids(other)
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, blocker) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{blocker}")?;
        }
        Ok(())
    }
}

/// The server process of a session.
///
/// # Errors
///
/// The server refused the question, or the connection ended.
pub async fn backend_pid(client: &Client) -> Result<i32, SqlError> {
    let row = client
        .query_typed_one("SELECT pg_backend_pid() AS pid", &[])
        .await
        .map_err(SqlError::sql("ask for the number of the server process"))?;
    Ok(row.get("pid"))
}

/// Whom the session of this server process waits for; nobody when it works.
///
/// # Errors
///
/// The server refused the question, or the connection ended.
pub async fn blockers(client: &Client, pid: i32) -> Result<Blockers, SqlError> {
    let sql = "
        SELECT b.pid, coalesce(a.usename::text, '') AS role,
               coalesce(a.application_name, '') AS application, coalesce(a.state, '') AS state,
               greatest(0, coalesce(extract(epoch FROM now() - a.xact_start), 0))::int8 AS open_seconds
          FROM (SELECT DISTINCT unnest(pg_catalog.pg_blocking_pids($1)) AS pid) b
          LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
         ORDER BY open_seconds DESC, b.pid";
    let rows = client
        .query_typed(sql, &[(&pid, Type::INT4)])
        .await
        .map_err(SqlError::sql("ask what is waited for"))?;
    Ok(Blockers(rows.iter().map(blocker).collect()))
}

fn blocker(row: &Row) -> Blocker {
    let seconds = u64::try_from(row.get::<_, i64>("open_seconds")).unwrap_or_default();
    Blocker {
        pid: row.get("pid"),
        user: row.get("role"),
        application: row.get("application"),
        state: row.get("state"),
        open_for: Duration::from_secs(seconds),
    }
}

/// Ends the statement that the session of this server process runs; the session stays.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn cancel_statement(client: &Client, pid: i32) -> Result<(), SqlError> {
    client
        .query_typed("SELECT pg_catalog.pg_cancel_backend($1)", &[(&pid, Type::INT4)])
        .await
        .map(drop)
        .map_err(SqlError::sql("cancel a statement"))
}

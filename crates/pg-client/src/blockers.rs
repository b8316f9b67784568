//! The sessions and transactions that one of our sessions waits for, as another session sees them.

use std::fmt;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::sql_error::SqlError;

/// A session that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Blocker {
    /// Process id of the session. 0 is a prepared transaction, which has no process.
    pid: i32,
    /// Role of the session. Empty if the server does not show it.
    user: String,
    /// Application name of the session. Empty if the server does not show it.
    application: String,
    /// State of the session, such as `idle in transaction`. Empty if our role may not see it.
    state: String,
    /// How long the session's transaction has been open. Zero if our role may not see it.
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

/// The sessions that another session waits for, the longest open transaction first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers(Vec<Blocker>);

impl Blockers {
    /// Returns whether the session waits for nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether both name the same sessions. Open times are ignored.
    #[must_use]
    pub fn has_same_sessions(&self, other: &Self) -> bool {
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

/// Returns the process id of a session.
pub async fn backend_pid(client: &Client) -> Result<i32, SqlError> {
    let row = client
        .query_typed_one("SELECT pg_backend_pid() AS pid", &[])
        .await
        .map_err(SqlError::sql("ask for the number of the server process"))?;
    Ok(row.get("pid"))
}

/// Returns the sessions that block the session with this process id. Empty if nothing blocks it.
pub async fn blockers(client: &Client, pid: i32) -> Result<Blockers, SqlError> {
    let sql = sql!("blockers.sql", "blockers");
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

/// Cancels the running statement of the session with this process id. The session stays open.
pub async fn cancel_statement(client: &Client, pid: i32) -> Result<(), SqlError> {
    client
        .query_typed("SELECT pg_catalog.pg_cancel_backend($1)", &[(&pid, Type::INT4)])
        .await
        .map(drop)
        .map_err(SqlError::sql("cancel a statement"))
}

//! Statements that may wait for other sessions: logs the blocking sessions, and can be cancelled.
//!
//! Creating a slot waits for every transaction that is already open, and a lock waits for its
//! holder. Without a log message such a wait looks like a hang. If the client simply disconnects,
//! the server keeps waiting and creates the slot later, unused.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::blockers::{Blockers, blockers, cancel_statement};
use crate::connect::{SqlClient, connect_sql};
use crate::conninfo::ConnectConfig;
use crate::error::PgError;
use crate::sql_error::SqlError;

/// Time after which a statement counts as blocked, and the interval between checks.
const BLOCKED_AFTER: Duration = Duration::from_secs(2);

/// Longest time to wait for a cancelled statement to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `work`, whose statements run in the server process `pid`, until `stop` resolves.
///
/// Returns `None` after a stop. The running statement is then cancelled.
pub async fn run_cancellable<T>(
    connect: &ConnectConfig,
    pid: i32,
    work: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
) -> Option<T> {
    let (mut work, mut stop) = (pin!(work), pin!(stop));
    let is_stopped = tokio::select! {
        done = &mut work => return Some(done),
        () = log_blockers(connect, pid) => false,
        () = &mut stop => true,
    };
    if !is_stopped {
        // The blocking sessions can no longer be read, so wait without reporting them.
        tokio::select! {
            done = &mut work => return Some(done),
            () = &mut stop => {}
        }
    }
    if let Ok(Err(error)) = timeout(CANCEL_TIMEOUT, cancel(connect, pid)).await {
        tracing::warn!(%error, "the statement could not be cancelled; the server may still finish it");
    }
    timeout(CANCEL_TIMEOUT, work).await.ok();
    None
}

async fn cancel(connect: &ConnectConfig, pid: i32) -> Result<(), Box<dyn std::error::Error>> {
    let other = connect_sql(connect).await?;
    cancel_statement(&other, pid).await?;
    other.close().await;
    Ok(())
}

/// Logs which sessions block the statement, each time they change. Returns when a query fails.
async fn log_blockers(connect: &ConnectConfig, pid: i32) {
    sleep(BLOCKED_AFTER).await;
    let watched = async {
        let client = connect_sql(connect).await?;
        Ok::<_, PgError>(watch(&client, pid).await)
    };
    match watched.await {
        Err(error) => tracing::debug!(%error, "cannot read the blocking sessions"),
        Ok(Err(error)) => tracing::debug!(%error, "cannot read the blocking sessions"),
        Ok(Ok(never)) => match never {},
    }
}

async fn watch(client: &SqlClient, pid: i32) -> Result<std::convert::Infallible, SqlError> {
    let mut logged = Blockers::default();
    loop {
        let who = blockers(client, pid).await?;
        if !who.is_empty() && !who.has_same_sessions(&logged) {
            tracing::warn!(
                "waiting for a transaction to end: {who}; end it, or press Ctrl-C and come back later"
            );
        }
        // Between two lock attempts nothing blocks the session, and afterwards the same sessions
        // do.
        if !who.is_empty() {
            logged = who;
        }
        sleep(BLOCKED_AFTER).await;
    }
}

//! Statements that may wait for other sessions: logs the blocking sessions, and can be cancelled.
//!
//! Creating a slot waits for every transaction that is already open, and a lock waits for its
//! holder. Without a log message such a wait looks like a hang. If the client simply disconnects,
//! the server keeps waiting and creates the slot later, unused.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_outbox_admin::AdminError;
use walrelay_pg_client::{
    Blockers, ConnectConfig, SqlClient, backend_pid, blockers, cancel_statement, connect_sql,
};
use walrelay_relay::shutdown::Shutdown;

use crate::error::Error;

/// Time after which a statement counts as blocked, and the interval between checks.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest time to wait for a cancelled statement to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a command that needs no cleanup when it is interrupted.
///
/// # Errors
///
/// Returns the errors of the command, or that it was interrupted.
pub(in crate::commands) async fn run_until_shutdown<T>(
    command: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    tokio::select! {
        done = command => done,
        () = shutdown.requested() => Err(Error::Interrupted),
    }
}

/// Runs `work` in the session of `client`, and cancels its statement on shutdown.
///
/// # Errors
///
/// Returns the errors of the work, or that it was interrupted.
pub(in crate::commands) async fn attended<T>(
    (connect, client): (&ConnectConfig, &SqlClient),
    work: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    run_cancellable_in((connect, backend_pid(client).await?), work, shutdown).await
}

/// Like [`attended`], for work that borrows the client: `pid` is the server process of its session.
///
/// # Errors
///
/// Returns the errors of the work, or that it was interrupted.
pub(in crate::commands) async fn run_cancellable_in<T>(
    (connect, pid): (&ConnectConfig, i32),
    work: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    let mut work = pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = tell(connect, pid) => {}
        () = shutdown.requested() => {}
    }
    if !shutdown.is_requested() {
        // The blocking sessions can no longer be read, so wait without reporting them.
        tokio::select! {
            done = &mut work => return done,
            () = shutdown.requested() => {}
        }
    }
    let cancelled = async {
        let other = connect_sql(connect).await?;
        cancel_statement(&other, pid).await?;
        other.close().await;
        Ok::<(), Error>(())
    };
    if let Ok(Err(error)) = timeout(CANCEL_TIMEOUT, cancelled).await {
        tracing::warn!(%error, "the statement could not be cancelled; the server may still finish it");
    }
    timeout(CANCEL_TIMEOUT, work).await.ok();
    Err(Error::Interrupted)
}

/// Logs which sessions block the statement, each time they change. Returns when a query fails.
async fn tell(connect: &ConnectConfig, pid: i32) {
    sleep(PATIENCE).await;
    let client = match connect_sql(connect).await {
        Ok(client) => client,
        Err(error) => return tracing::debug!(%error, "cannot look what is waited for"),
    };
    if let Err(error) = watch(&client, pid).await {
        tracing::debug!(%error, "cannot look what is waited for");
    }
}

async fn watch(client: &SqlClient, pid: i32) -> Result<(), AdminError> {
    let mut told = Blockers::default();
    loop {
        let who = blockers(client, pid).await?;
        if !who.is_empty() && !who.has_same_sessions(&told) {
            tracing::warn!(
                "waiting for a transaction to end: {who}; end it, or press Ctrl-C and come back later"
            );
        }
        // Between two lock attempts nothing blocks the session, and afterwards the same sessions
        // do.
        if !who.is_empty() {
            told = who;
        }
        sleep(PATIENCE).await;
    }
}

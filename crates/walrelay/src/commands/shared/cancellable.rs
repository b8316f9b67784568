//! Commands that a signal interrupts.

use crate::error::Error;
use walrelay_pg_client::{ConnectConfig, SqlClient, backend_pid, run_cancellable};
use walrelay_relay::shutdown::Shutdown;

/// Runs a command that needs no cleanup when it is interrupted.
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
pub(in crate::commands) async fn attended<T>(
    connect: &ConnectConfig,
    client: &SqlClient,
    work: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    run_cancellable_in(connect, backend_pid(client).await?, work, shutdown).await
}

/// Like [`attended`], for work that borrows the client: `pid` is the server process of its session.
pub(in crate::commands) async fn run_cancellable_in<T>(
    connect: &ConnectConfig,
    pid: i32,
    work: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    // The work of some commands is large, and would make the futures of their callers large.
    let done = Box::pin(run_cancellable(connect, pid, work, shutdown.requested())).await;
    done.unwrap_or(Err(Error::Interrupted))
}

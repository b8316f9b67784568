//! Statements that may wait for others to end: what they wait for is told, and they can be given up.
//!
//! A new slot waits for every transaction that was open before it, and a lock for its holder. Without a
//! word that looks like a hang; and a server whose client is gone waits on, and creates the slot for
//! nobody.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_outbox_admin::AdminError;
use walrelay_pg_client::{
    Blockers, ConnectConfig, SqlClient, backend_pid, blockers, cancel_statement, connect_sql,
};
use walrelay_relay::shutdown::Shutdown;

use crate::error::Error;

/// Long enough for a statement that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a cancelled statement may take to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Does what has nothing to take back when it is stopped.
///
/// # Errors
///
/// Those of the command, or that it was interrupted.
pub(super) async fn unless_stopped<T>(
    command: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    tokio::select! {
        done = command => done,
        () = shutdown.requested() => Err(Error::Interrupted),
    }
}

/// Does `work`, which is done in the session of `client`.
///
/// # Errors
///
/// Those of the work, or that it was interrupted.
pub(super) async fn attended<T>(
    (connect, client): (&ConnectConfig, &SqlClient),
    work: impl Future<Output = Result<T, Error>>,
    shutdown: &Shutdown,
) -> Result<T, Error> {
    attended_in((connect, backend_pid(client).await?), work, shutdown).await
}

/// The same for work that needs the client for itself: in the session of this server process.
///
/// # Errors
///
/// Those of the work, or that it was interrupted.
pub(super) async fn attended_in<T>(
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
        // Nobody can be asked any more what it waits for.
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

/// Tells what the session waits for, each time that changes; returns when it cannot be found out.
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
        if !who.is_empty() && !who.are_those_of(&told) {
            tracing::warn!(
                "waiting for a transaction to end: {who}; end it, or press Ctrl-C and come back later"
            );
        }
        // Between two tries it waits for nobody, and then for the same.
        if !who.is_empty() {
            told = who;
        }
        sleep(PATIENCE).await;
    }
}

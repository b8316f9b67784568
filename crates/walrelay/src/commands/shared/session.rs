//! A session of a consumer's database.

use walrelay_pg_client::{ConnectConfig, SqlClient, connect_shared};
use walrelay_relay::shutdown::Shutdown;

use super::cancellable::run_until_shutdown;
use crate::error::Error;

/// Connects, also through a pooler, and runs `work` in the session.
pub(in crate::commands) async fn in_shared_session(
    connect: &ConnectConfig,
    shutdown: &Shutdown,
    work: impl AsyncFnOnce(&mut SqlClient) -> Result<(), Error>,
) -> Result<(), Error> {
    let connecting = async { Ok(connect_shared(connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let done = Box::pin(work(&mut client)).await;
    client.close().await;
    done
}

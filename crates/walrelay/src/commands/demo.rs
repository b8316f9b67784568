//! `walrelay demo`.

use crate::config::DemoConfig;
use crate::error::Error;
use crate::shutdown::Shutdown;

/// Runs until `shutdown` is requested.
///
/// # Errors
///
/// Whatever ended it otherwise.
#[expect(clippy::unused_async, reason = "the engine behind it is asynchronous")]
pub async fn execute(_config: DemoConfig, _shutdown: &Shutdown) -> Result<(), Error> {
    Err(Error::NotAvailable("demo"))
}

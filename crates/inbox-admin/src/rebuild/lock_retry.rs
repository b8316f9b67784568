//! Tries again while other sessions hold a lock.

use std::time::Duration;

use tokio::time::sleep;

use crate::rebuild::rebuild_error::RebuildError;

/// The pause between attempts, so that sessions that are queued behind ours can proceed.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns the result of the first attempt that no other session blocks.
pub(crate) async fn when_free<T>(
    mut attempt: impl AsyncFnMut() -> Result<T, RebuildError>,
) -> Result<T, RebuildError> {
    loop {
        match attempt().await {
            Err(RebuildError::Inbox(error)) if error.is_in_the_way() => {
                tracing::debug!(%error, "trying again");
                sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

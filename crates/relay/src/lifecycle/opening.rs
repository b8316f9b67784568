//! Status updates while a session is being opened.

use tokio::io::AsyncWrite;
use walrelay_core::Tracker;
use walrelay_pg_client::PgError;
use walrelay_pg_replication::Feedback;

/// Waits for `work`, and tells the server meanwhile that we are there (I5): reading what is parked may
/// take longer than it waits for a status update, and then it would end the connection each time.
///
/// # Errors
///
/// The connection broke.
pub async fn with_status_updates<W: AsyncWrite + Unpin, T>(
    feedback: &mut Feedback<W>,
    work: impl Future<Output = T>,
) -> Result<T, PgError> {
    // Of a tracker that has seen nothing: it confirms nothing.
    let nothing = Tracker::new().watermark();
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            () = feedback.due(nothing) => feedback.confirm(nothing).await?,
            done = &mut work => return Ok(done),
        }
    }
}

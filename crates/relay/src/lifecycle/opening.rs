//! Status updates while a session is being opened.

use tokio::io::AsyncWrite;
use walrelay_core::Tracker;
use walrelay_pg_client::PgError;
use walrelay_pg_replication::Feedback;

/// Awaits `work` and sends status updates to the server meanwhile (I5). Reading the parked keys may
/// take longer than `wal_sender_timeout`, and the server would then end the connection every time.
pub async fn with_status_updates<W: AsyncWrite + Unpin, T>(
    feedback: &mut Feedback<W>,
    work: impl Future<Output = T>,
) -> Result<T, PgError> {
    // The watermark of a new tracker, so the status update confirms nothing.
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

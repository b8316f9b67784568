//! A reset, step by step: the slot becomes a copy of an anchor.
//!
//! ```text
//! on record ──▶ live slot gone ──▶ copy of the anchor ──▶ failover as before ──▶ settled up to the target
//! ```
//!
//! A process may crash after any step. The next process starts again at the first step: copying
//! again loses nothing, because the anchor remains. The steps are behind a trait, because the
//! simulation kills processes at each of them.

use walrelay_relay::error::RelayError;
use walrelay_relay::failpoint;

/// The steps of a reset. Each step is durable when it returns.
pub trait ResetSteps: Send {
    /// Returns whether the anchor still exists with its WAL.
    fn has_anchor(&mut self) -> impl Future<Output = Result<bool, RelayError>> + Send;

    /// Drops the live slot, if it exists, once no session streams it.
    fn drop_live(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Makes the live slot a copy of the anchor.
    fn copy_anchor(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Makes the slot a failover slot, if it was one before.
    fn restore_failover(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Ends the reset in one transaction. The settled position becomes the target, and rows
    /// published behind the target no longer count as recorded.
    fn finish(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Ends the reset without a change of the slot.
    fn cancel(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;
}

/// How a reset ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetEnd {
    /// The slot streams from the target.
    Done,
    /// The anchor is gone.
    Cancelled,
}

/// Runs a reset from its first step, however far an earlier process came.
///
/// # Errors
///
/// A step failed. The reset stays on record and is run again.
pub async fn run_reset<S: ResetSteps>(steps: &mut S) -> Result<ResetEnd, RelayError> {
    failpoint::hit("reset-begun");
    if !steps.has_anchor().await? {
        steps.cancel().await?;
        return Ok(ResetEnd::Cancelled);
    }
    steps.drop_live().await?;
    failpoint::hit("reset-dropped");
    steps.copy_anchor().await?;
    failpoint::hit("reset-copied");
    steps.restore_failover().await?;
    failpoint::hit("reset-marked");
    steps.finish().await?;
    failpoint::hit("reset-finished");
    Ok(ResetEnd::Done)
}

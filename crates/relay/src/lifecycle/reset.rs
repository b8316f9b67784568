//! A reset, step by step: the slot becomes a copy of an anchor.
//!
//! ```text
//! on record ──▶ live slot gone ──▶ copy of the anchor ──▶ failover as before ──▶ settled up to the target
//! ```
//!
//! Every step may be the last that a process makes. Whoever comes next begins at the first again: a
//! copy that is made anew loses nothing, because the anchor stays. What a step does is behind a seam, because
//! the simulation kills processes at each of them.

use crate::error::RelayError;
use crate::failpoint;

/// What a reset is made of, each of them durable when it returns.
pub trait ResetSteps: Send {
    /// Whether the anchor is still there, with its log.
    fn has_anchor(&mut self) -> impl Future<Output = Result<bool, RelayError>> + Send;

    /// Drops the live slot, if it is there, once nobody streams it.
    fn drop_live(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Makes the live slot a copy of the anchor.
    fn copy_anchor(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// Makes it a failover slot, where it was one before.
    fn restore_failover(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// What is settled becomes the target, what was published behind it no longer counts as recorded, and
    /// the reset is over: all or nothing.
    fn finish(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;

    /// The reset is over, and nothing has become of it.
    fn give_up(&mut self) -> impl Future<Output = Result<(), RelayError>> + Send;
}

/// How a reset ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetEnd {
    /// The slot streams from the target.
    Done,
    /// The anchor is gone.
    GivenUp,
}

/// Carries a reset out from the first step on, whoever has come how far before.
///
/// # Errors
///
/// A step fails: the reset stays on record, and is carried out again.
pub async fn carry_out<S: ResetSteps>(steps: &mut S) -> Result<ResetEnd, RelayError> {
    failpoint::hit("reset-begun");
    if !steps.has_anchor().await? {
        steps.give_up().await?;
        return Ok(ResetEnd::GivenUp);
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

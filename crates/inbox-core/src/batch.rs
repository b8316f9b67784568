//! What is applied in one transaction, and what became of it.

use std::sync::Arc;

use crate::failure::Failure;

/// Names a batch that is out.
pub type BatchId = u64;

/// Messages to be applied in one transaction, in this order.
#[derive(Debug, Clone)]
pub struct Batch<M> {
    /// For [`Intake::settle`].
    pub id: BatchId,
    /// At least one.
    pub messages: Vec<Arc<M>>,
    /// What is known of it from before.
    pub standing: Standing,
}

/// What is known of a batch from before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Unknown,
    /// One message, which has failed with none beside it that passed, and others have passed since: if it
    /// fails again for what says nothing about an event, that is its own trouble.
    OthersPass,
}

/// What became of a message of a batch whose commit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The database has it, whatever its status: acknowledge.
    Finished,
    /// Nothing is recorded: again, in its order.
    Deferred,
}

/// How a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its commit is known; a fate for each message, in order.
    Committed(Vec<Fate>),
    /// It did not commit, or nobody knows (C2).
    Failed(Failure),
}

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
    /// One message, whose batch has failed for what says nothing about an event. A healthy one does not need long.
    Doubtful,
    /// The same, and if it fails again it is to be stored: others have passed since, or there is no room for any.
    ToBeStored,
}

/// What became of a message of a batch whose commit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its effect stands: acknowledge.
    Applied,
    /// The database had it already, or has stored it: acknowledge.
    Recorded,
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

//! The batch that one transaction applies, and its outcome.

use std::sync::Arc;

use crate::failure::Failure;

/// The number of a batch in flight.
pub type BatchId = u64;

/// The messages that one transaction applies, in this order.
#[derive(Debug, Clone)]
pub struct Batch<M> {
    /// The number to pass to [`Intake::settle`](crate::Intake::settle).
    pub id: BatchId,
    /// The messages, at least one.
    pub messages: Vec<Arc<M>>,
    /// The result of earlier attempts.
    pub standing: Standing,
}

/// The result of a batch's earlier attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No message of the batch is in doubt.
    Unknown,
    /// One message, whose earlier batch failed with an error that says nothing about an event. A
    /// healthy message needs little time.
    Doubtful,
    /// As `Doubtful`, but if the message fails again, the database stores it. Other messages have
    /// passed since its last failure, or the held messages leave no capacity for others.
    ToBeStored,
}

/// The fate of a message whose batch is known to have committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The database applied the event. The message is acknowledged.
    Applied,
    /// The database already had the event, or has stored it. The message is acknowledged.
    Recorded,
    /// The database recorded nothing. The message is sent again, in its order.
    Deferred,
}

/// The way a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The commit is known. One fate for each message, in order.
    Committed(Vec<Fate>),
    /// The batch did not commit, or its commit is unknown (C2).
    Failed(Failure),
}

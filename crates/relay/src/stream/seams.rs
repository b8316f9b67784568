//! The two seams with more than one implementation: where messages go, and where parked rows live.
//!
//! In service they are Pub/Sub and the dispatch tables; in the simulation both are scripted.

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{Batch, ClaimKey, Claimed, Finished, PublishFailure, RowToRecord, Topic};
use walrelay_pubsub::GrpcPublisher;

/// Publishes batches.
pub trait Publisher: Clone + Send + 'static {
    /// Publishes a batch and returns one message id a row, in order.
    ///
    /// The future owns what it sends. Dropping it may leave the batch stored or not; nothing else
    /// of its key may go out until it has answered (I3).
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static;
}

impl Publisher for GrpcPublisher {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        Self::publish(self, batch.topic(), batch.messages())
    }
}

/// Why dispatch state could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// Try again: the statement was refused, or the connection broke.
    #[error("dispatch state cannot be reached")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database server is shutting down, and waits for us to confirm or to let go.
    #[error("the database server is shutting down")]
    ShuttingDown,
}

/// How many rows dispatch state holds in each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Will be published again.
    pub retrying: u64,
    /// Wait for an operator.
    pub dead: u64,
    /// Published at a later try.
    pub published: u64,
    /// Given up by an operator.
    pub discarded: u64,
}

/// What the slot looks like from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotLag {
    /// Log written and not confirmed, in bytes.
    pub lag_bytes: u64,
    /// Log that may still be written before the slot is lost; none without a limit.
    pub safe_wal_bytes: Option<i64>,
}

/// Figures for operators.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Rows in dispatch state.
    pub counts: StoreCounts,
    /// The slot.
    pub lag: SlotLag,
    /// What `walrelay status` prints.
    pub report: serde_json::Map<String, serde_json::Value>,
}

/// Dispatch state: one command at a time, each all or nothing.
pub trait Store: Send + 'static {
    /// Records rows, in this order. They are durable when this returns.
    fn park(
        &mut self,
        rows_to_record: &[RowToRecord],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Writes down what became of claimed rows.
    fn finish(
        &mut self,
        finished: &[Finished],
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Takes the next rows of each key, at most `bytes_max` bytes of messages but at least one row;
    /// one answer a key, in their order.
    fn claim(
        &mut self,
        keys: &[ClaimKey],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Vec<Claimed>, StoreFailure>> + Send;

    /// Keys with rows that became due, also by an operator's hand.
    fn due_keys(
        &mut self,
    ) -> impl Future<Output = Result<Vec<(Topic, String)>, StoreFailure>> + Send;

    /// Notes how far the slot is settled.
    fn note_settled(
        &mut self,
        settled: Lsn,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;

    /// Counts rows and measures the slot's lag, for operators.
    fn survey(&mut self) -> impl Future<Output = Result<Survey, StoreFailure>> + Send;

    /// Deletes rows whose audit time is over.
    fn prune(
        &mut self,
        retention: Duration,
    ) -> impl Future<Output = Result<u64, StoreFailure>> + Send;
}

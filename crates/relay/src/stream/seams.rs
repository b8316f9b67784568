//! Where messages go: Pub/Sub in service, a script in the simulation.
//!
//! The other seam, where parked rows live, is [`Store`](walrelay_outbox_store::Store).

use walrelay_core::{Batch, PublishFailure};
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

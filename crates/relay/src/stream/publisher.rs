//! The trait of publishers: Pub/Sub in production, a script in the simulation.
//!
//! The trait of dispatch state is [`Store`](walrelay_outbox_store::Store).

use walrelay_core::{Batch, PublishFailure};
use walrelay_pubsub::GrpcPublisher;

pub trait Publisher: Clone + Send + 'static {
    /// Publishes a batch and returns one message id per row, in order.
    ///
    /// The future owns the batch. If it is dropped, the batch may be stored or not. No other row of
    /// its key may be sent until the future has returned (I3).
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

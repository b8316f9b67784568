//! The trait of publishers: Pub/Sub in production, a script in the simulation.
//!
//! The trait of dispatch state is [`Store`](walrelay_outbox_store::Store).

use walrelay_core::{Batch, Fault, PublishFailure, is_topic_name};
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
        // The router has checked the topic of a live row. A row of dispatch state may have a name that no topic
        // can have. The service would call the row invalid, and that does not show which of both is at fault.
        let is_live = batch.committed_at().is_some();
        let call = match is_live || is_topic_name(batch.topic()) {
            true => Ok(Self::publish(self, batch.topic(), batch.messages())),
            false => Err(Fault::Topic { name: batch.topic().to_string() }.into_failure()),
        };
        async move { call?.await }
    }
}

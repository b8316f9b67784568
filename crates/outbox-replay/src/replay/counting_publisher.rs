//! A publisher that counts rows. In a dry run it publishes nothing.

use walrelay_core::{Batch, PublishFailure};
use walrelay_relay::stream::publisher::Publisher;

use super::replay_progress::Tally;

#[derive(Debug, Clone)]
pub struct CountingPublisher<P> {
    /// `None` in a dry run.
    publisher: Option<P>,
    tally: Tally,
}

impl<P> CountingPublisher<P> {
    /// Counts the rows of `publisher`. Without a publisher, every row counts as published at once.
    #[must_use]
    pub const fn new(publisher: Option<P>, tally: Tally) -> Self {
        Self { publisher, tally }
    }
}

impl<P: Publisher + Sync> Publisher for CountingPublisher<P> {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let rows = batch.messages().len();
        let published = self.publisher.as_ref().map(|publisher| publisher.publish(batch));
        let tally = self.tally.clone();
        async move {
            let ids = match published {
                Some(published) => published.await?,
                None => vec![String::new(); rows],
            };
            tally.add_published(rows as u64);
            Ok(ids)
        }
    }
}

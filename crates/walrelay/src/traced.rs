//! A publisher whose requests have spans.

use futures_util::future::Either;
use walrelay_core::{Batch, PublishFailure};
use walrelay_otlp::Spans;
use walrelay_relay::stream::seams::Publisher;

/// Publishes as the publisher in it does; each request has a span where spans are wanted.
#[derive(Debug, Clone)]
pub struct Traced<P> {
    publisher: P,
    spans: Option<Spans>,
}

impl<P> Traced<P> {
    /// Without `spans` nothing is looked at.
    pub fn new(publisher: P, spans: Option<Spans>) -> Self {
        Self { publisher, spans }
    }
}

impl<P: Publisher> Publisher for Traced<P> {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let spans = self.spans.as_ref();
        let span = spans.and_then(|spans| spans.start(batch.topic(), batch.messages()));
        let answer = self.publisher.publish(batch);
        match span {
            None => Either::Left(answer),
            Some(span) => Either::Right(async move {
                let answer = answer.await;
                span.end(answer.as_ref());
                answer
            }),
        }
    }
}

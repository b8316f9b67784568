//! Spans for publish requests and for a consumer's transactions.

use std::sync::Arc;

use futures_util::future::Either;
use walrelay_core::{Batch, PublishFailure};
use walrelay_inbox::{Event, TraceEnd, Tracer};
use walrelay_otlp::{Failed, Spans};
use walrelay_relay::stream::publisher::Publisher;

/// A publisher that creates a span for each request.
#[derive(Debug, Clone)]
pub(crate) struct Traced<P> {
    publisher: P,
    spans: Option<Spans>,
}

impl<P> Traced<P> {
    /// Wraps a publisher. Without `spans` it adds no work.
    pub(crate) fn new(publisher: P, spans: Option<Spans>) -> Self {
        Self { publisher, spans }
    }
}

impl<P: Publisher> Publisher for Traced<P> {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let spans = self.spans.as_ref();
        let span = spans.and_then(|spans| spans.send(batch.topic(), batch.messages()));
        let answer = self.publisher.publish(batch);
        match span {
            None => Either::Left(answer),
            Some(span) => Either::Right(async move {
                let answer = answer.await;
                span.end(answer.as_ref().err().map(Failed::from));
                answer
            }),
        }
    }
}

/// Creates a span for each transaction of a consumer.
#[derive(Debug)]
pub(crate) struct TransactionTracer(pub Spans);

impl Tracer for TransactionTracer {
    fn begin(&self, subscription: &str, events: &[Arc<Event>]) -> Option<TraceEnd> {
        let span = self.0.process(subscription, events.iter().map(|event| event.traceparent()))?;
        Some(Box::new(|failure| {
            let failed = failure.map(|it| Failed { code: it.code.into(), text: it.text });
            span.end(failed);
        }))
    }
}

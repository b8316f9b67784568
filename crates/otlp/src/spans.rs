//! One span for a Publish request, linked to the traces its rows come from.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use walrelay_core::{Message, PublishFailure, Topic};
use walrelay_envelope::attribute;

use crate::sampling::{RowTraces, Sampling};
use crate::trace_parent;

/// Traces that a span is linked to, at most: OpenTelemetry's default. More are counted in the span.
const LINKS_MAX: usize = 128;

/// Makes spans. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spans {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sampling: Sampling,
    queue: Sender<SpanData>,
    dropped: Counter,
    ids: RandomIdGenerator,
}

/// The span of a request that is out. One that is dropped was never a request's that was answered, and
/// is not sent.
#[derive(Debug)]
pub struct PublishSpan {
    /// Its place in the queue: what was begun is not dropped.
    place: OwnedPermit<SpanData>,
    data: Box<SpanData>,
}

impl Spans {
    pub(crate) fn new(sampling: Sampling, queue: Sender<SpanData>, dropped: Counter) -> Self {
        let ids = RandomIdGenerator::default();
        Self { shared: Arc::new(Shared { sampling, queue, dropped, ids }) }
    }

    /// Begins the span of a request with these messages; none when nobody wants it, or when there is
    /// no room for it, which is counted.
    pub fn start<'a>(
        &self,
        topic: &Topic,
        messages: impl ExactSizeIterator<Item = &'a Message>,
    ) -> Option<PublishSpan> {
        let shared = &*self.shared;
        let count = messages.len();
        // Without room nothing is gathered that nobody will see.
        let links_max = if shared.queue.capacity() > 0 { LINKS_MAX } else { 0 };
        let (traces, links) = traces_of(messages, links_max);
        let trace_id = shared.ids.new_trace_id();
        if !shared.sampling.wants(traces, trace_id) {
            return None;
        }
        let Ok(place) = shared.queue.clone().try_reserve_owned() else {
            shared.dropped.inc();
            return None;
        };
        let id = shared.ids.new_span_id();
        let flags = TraceFlags::SAMPLED;
        let now = SystemTime::now();
        let (project, topic) = name_of(topic);
        let mut attributes = Vec::with_capacity(7);
        attributes.push(KeyValue::new("messaging.system", "gcp_pubsub"));
        attributes.push(KeyValue::new("messaging.operation.name", "send"));
        attributes.push(KeyValue::new("messaging.operation.type", "send"));
        attributes.push(KeyValue::new("messaging.destination.name", topic.to_owned()));
        attributes.push(KeyValue::new("gcp.project_id", project.to_owned()));
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("messaging.batch.message_count", count));
        let data = Box::new(SpanData {
            span_context: SpanContext::new(trace_id, id, flags, false, TraceState::NONE),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Producer,
            name: Cow::Owned(format!("send {topic}")),
            start_time: now,
            end_time: now,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: Status::Unset,
            instrumentation_scope: scope(),
        });
        Some(PublishSpan { place, data })
    }
}

impl PublishSpan {
    /// Ends it with the answer to its request.
    pub fn end<T>(self, answer: Result<T, &PublishFailure>) {
        let Self { place, mut data } = self;
        data.end_time = SystemTime::now();
        if let Err(failure) = answer {
            data.status = Status::error(failure.to_string());
            data.attributes.push(KeyValue::new("error.type", failure.code));
        }
        place.send(*data);
    }
}

/// What the rows say about their traces, and those that are recorded.
fn traces_of<'a>(
    messages: impl Iterator<Item = &'a Message>,
    links_max: usize,
) -> (RowTraces, SpanLinks) {
    let (mut traces, mut links) = (RowTraces::None, SpanLinks::default());
    let contexts = messages
        .filter_map(|message| message.attribute(attribute::TRACEPARENT))
        .filter_map(trace_parent::parse);
    for context in contexts {
        if !context.is_sampled() {
            if traces == RowTraces::None {
                traces = RowTraces::Unsampled;
            }
            continue;
        }
        traces = RowTraces::Sampled;
        if links_max == 0 {
            break;
        }
        // Rows of one transaction mostly have one context, and stand together.
        if links.links.last().is_some_and(|link| link.span_context == context) {
            continue;
        }
        if links.links.len() < links_max {
            links.links.push(Link::with_context(context));
        } else {
            links.dropped_count += 1;
        }
    }
    (traces, links)
}

/// Project and short name of a topic.
fn name_of(topic: &str) -> (&str, &str) {
    let parts = topic.strip_prefix("projects/").and_then(|rest| rest.split_once("/topics/"));
    parts.unwrap_or(("", topic))
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("walrelay").with_version(env!("CARGO_PKG_VERSION")).build()
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::{Lsn, Position};
    use tokio::sync::mpsc::{Receiver, channel};
    use walrelay_core::FailureClass;

    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn message(traceparent: Option<&str>) -> Message {
        let mut body = b"\x0A\x02hi".to_vec();
        if let Some(value) = traceparent {
            let length = |length: usize| u8::try_from(length).unwrap();
            body.extend([0x12, length(15 + value.len()), 0x0A, 11]);
            body.extend(b"traceparent");
            body.extend([0x12, length(value.len())]);
            body.extend(value.as_bytes());
        }
        let position = Position { commit_lsn: Lsn::new(9), tx_index: 0 };
        Message::from_encoded("projects/p/topics/t".into(), position, "e-1", &body).unwrap()
    }

    struct Recorded {
        spans: Spans,
        queue: Receiver<SpanData>,
        dropped: Counter,
    }

    fn recorded(sampler: &str, room: usize) -> Recorded {
        let (sender, queue) = channel(room);
        let dropped = Counter::default();
        let sampling = Sampling::of(Some(sampler), None).unwrap();
        Recorded { spans: Spans::new(sampling, sender, dropped.clone()), queue, dropped }
    }

    impl Recorded {
        fn start(&self, traceparents: &[Option<&str>]) -> Option<PublishSpan> {
            let messages: Vec<_> = traceparents.iter().map(|it| message(*it)).collect();
            self.spans.start(&"projects/p/topics/t".into(), messages.iter())
        }
    }

    fn attribute_of(span: &SpanData, key: &str) -> Option<String> {
        let found = span.attributes.iter().find(|it| it.key.as_str() == key)?;
        Some(found.value.to_string())
    }

    #[test]
    fn a_request_has_a_span_that_is_linked_to_each_trace_of_its_rows_once() {
        let mut recorded = recorded("parentbased_always_on", 8);
        let other = SAMPLED.replace("b7ad", "b7ae");
        let rows =
            [Some(SAMPLED), Some(SAMPLED), Some(UNSAMPLED), Some("00-1-2-01"), None, Some(&other)];
        recorded.start(&rows).unwrap().end(Ok(()));
        let span = recorded.queue.try_recv().unwrap();
        assert_eq!(span.name, "send t");
        assert_eq!(span.span_kind, SpanKind::Producer);
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert!(span.span_context.is_valid() && span.span_context.is_sampled());
        let linked = span.links.iter().map(|link| link.span_context.span_id().to_string());
        assert_eq!(linked.collect::<Vec<_>>(), ["b7ad6b7169203331", "b7ae6b7169203331"]);
        let trace = span.links[0].span_context.trace_id();
        assert_ne!(span.span_context.trace_id(), trace, "a span has one parent, rows are many");
        for (key, value) in [
            ("messaging.system", "gcp_pubsub"),
            ("messaging.operation.name", "send"),
            ("messaging.operation.type", "send"),
            ("messaging.destination.name", "t"),
            ("messaging.batch.message_count", "6"),
            ("gcp.project_id", "p"),
        ] {
            assert_eq!(attribute_of(&span, key).as_deref(), Some(value), "{key}");
        }
        assert_eq!(span.status, Status::Unset);
        assert!(span.end_time >= span.start_time);
    }

    #[test]
    fn a_refused_request_has_the_code_and_the_error() {
        let mut recorded = recorded("always_on", 8);
        let failure = PublishFailure::new(FailureClass::Operator, "NOT_FOUND", "no topic");
        recorded.start(&[None]).unwrap().end(Err::<(), _>(&failure));
        let span = recorded.queue.try_recv().unwrap();
        assert_eq!(span.status, Status::error("NOT_FOUND: no topic"));
        assert_eq!(attribute_of(&span, "error.type").as_deref(), Some("NOT_FOUND"));
    }

    #[test]
    fn links_are_bounded_and_the_rest_is_counted() {
        let mut recorded = recorded("always_on", 8);
        let rows: Vec<String> = (1..=1_000)
            .map(|span| format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01"))
            .collect();
        let rows: Vec<_> = rows.iter().map(|row| Some(row.as_str())).collect();
        recorded.start(&rows).unwrap().end(Ok(()));
        let span = recorded.queue.try_recv().unwrap();
        assert_eq!((span.links.len(), span.links.dropped_count), (LINKS_MAX, 872));
    }

    #[test]
    fn rows_that_are_not_recorded_want_no_span() {
        let recorded = recorded("parentbased_always_on", 8);
        assert!(recorded.start(&[Some(UNSAMPLED), None]).is_none());
        assert!(recorded.start(&[Some("not a trace")]).is_some(), "as if there were none");
        assert_eq!(recorded.dropped.get(), 0);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_before_it_is_made() {
        let mut recorded = recorded("always_on", 2);
        let first = recorded.start(&[None]).unwrap();
        let second = recorded.start(&[None]).unwrap();
        assert!(recorded.start(&[None]).is_none());
        assert_eq!(recorded.dropped.get(), 1);
        // A call that was given up gives its place back.
        drop(first);
        second.end(Ok(()));
        assert!(recorded.queue.try_recv().is_ok() && recorded.queue.try_recv().is_err());
        assert!(recorded.start(&[None]).is_some());
        assert_eq!(recorded.dropped.get(), 1);
    }
}

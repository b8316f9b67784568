//! One span for a Publish request or for a consumer's transaction, linked to the traces its rows come from.

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

/// The span of something that is being done. One that is dropped has not ended, and is not sent.
#[derive(Debug)]
pub struct OpenSpan {
    /// Its place in the queue: what was begun is not dropped.
    place: OwnedPermit<SpanData>,
    data: Box<SpanData>,
}

/// Why it did not succeed. Goes to the collector as it is, so neither payloads nor keys may be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// One of few words: `error.type`.
    pub code: Cow<'static, str>,
    /// For a reader.
    pub text: String,
}

/// What a span is of.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// A Publish request.
    Send,
    /// A transaction of a consumer.
    Process,
}

impl Operation {
    /// As the standard calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Process => "process",
        }
    }

    const fn kind(self) -> SpanKind {
        match self {
            Self::Send => SpanKind::Producer,
            Self::Process => SpanKind::Consumer,
        }
    }
}

impl Spans {
    pub(crate) fn new(sampling: Sampling, queue: Sender<SpanData>, dropped: Counter) -> Self {
        let ids = RandomIdGenerator::default();
        Self { shared: Arc::new(Shared { sampling, queue, dropped, ids }) }
    }

    /// Begins the span of a request with these messages; none when nobody wants it, or when there is
    /// no room for it, which is counted.
    pub fn send<'a>(
        &self,
        topic: &Topic,
        messages: impl ExactSizeIterator<Item = &'a Message>,
    ) -> Option<OpenSpan> {
        let traceparents = messages.map(|message| message.attribute(attribute::TRACEPARENT));
        self.begin((Operation::Send, topic), traceparents)
    }

    /// Begins the span of a transaction that applies messages of this subscription, of each of which
    /// the `traceparent` is given; none as for [`send`](Self::send).
    pub fn process<'a>(
        &self,
        subscription: &str,
        traceparents: impl ExactSizeIterator<Item = Option<&'a str>>,
    ) -> Option<OpenSpan> {
        self.begin((Operation::Process, subscription), traceparents)
    }

    fn begin<'a>(
        &self,
        (operation, full_name): (Operation, &str),
        traceparents: impl ExactSizeIterator<Item = Option<&'a str>>,
    ) -> Option<OpenSpan> {
        let shared = &*self.shared;
        let count = i64::try_from(traceparents.len()).unwrap_or(i64::MAX);
        // Without room nothing is gathered that nobody will see.
        let links_max = if shared.queue.capacity() > 0 { LINKS_MAX } else { 0 };
        let (traces, links) = traces_of(traceparents.flatten(), links_max);
        let trace_id = shared.ids.new_trace_id();
        if !shared.sampling.wants(traces, trace_id) {
            return None;
        }
        let Ok(place) = shared.queue.clone().try_reserve_owned() else {
            shared.dropped.inc();
            return None;
        };
        let id = shared.ids.new_span_id();
        let now = SystemTime::now();
        let (project, destination) = name_of(full_name);
        let name = format!("{} {destination}", operation.name());
        let data = Box::new(SpanData {
            span_context: SpanContext::new(
                trace_id,
                id,
                TraceFlags::SAMPLED,
                false,
                TraceState::NONE,
            ),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: operation.kind(),
            name: Cow::Owned(name),
            start_time: now,
            end_time: now,
            attributes: attributes(operation, (project, destination), count),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: Status::Unset,
            instrumentation_scope: scope(),
        });
        Some(OpenSpan { place, data })
    }
}

impl OpenSpan {
    /// Ends it.
    pub fn end(self, failed: Option<Failed>) {
        let Self { place, mut data } = self;
        data.end_time = SystemTime::now();
        if let Some(Failed { code, text }) = failed {
            data.status = Status::error(text);
            data.attributes.push(KeyValue::new("error.type", code));
        }
        place.send(*data);
    }
}

impl From<&PublishFailure> for Failed {
    fn from(failure: &PublishFailure) -> Self {
        Self { code: failure.code.into(), text: failure.to_string() }
    }
}

fn attributes(
    operation: Operation,
    (project, destination): (&str, &str),
    count: i64,
) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(8);
    attributes.push(KeyValue::new("messaging.system", "gcp_pubsub"));
    attributes.push(KeyValue::new("messaging.operation.name", operation.name()));
    attributes.push(KeyValue::new("messaging.operation.type", operation.name()));
    attributes.push(KeyValue::new("messaging.destination.name", destination.to_owned()));
    match operation {
        Operation::Send => {}
        Operation::Process => {
            let name = "messaging.destination.subscription.name";
            attributes.push(KeyValue::new(name, destination.to_owned()));
        }
    }
    attributes.push(KeyValue::new("gcp.project_id", project.to_owned()));
    attributes.push(KeyValue::new("messaging.batch.message_count", count));
    attributes
}

/// What the rows say about their traces, and those that are recorded.
fn traces_of<'a>(
    traceparents: impl Iterator<Item = &'a str>,
    links_max: usize,
) -> (RowTraces, SpanLinks) {
    let (mut traces, mut links) = (RowTraces::None, SpanLinks::default());
    for context in traceparents.filter_map(trace_parent::parse) {
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

/// Project and short name of a topic or a subscription.
fn name_of(full_name: &str) -> (&str, &str) {
    let mut parts = full_name.splitn(4, '/');
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some("projects"), Some(project), Some(_), Some(name)] => (project, name),
        _ => ("", full_name),
    }
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
        fn start(&self, traceparents: &[Option<&str>]) -> Option<OpenSpan> {
            let messages: Vec<_> = traceparents.iter().map(|it| message(*it)).collect();
            self.spans.send(&"projects/p/topics/t".into(), messages.iter())
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
        recorded.start(&rows).unwrap().end(None);
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
        recorded.start(&[None]).unwrap().end(Some(Failed::from(&failure)));
        let span = recorded.queue.try_recv().unwrap();
        assert_eq!(span.status, Status::error("NOT_FOUND: no topic"));
        assert_eq!(attribute_of(&span, "error.type").as_deref(), Some("NOT_FOUND"));
    }

    #[test]
    fn a_consumers_transaction_has_a_span_of_its_subscription() {
        let mut recorded = recorded("parentbased_always_on", 8);
        let traceparents = [Some(SAMPLED), None, Some(SAMPLED)];
        let subscription = "projects/p/subscriptions/ledger";
        let open = recorded.spans.process(subscription, traceparents.into_iter()).unwrap();
        open.end(Some(Failed { code: "40001".into(), text: "conflict".to_owned() }));
        let span = recorded.queue.try_recv().unwrap();
        assert_eq!((&*span.name, &span.span_kind), ("process ledger", &SpanKind::Consumer));
        assert_eq!(span.links.len(), 1);
        for (key, value) in [
            ("messaging.system", "gcp_pubsub"),
            ("messaging.operation.name", "process"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "ledger"),
            ("messaging.destination.subscription.name", "ledger"),
            ("messaging.batch.message_count", "3"),
            ("gcp.project_id", "p"),
            ("error.type", "40001"),
        ] {
            assert_eq!(attribute_of(&span, key).as_deref(), Some(value), "{key}");
        }
        assert_eq!(span.status, Status::error("conflict"));
        assert!(recorded.spans.process(subscription, [Some(UNSAMPLED)].into_iter()).is_none());
    }

    #[test]
    fn links_are_bounded_and_the_rest_is_counted() {
        let mut recorded = recorded("always_on", 8);
        let rows: Vec<String> = (1..=1_000)
            .map(|span| format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01"))
            .collect();
        let rows: Vec<_> = rows.iter().map(|row| Some(row.as_str())).collect();
        recorded.start(&rows).unwrap().end(None);
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
        second.end(None);
        assert!(recorded.queue.try_recv().is_ok() && recorded.queue.try_recv().is_err());
        assert!(recorded.start(&[None]).is_some());
        assert_eq!(recorded.dropped.get(), 1);
    }
}

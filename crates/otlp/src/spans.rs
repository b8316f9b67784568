//! Spans of Publish requests and of consumers' transactions, linked to the traces of their rows.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::SpanContext;
use opentelemetry_proto::tonic::trace::v1::SpanFlags;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::{OwnedPermit, Sender};
use walrelay_core::{Message, PublishFailure, Topic};
use walrelay_envelope::attribute;

use crate::sampling::{RowTraces, Sampling};
use crate::trace_parent;
use crate::wire::{Writer, nanos};

/// The maximum number of links of a span: OpenTelemetry's default. The span counts the rest.
const LINKS_MAX: usize = 128;

/// Creates spans. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spans {
    shared: Arc<Shared>,
}

/// An encoded `Span` of opentelemetry/proto/trace/v1/trace.proto.
pub(crate) type EncodedSpan = Vec<u8>;

/// Slightly more than the size of a span without links.
const SPAN_BYTES: usize = 448;

#[derive(Debug)]
struct Shared {
    sampling: Sampling,
    queue: Sender<EncodedSpan>,
    dropped: Counter,
    ids: RandomIdGenerator,
}

/// The span of an operation in progress. A span that is dropped has not ended and is not sent.
#[derive(Debug)]
pub struct OpenSpan {
    /// The reserved place in the queue, so that a span that was begun is not dropped.
    place: OwnedPermit<EncodedSpan>,
    /// The encoded span without its end.
    begun: Writer,
}

/// The reason of a failure. The collector receives the text unchanged, so it must not contain
/// payloads or keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The value of `error.type`, one of a few words.
    pub code: Cow<'static, str>,
    /// The text for a human reader.
    pub text: String,
}

/// The kind of operation that a span covers.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// A Publish request.
    Send,
    /// A transaction of a consumer.
    Process,
}

impl Operation {
    /// The operation name of the standard.
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Process => "process",
        }
    }

    const fn kind(self) -> u64 {
        match self {
            Self::Send => SpanKind::Producer as u64,
            Self::Process => SpanKind::Consumer as u64,
        }
    }
}

impl Spans {
    pub(crate) fn new(sampling: Sampling, queue: Sender<EncodedSpan>, dropped: Counter) -> Self {
        let ids = RandomIdGenerator::default();
        Self { shared: Arc::new(Shared { sampling, queue, dropped, ids }) }
    }

    /// Begins the span of a request with these messages. Returns `None` if the request is not
    /// sampled or the queue is full. A full queue is counted.
    pub fn send<'a>(
        &self,
        topic: &Topic,
        messages: impl ExactSizeIterator<Item = &'a Message>,
    ) -> Option<OpenSpan> {
        let traceparents = messages.map(|message| message.attribute(attribute::TRACEPARENT));
        self.begin(Operation::Send, topic, traceparents)
    }

    /// Begins the span of a transaction that applies messages of this subscription. Takes the
    /// `traceparent` of each message. Returns `None` in the same cases as [`send`](Self::send).
    pub fn process<'a>(
        &self,
        subscription: &str,
        traceparents: impl ExactSizeIterator<Item = Option<&'a str>>,
    ) -> Option<OpenSpan> {
        self.begin(Operation::Process, subscription, traceparents)
    }

    fn begin<'a>(
        &self,
        operation: Operation,
        full_name: &str,
        traceparents: impl ExactSizeIterator<Item = Option<&'a str>>,
    ) -> Option<OpenSpan> {
        let shared = &*self.shared;
        // Checked first, because reading the traces of rows costs more than everything else.
        if shared.queue.capacity() == 0 {
            shared.dropped.inc();
            return None;
        }
        let count = traceparents.len() as u64;
        let Traces { of_rows, mut links } = Traces::of(traceparents.flatten());
        let trace_id = shared.ids.new_trace_id();
        if !shared.sampling.wants(of_rows, trace_id) {
            return None;
        }
        let Ok(place) = shared.queue.clone().try_reserve_owned() else {
            shared.dropped.inc();
            return None;
        };
        let (project, destination) = name_of(full_name);
        links.written.reserve(SPAN_BYTES);
        let mut begun = links.end();
        begun.bytes(1, &trace_id.to_bytes());
        begun.bytes(2, &shared.ids.new_span_id().to_bytes());
        begun.message(5, |name| name.text(&[operation.name(), " ", destination]));
        begun.number(6, operation.kind());
        begun.fixed64(7, nanos(SystemTime::now()));
        put_attributes(&mut begun, operation, project, destination, count);
        begun.fixed32(16, HAS_IS_REMOTE | SAMPLED);
        Some(OpenSpan { place, begun })
    }
}

impl OpenSpan {
    /// Ends the span and queues it.
    pub fn end(self, failed: Option<Failed>) {
        let Self { place, begun: mut span } = self;
        span.fixed64(8, nanos(SystemTime::now()));
        if let Some(Failed { code, .. }) = &failed {
            put_text(&mut span, "error.type", code);
        }
        span.message(15, |status| {
            if let Some(Failed { text, .. }) = &failed {
                status.bytes(2, text.as_bytes());
                status.number(3, StatusCode::Error as u64);
            }
        });
        place.send(span.into_bytes());
    }
}

const SAMPLED: u32 = 1;
const HAS_IS_REMOTE: u32 = SpanFlags::ContextHasIsRemoteMask as u32;
const IS_REMOTE: u32 = SpanFlags::ContextIsRemoteMask as u32;

fn put_attributes(
    span: &mut Writer,
    operation: Operation,
    project: &str,
    destination: &str,
    count: u64,
) {
    put_text(span, "messaging.system", "gcp_pubsub");
    put_text(span, "messaging.operation.name", operation.name());
    put_text(span, "messaging.operation.type", operation.name());
    put_text(span, "messaging.destination.name", destination);
    match operation {
        Operation::Send => {}
        Operation::Process => {
            put_text(span, "messaging.destination.subscription.name", destination);
        }
    }
    put_text(span, "gcp.project_id", project);
    span.message(9, |attribute| {
        attribute.bytes(1, b"messaging.batch.message_count");
        attribute.message(2, |value| value.number(3, count));
    });
}

fn put_text(span: &mut Writer, name: &str, text: &str) {
    span.message(9, |attribute| {
        attribute.bytes(1, name.as_bytes());
        attribute.message(2, |value| value.bytes(1, text.as_bytes()));
    });
}

impl From<&PublishFailure> for Failed {
    fn from(failure: &PublishFailure) -> Self {
        Self { code: failure.code.as_str().into(), text: failure.to_string() }
    }
}

/// The traces of a request's rows, and links to the recorded ones.
struct Traces {
    of_rows: RowTraces,
    links: Links,
}

impl Traces {
    fn of<'a>(traceparents: impl Iterator<Item = &'a str>) -> Self {
        let (mut of_rows, mut links) = (RowTraces::None, Links::default());
        for context in traceparents.filter_map(trace_parent::parse) {
            if context.is_sampled() {
                of_rows = RowTraces::Sampled;
                links.add(context);
            } else if of_rows == RowTraces::None {
                of_rows = RowTraces::Unsampled;
            }
        }
        Self { of_rows, links }
    }
}

/// The encoded links of a span. Nothing is allocated before the first link.
#[derive(Default)]
struct Links {
    written: Writer,
    count: usize,
    left_out: u64,
    last: Option<SpanContext>,
}

impl Links {
    fn add(&mut self, context: SpanContext) {
        // Rows of one transaction mostly share a context and are adjacent.
        if self.last.as_ref() == Some(&context) {
            return;
        }
        if self.count == LINKS_MAX {
            self.left_out += 1;
            return;
        }
        self.count += 1;
        self.written.message(13, |link| {
            link.bytes(1, &context.trace_id().to_bytes());
            link.bytes(2, &context.span_id().to_bytes());
            let flags = context.trace_flags().to_u8();
            link.fixed32(6, HAS_IS_REMOTE | IS_REMOTE | u32::from(flags));
        });
        self.last = Some(context);
    }

    /// Starts a span that has only these links.
    fn end(self) -> Writer {
        let Self { mut written, left_out, .. } = self;
        if left_out > 0 {
            written.number(14, left_out);
        }
        written
    }
}

/// Splits the full name of a topic or subscription into project and short name.
fn name_of(full_name: &str) -> (&str, &str) {
    let mut parts = full_name.splitn(4, '/');
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some("projects"), Some(project), Some(_), Some(name)] => (project, name),
        _ => ("", full_name),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::trace::v1::{Span, Status};
    use pgoutput_parser::{Lsn, Position};
    use prost::Message as _;
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
        queue: Receiver<EncodedSpan>,
        dropped: Counter,
    }

    fn recorded(sampler: &str, room: usize) -> Recorded {
        let (sender, queue) = channel(room);
        let dropped = Counter::default();
        let sampling = Sampling::of(Some(sampler), None).unwrap();
        Recorded { spans: Spans::new(sampling, sender, dropped.clone()), queue, dropped }
    }

    impl Recorded {
        /// Decodes the span that ended next, as a collector would.
        fn next(&mut self) -> Span {
            Span::decode(&*self.queue.try_recv().unwrap()).unwrap()
        }

        fn start(&self, traceparents: &[Option<&str>]) -> Option<OpenSpan> {
            let messages: Vec<_> = traceparents.iter().map(|it| message(*it)).collect();
            self.spans.send(&"projects/p/topics/t".into(), messages.iter())
        }
    }

    fn attribute_of(span: &Span, key: &str) -> Option<String> {
        let found = span.attributes.iter().find(|it| it.key == key)?;
        match found.value.as_ref().and_then(|value| value.value.clone()) {
            Some(Value::StringValue(text)) => Some(text),
            Some(Value::IntValue(number)) => Some(number.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn error(message: &str) -> Status {
        Status { message: message.to_owned(), code: StatusCode::Error.into() }
    }

    #[test]
    fn a_request_has_a_span_that_is_linked_to_each_trace_of_its_rows_once() {
        let mut recorded = recorded("parentbased_always_on", 8);
        let other = SAMPLED.replace("b7ad", "b7ae");
        let rows =
            [Some(SAMPLED), Some(SAMPLED), Some(UNSAMPLED), Some("00-1-2-01"), None, Some(&other)];
        recorded.start(&rows).unwrap().end(None);
        let span = recorded.next();
        assert_eq!(span.name, "send t");
        assert_eq!(span.kind(), SpanKind::Producer);
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        assert!(span.parent_span_id.is_empty() && span.flags == 0x101, "{span:?}");
        let linked = span.links.iter().map(|link| (link.span_id[1], link.flags));
        assert_eq!(linked.collect::<Vec<_>>(), [(0xAD, 0x301), (0xAE, 0x301)]);
        assert_eq!(span.links[0].trace_id[..2], [0x0A, 0xF7]);
        assert_ne!(span.trace_id, span.links[0].trace_id, "a span has one parent, rows are many");
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
        assert_eq!((span.status, span.dropped_links_count), (Some(Status::default()), 0));
        assert!(span.start_time_unix_nano > 0);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }

    #[test]
    fn a_refused_request_has_the_code_and_the_error() {
        let mut recorded = recorded("always_on", 8);
        let failure = PublishFailure::new(
            FailureClass::Operator,
            walrelay_core::CallCode::NotFound,
            "no topic",
        );
        recorded.start(&[None]).unwrap().end(Some(Failed::from(&failure)));
        let span = recorded.next();
        assert_eq!(span.status, Some(error("NOT_FOUND: no topic")));
        assert_eq!(attribute_of(&span, "error.type").as_deref(), Some("NOT_FOUND"));
    }

    #[test]
    fn a_consumers_transaction_has_a_span_of_its_subscription() {
        let mut recorded = recorded("parentbased_always_on", 8);
        let traceparents = [Some(SAMPLED), None, Some(SAMPLED)];
        let subscription = "projects/p/subscriptions/ledger";
        let open = recorded.spans.process(subscription, traceparents.into_iter()).unwrap();
        open.end(Some(Failed { code: "40001".into(), text: "conflict".to_owned() }));
        let span = recorded.next();
        assert_eq!((&*span.name, span.kind()), ("process ledger", SpanKind::Consumer));
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
        assert_eq!(span.status, Some(error("conflict")));
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
        let span = recorded.next();
        assert_eq!((span.links.len(), span.dropped_links_count), (LINKS_MAX, 872));
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
        // A call that was abandoned frees its place.
        drop(first);
        second.end(None);
        assert!(recorded.queue.try_recv().is_ok() && recorded.queue.try_recv().is_err());
        assert!(recorded.start(&[None]).is_some());
        assert_eq!(recorded.dropped.get(), 1);
    }

    #[test]
    fn without_room_rows_are_not_asked_whether_they_want_a_span() {
        let recorded = recorded("parentbased_always_on", 1);
        let _open = recorded.start(&[Some(SAMPLED)]).unwrap();
        struct Unread;
        impl Iterator for Unread {
            type Item = Option<&'static str>;

            fn next(&mut self) -> Option<Self::Item> {
                panic!("a row is looked at that gets no span")
            }
        }
        impl ExactSizeIterator for Unread {
            fn len(&self) -> usize {
                1
            }
        }
        assert!(recorded.spans.process("projects/p/subscriptions/s", Unread).is_none());
        assert_eq!(recorded.dropped.get(), 1);
    }
}

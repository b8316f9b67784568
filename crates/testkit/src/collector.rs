//! An OpenTelemetry collector on its own thread. Keeps all data that it receives over gRPC.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use opentelemetry_proto::tonic::common::v1::KeyValue;
pub use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
pub use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind, status::StatusCode};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, server};
use http::{HeaderMap, HeaderValue, Request, Response};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::background_server::Background;

#[derive(Debug)]
pub struct Collector {
    kept: TelemetryStore,
    server: Background,
}

/// The data received so far.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// All spans in the order of their arrival.
    pub spans: Vec<Span>,
    /// The metrics of the latest request.
    pub metrics: Vec<Metric>,
    /// The resource attributes of the latest request.
    pub resource: BTreeMap<String, String>,
    /// The `authorization` header of each request.
    pub authorizations: Vec<Option<String>>,
}

#[derive(Debug, Clone, Default)]
struct TelemetryStore(Arc<Mutex<Kept>>);

impl Collector {
    #[must_use]
    pub fn start() -> Self {
        let kept = TelemetryStore::default();
        let keeper = kept.clone();
        Self { kept, server: Background::start("the collector", |at| serve(keeper, at)) }
    }

    /// Returns the URL for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.server.address())
    }

    #[must_use]
    pub fn kept(&self) -> Kept {
        self.kept.lock().clone()
    }
}

#[must_use]
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| {
        let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (attribute.key.clone(), value)
    };
    attributes.iter().map(text).collect()
}

impl TelemetryStore {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the data of a request. Returns `None` for a request that cannot be decoded.
    fn came(&self, path: &str, headers: &HeaderMap, message: &[u8]) -> Option<()> {
        let mut kept = self.lock();
        let resource = match path {
            TRACES => {
                let sent = ExportTraceServiceRequest::decode(message).ok()?.resource_spans;
                let resource = sent.first().and_then(|it| it.resource.clone());
                let scopes = sent.into_iter().flat_map(|it| it.scope_spans);
                kept.spans.extend(scopes.flat_map(|scope| scope.spans));
                resource
            }
            METRICS => {
                let sent = ExportMetricsServiceRequest::decode(message).ok()?.resource_metrics;
                let resource = sent.first().and_then(|it| it.resource.clone());
                let scopes = sent.into_iter().flat_map(|it| it.scope_metrics);
                kept.metrics = scopes.flat_map(|scope| scope.metrics).collect();
                resource
            }
            _ => return None,
        };
        kept.resource = texts(&resource.unwrap_or_default().attributes);
        let authorization = headers.get("authorization").and_then(|it| it.to_str().ok());
        kept.authorizations.push(authorization.map(ToOwned::to_owned));
        Some(())
    }
}

const TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// The length of the gRPC message prefix: a compression flag and four bytes of length.
const PREFIX: usize = 5;

async fn serve(keeper: TelemetryStore, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.expect("a connection");
        connections.spawn(connection(keeper.clone(), tcp));
    }
}

/// Serves one connection until the client disconnects.
async fn connection(keeper: TelemetryStore, tcp: TcpStream) {
    let Ok(mut connection) = server::handshake(tcp).await else { return };
    let mut requests = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        requests.spawn(answer(keeper.clone(), request, respond));
    }
}

async fn answer(
    keeper: TelemetryStore,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let mut whole = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    let message = whole.get(PREFIX..).unwrap_or_default();
    let is_understood = keeper.came(head.uri.path(), &head.headers, message).is_some();
    let mut response = Response::new(());
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    let mut stream = respond.send_response(response, false)?;
    // The empty response message, which means that all data was accepted.
    stream.send_data(Bytes::from_static(&[0; PREFIX]), false)?;
    let status = HeaderValue::from_static(if is_understood { "0" } else { "12" });
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status);
    stream.send_trailers(trailers)
}

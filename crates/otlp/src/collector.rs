//! The client of an OpenTelemetry collector.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::uri::PathAndQuery;
use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource as SentResource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use prometheus_client::registry::Registry;
use prost::Message as _;
use prost::bytes::Bytes;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Code, Request, Response, Status};

use crate::codec::Encoded;
use crate::endpoint::Endpoint;
use crate::metrics::{Times, metrics};
use crate::settings::Settings;
use crate::spans::EncodedSpan;
use crate::wire::{Writer, nanos};

/// The client of a collector. Connects when there is something to send.
pub(crate) struct Collector {
    settings: Settings,
    resource: SentResource,
    started: SystemTime,
    channel: Channel,
}

/// The collector did not accept all of the data.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ExportError {
    text: String,
    /// Whether the same data may be accepted a moment later.
    pub(crate) is_retryable: bool,
    /// The number of spans that were not accepted.
    pub(crate) spans: usize,
}

const SPANS: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

impl Collector {
    /// Creates a client. Call it inside a Tokio runtime, which drives the connection.
    pub(crate) fn new(settings: Settings) -> Result<Self, tonic::transport::Error> {
        let attributes = ResourceAttributesWithSchema::from(&resource_of(&settings)).attributes.0;
        let resource = SentResource { attributes, ..SentResource::default() };
        let channel = channel(&settings)?;
        Ok(Self { settings, resource, started: SystemTime::now(), channel })
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.settings.endpoint
    }

    pub(crate) async fn send_spans(&mut self, spans: &[EncodedSpan]) -> Result<(), ExportError> {
        let answer = self.call(SPANS, self.spans_request(spans)).await;
        let sent = match answer.map(|answer| answer.partial_success) {
            Ok(Some(partial)) if partial.rejected_spans > 0 => Err(ExportError {
                text: format!(
                    "{} spans are rejected: {}",
                    partial.rejected_spans, partial.error_message
                ),
                is_retryable: false,
                spans: usize::try_from(partial.rejected_spans).unwrap_or(0).min(spans.len()),
            }),
            Ok(_) => Ok(()),
            Err(status) => Err(ExportError { spans: spans.len(), ..refused(&status) }),
        };
        self.judged(sent)
    }

    /// Sends an empty request to the first service in use: spans, or else metrics.
    pub(crate) async fn try_out(&self) -> Result<(), Status> {
        let path = if self.settings.sampling.is_some() { SPANS } else { METRICS };
        // An empty answer decodes as either answer type.
        self.call(path, Bytes::new()).await.map(drop)
    }

    async fn call(
        &self,
        path: &'static str,
        message: Bytes,
    ) -> Result<ExportTraceServiceResponse, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let (path, codec) = (PathAndQuery::from_static(path), Encoded::default());
        grpc.unary(self.request(message), path, codec).await.map(Response::into_inner)
    }

    pub(crate) async fn send_metrics(
        &mut self,
        request: ExportMetricsServiceRequest,
    ) -> Result<(), ExportError> {
        let request = self.request(request);
        let mut client = MetricsServiceClient::new(self.channel.clone());
        let answer = client.export(request).await;
        let sent = match answer.map(|answer| answer.into_inner().partial_success) {
            Ok(Some(partial)) if partial.rejected_data_points > 0 => Err(ExportError {
                text: format!(
                    "{} data points are rejected: {}",
                    partial.rejected_data_points, partial.error_message
                ),
                is_retryable: false,
                spans: 0,
            }),
            Ok(_) => Ok(()),
            Err(status) => Err(refused(&status)),
        };
        self.judged(sent)
    }

    /// Opens a new connection for the attempt after a failure. A connection whose peer is silently
    /// gone would hang for a quarter of an hour.
    fn judged(&mut self, sent: Result<(), ExportError>) -> Result<(), ExportError> {
        if sent.is_err()
            && let Ok(channel) = channel(&self.settings)
        {
            self.channel = channel;
        }
        sent
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.settings.headers.map().clone();
        request.set_timeout(self.settings.timeout);
        request
    }

    /// `ExportTraceServiceRequest` of opentelemetry/proto/collector/trace/v1/trace_service.proto.
    fn spans_request(&self, spans: &[EncodedSpan]) -> Bytes {
        const PER_SPAN: usize = 6;
        let mut request = Writer::default();
        request.reserve(1_024 + spans.iter().map(|span| span.len() + PER_SPAN).sum::<usize>());
        request.message(1, |of_resource| {
            of_resource.bytes(1, &self.resource.encode_to_vec());
            of_resource.message(2, |of_scope| {
                of_scope.bytes(1, &scope().encode_to_vec());
                spans.iter().for_each(|span| of_scope.bytes(2, span));
            });
        });
        request.into_bytes().into()
    }

    /// Reads the registry of `/metrics`.
    pub(crate) fn metrics_request(
        &self,
        registry: &Registry,
    ) -> Result<ExportMetricsServiceRequest, fmt::Error> {
        let times = Times { start: nanos(self.started), now: nanos(SystemTime::now()) };
        Ok(ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics: metrics(registry, times)?,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        })
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "walrelay".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Converts a status. The retryable codes are those of the OTLP specification. A retry may succeed
/// because the server was only busy.
fn refused(status: &Status) -> ExportError {
    let is_retryable = matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    );
    ExportError {
        text: format!("{:?}: {}", status.code(), status.message()),
        is_retryable,
        spans: 0,
    }
}

/// The longest time that opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

fn channel(settings: &Settings) -> Result<Channel, tonic::transport::Error> {
    let mut endpoint = Channel::builder(settings.endpoint.uri().clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(settings.timeout);
    if settings.endpoint.is_secure() {
        let tls = match &settings.certificate {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_webpki_roots(),
        };
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect_lazy())
}

fn resource_of(settings: &Settings) -> Resource {
    let given = settings.resource.iter();
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes([
            KeyValue::new("service.name", "walrelay"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            // Without it, two instances of one service would write the same series.
            KeyValue::new("service.instance.id", instance_id()),
        ])
        .with_attributes(given.map(|(name, value)| KeyValue::new(name.clone(), value.clone())))
        .build()
}

/// Generates a random UUID, version 4.
fn instance_id() -> String {
    let digits = RandomIdGenerator::default().new_trace_id().to_string();
    let variant = match digits.as_bytes()[16] % 4 {
        0 => '8',
        1 => '9',
        2 => 'a',
        _ => 'b',
    };
    let [a, b, c, d, e] =
        [&digits[..8], &digits[8..12], &digits[13..16], &digits[17..20], &digits[20..]];
    format!("{a}-{b}-4{c}-{variant}{d}-{e}")
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_id_is_a_random_uuid() {
        let id = instance_id();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
        assert_ne!(id, instance_id());
    }
}

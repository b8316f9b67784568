//! The collector at the other end of one connection.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource as SentResource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanExporter as _};
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

use crate::endpoint::Endpoint;
use crate::figures::{Times, metrics};
use crate::settings::Settings;

/// The collector. Connects when there is something to send.
pub(crate) struct Collector {
    settings: Settings,
    resource: Resource,
    started: SystemTime,
    connected: Connected,
}

struct Connected {
    spans: SpanExporter,
    metrics: MetricsServiceClient<Channel>,
}

/// Settings that a connection cannot be made from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetUpError {
    #[error("the collector's endpoint or certificate cannot be used: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// The collector did not take what it was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotTaken(String);

impl Collector {
    /// To be called inside a Tokio runtime, which drives the connection.
    pub(crate) fn new(settings: Settings) -> Result<Self, SetUpError> {
        let resource = resource_of(&settings);
        let connected = Connected::new(&settings, &resource)?;
        Ok(Self { settings, resource, started: SystemTime::now(), connected })
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.settings.endpoint
    }

    pub(crate) async fn send_spans(&mut self, spans: Vec<SpanData>) -> Result<(), NotTaken> {
        let sent = self.connected.spans.export(spans).await;
        self.judged(sent.map_err(|error| NotTaken(error.to_string())))
    }

    /// Sends figures as `/metrics` writes them.
    pub(crate) async fn send_metrics(&mut self, text: &str) -> Result<(), NotTaken> {
        let times = Times { start: nanos(self.started), now: nanos(SystemTime::now()) };
        let body = self.metrics_request(text, times);
        let mut request = Request::new(body);
        request.set_timeout(self.settings.timeout);
        *request.metadata_mut() = self.settings.headers.map().clone();
        let answer = self.connected.metrics.export(request).await;
        let sent = match answer.map(|answer| answer.into_inner().partial_success) {
            Ok(Some(partial)) if partial.rejected_data_points > 0 => Err(NotTaken(format!(
                "{} data points are rejected: {}",
                partial.rejected_data_points, partial.error_message
            ))),
            Ok(_) => Ok(()),
            Err(status) => Err(NotTaken(format!("{:?}: {}", status.code(), status.message()))),
        };
        self.judged(sent)
    }

    /// After a failure the next attempt has a connection of its own: one whose other end is gone
    /// without a word would be silent for a quarter of an hour.
    fn judged(&mut self, sent: Result<(), NotTaken>) -> Result<(), NotTaken> {
        if sent.is_err()
            && let Ok(connected) = Connected::new(&self.settings, &self.resource)
        {
            self.connected = connected;
        }
        sent
    }

    fn metrics_request(&self, text: &str, times: Times) -> ExportMetricsServiceRequest {
        let resource = ResourceAttributesWithSchema::from(&self.resource);
        let scope = InstrumentationScope {
            name: "walrelay".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(SentResource {
                    attributes: resource.attributes.0,
                    ..SentResource::default()
                }),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics: metrics(text, times),
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        }
    }
}

impl Connected {
    fn new(settings: &Settings, resource: &Resource) -> Result<Self, SetUpError> {
        let channel = channel(settings)?;
        let mut spans = SpanExporter::builder()
            .with_tonic()
            .with_channel(channel.clone())
            .with_metadata(settings.headers.map().clone())
            .with_timeout(settings.timeout)
            .build()?;
        spans.set_resource(resource);
        Ok(Self { spans, metrics: MetricsServiceClient::new(channel) })
    }
}

/// How long a connection may take to be opened.
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
            // Two instances of one service would write the same series.
            KeyValue::new("service.instance.id", instance_id()),
        ])
        .with_attributes(given.map(|(name, value)| KeyValue::new(name.clone(), value.clone())))
        .build()
}

/// A random UUID, version 4.
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

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

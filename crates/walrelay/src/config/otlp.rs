//! The destination of telemetry. OpenTelemetry's standard variables set it, and there are no flags,
//! because every program of a platform shares these variables.

use std::fs;
use std::time::Duration;

use walrelay_otlp::{EndpointError, Headers, Sampling, SamplingError, Settings, pairs};
use walrelay_pubsub::Endpoint;

use super::checks::Checks;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PREFIX: &str = "OTEL_EXPORTER_OTLP_";
/// Settings that the standard also allows for one signal alone, with their defaults.
const OF_BOTH_SIGNALS: [(&str, &str); 6] = [
    ("ENDPOINT", ""),
    ("HEADERS", ""),
    ("CERTIFICATE", ""),
    ("TIMEOUT", "10000"),
    ("PROTOCOL", "grpc"),
    ("COMPRESSION", "none"),
];

impl Checks<'_> {
    /// Returns the telemetry settings. None if no collector is named, or telemetry is disabled.
    pub(crate) fn otlp(&mut self) -> Option<Settings> {
        let endpoint = self.environment.get(ENDPOINT)?;
        if self.is_true("OTEL_SDK_DISABLED") {
            return None;
        }
        self.refuse_signal_variables("TRACES");
        self.refuse_signal_variables("METRICS");
        self.only("OTEL_EXPORTER_OTLP_PROTOCOL", &["grpc"]);
        self.only("OTEL_EXPORTER_OTLP_COMPRESSION", &["none"]);
        let sends_spans = self.only("OTEL_TRACES_EXPORTER", &["otlp", "none"]) != Some("none");
        let sends_metrics = self.only("OTEL_METRICS_EXPORTER", &["otlp", "none"]) != Some("none");
        let sampling = self.sampling();
        let interval = self.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000);
        let endpoint =
            endpoint.parse().map_err(|error: EndpointError| self.wrong_telemetry(ENDPOINT, &error));
        let (headers, certificate, resource) =
            (self.headers(), self.certificate(), self.resource());
        let timeout = self.milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000);
        (sends_spans || sends_metrics).then_some(Settings {
            // A missing value here has already been reported as a problem.
            endpoint: endpoint.ok()?,
            headers,
            certificate,
            timeout,
            sampling: sampling.filter(|_| sends_spans),
            metrics_interval: sends_metrics.then_some(interval),
            resource,
        })
    }

    fn sampling(&mut self) -> Option<Sampling> {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let given = (self.environment.get(NAME), self.environment.get(ARGUMENT));
        Sampling::of(given.0, given.1)
            .map_err(|error| match error {
                SamplingError::Name => self.wrong_telemetry(NAME, &error),
                SamplingError::Share => self.wrong_telemetry(ARGUMENT, &error),
            })
            .ok()
    }

    fn headers(&mut self) -> Headers {
        const NAME: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let text = self.environment.get(NAME).unwrap_or_default();
        Headers::parse(text).unwrap_or_else(|error| {
            self.wrong_telemetry(NAME, &error);
            Headers::default()
        })
    }

    fn certificate(&mut self) -> Option<Vec<u8>> {
        const NAME: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
        let path = self.environment.get(NAME)?;
        let usable = fs::read(path).map_err(|error| error.to_string()).and_then(|pem| {
            // Pub/Sub's parser of CA certificates also reads those of the collector.
            let read = Endpoint::production().with_roots(&pem);
            read.map(|_| pem).map_err(|error| error.to_string())
        });
        usable.map_err(|problem| self.wrong_telemetry(NAME, &problem)).ok()
    }

    /// Refuses settings for a single signal. One connection serves both signals, so such a setting
    /// would be silently ignored.
    fn refuse_signal_variables(&mut self, signal: &str) {
        for (setting, default) in OF_BOTH_SIGNALS {
            let (name, both) =
                (format!("{PREFIX}{signal}_{setting}"), format!("{PREFIX}{setting}"));
            let wanted = self.environment.get(&both).unwrap_or(default);
            if self.environment.get(&name).is_some_and(|value| value != wanted) {
                let instead = format!("not read; {both} is for spans and metrics alike");
                self.wrong_telemetry(&name, &instead);
            }
        }
    }

    /// Returns the resource attributes. As in the standard, `OTEL_SERVICE_NAME` wins over the
    /// attribute.
    fn resource(&mut self) -> Vec<(String, String)> {
        const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let text = self.environment.get(NAME).unwrap_or_default();
        let mut attributes = pairs(text).unwrap_or_else(|error| {
            self.wrong_telemetry(NAME, &error);
            Vec::new()
        });
        let service = self.environment.get("OTEL_SERVICE_NAME");
        attributes.extend(service.map(|name| ("service.name".to_owned(), name.to_owned())));
        attributes
    }

    /// Returns the one of these words that the variable has, in any case. None if it is not set or
    /// wrong.
    fn only(&mut self, name: &str, words: &[&'static str]) -> Option<&'static str> {
        let value = self.environment.get(name)?;
        let found = words.iter().find(|word| word.eq_ignore_ascii_case(value.trim()));
        if found.is_none() {
            let allowed = format!("{value:?} is not supported here; set {}", words.join(" or "));
            self.wrong_telemetry(name, &allowed);
        }
        found.copied()
    }

    /// Returns whether a variable is "true". As in the standard, every other value is false.
    fn is_true(&self, name: &str) -> bool {
        self.environment.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn milliseconds(&mut self, name: &str, default: u32) -> Duration {
        let value = self.environment.get(name).unwrap_or_default().trim();
        let number = if value.is_empty() { Ok(default) } else { value.parse() };
        let number = number.ok().filter(|number| (1..=86_400_000).contains(number));
        let number = number.unwrap_or_else(|| {
            self.wrong_telemetry(
                name,
                &format!("{value:?} is not a number of milliseconds, up to a day"),
            );
            default
        });
        Duration::from_millis(number.into())
    }

    fn wrong_telemetry(&mut self, name: &str, allowed: &dyn ToString) {
        self.wrong_variable(name, &allowed.to_string());
    }
}

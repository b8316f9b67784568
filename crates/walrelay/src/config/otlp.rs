//! Where telemetry is sent, as OpenTelemetry's own variables say: they are the same for every program of
//! a platform, so there are no flags for them.

use std::fs;
use std::time::Duration;

use walrelay_otlp::{EndpointError, Headers, Sampling, SamplingError, Settings, pairs};
use walrelay_pubsub::Endpoint;

use super::builder::Builder;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PREFIX: &str = "OTEL_EXPORTER_OTLP_";
/// What the standard lets be set for one signal alone, with what it is when it is not set.
const OF_BOTH_SIGNALS: [(&str, &str); 6] = [
    ("ENDPOINT", ""),
    ("HEADERS", ""),
    ("CERTIFICATE", ""),
    ("TIMEOUT", "10000"),
    ("PROTOCOL", "grpc"),
    ("COMPRESSION", "none"),
];

impl Builder<'_> {
    /// None when no collector is named, or telemetry is switched off.
    pub(super) fn otlp(&mut self) -> Option<Settings> {
        let endpoint = self.environment.get(ENDPOINT)?;
        if self.is_true("OTEL_SDK_DISABLED") {
            return None;
        }
        self.of_one_signal("TRACES");
        self.of_one_signal("METRICS");
        self.only("OTEL_EXPORTER_OTLP_PROTOCOL", &["grpc"]);
        self.only("OTEL_EXPORTER_OTLP_COMPRESSION", &["none"]);
        let sends_spans = self.only("OTEL_TRACES_EXPORTER", &["otlp", "none"]) != Some("none");
        let sends_metrics = self.only("OTEL_METRICS_EXPORTER", &["otlp", "none"]) != Some("none");
        let sampling = self.sampling();
        let interval = self.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000);
        let endpoint =
            endpoint.parse().map_err(|error: EndpointError| self.wrong(ENDPOINT, &error));
        let (headers, certificate, resource) =
            (self.headers(), self.certificate(), self.resource());
        let timeout = self.milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000);
        (sends_spans || sends_metrics).then_some(Settings {
            // Whatever is missing here has left a problem that says why.
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
                SamplingError::Name => self.wrong(NAME, &error),
                SamplingError::Share => self.wrong(ARGUMENT, &error),
            })
            .ok()
    }

    fn headers(&mut self) -> Headers {
        const NAME: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let text = self.environment.get(NAME).unwrap_or_default();
        Headers::parse(text).unwrap_or_else(|error| {
            self.wrong(NAME, &error);
            Headers::default()
        })
    }

    fn certificate(&mut self) -> Option<Vec<u8>> {
        const NAME: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
        let path = self.environment.get(NAME)?;
        let usable = fs::read(path).map_err(|error| error.to_string()).and_then(|pem| {
            // Authorities are read alike, whoever is to be trusted by them.
            let read = Endpoint::production().trusting(&pem);
            read.map(|_| pem).map_err(|error| error.to_string())
        });
        usable.map_err(|problem| self.wrong(NAME, &problem)).ok()
    }

    /// One connection serves both signals, so what is set for one of them alone would be passed over.
    fn of_one_signal(&mut self, signal: &str) {
        for (setting, default) in OF_BOTH_SIGNALS {
            let (name, both) =
                (format!("{PREFIX}{signal}_{setting}"), format!("{PREFIX}{setting}"));
            let wanted = self.environment.get(&both).unwrap_or(default);
            if self.environment.get(&name).is_some_and(|value| value != wanted) {
                let instead = format!("not read; {both} is for spans and metrics alike");
                self.wrong(&name, &instead);
            }
        }
    }

    /// The name of its own variable beats the one among the attributes, as the standard has it.
    fn resource(&mut self) -> Vec<(String, String)> {
        const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let text = self.environment.get(NAME).unwrap_or_default();
        let mut attributes = pairs(text).unwrap_or_else(|error| {
            self.wrong(NAME, &error);
            Vec::new()
        });
        let service = self.environment.get("OTEL_SERVICE_NAME");
        attributes.extend(service.map(|name| ("service.name".to_owned(), name.to_owned())));
        attributes
    }

    /// One of these words, in any case; none when it is not set or wrong.
    fn only(&mut self, name: &str, words: &[&'static str]) -> Option<&'static str> {
        let value = self.environment.get(name)?;
        let found = words.iter().find(|word| word.eq_ignore_ascii_case(value.trim()));
        if found.is_none() {
            let allowed = format!("{value:?} is not supported here; set {}", words.join(" or "));
            self.wrong(name, &allowed);
        }
        found.copied()
    }

    /// What is not "true" is false, as the standard has it.
    fn is_true(&self, name: &str) -> bool {
        self.environment.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn milliseconds(&mut self, name: &str, default: u32) -> Duration {
        let value = self.environment.get(name).unwrap_or_default().trim();
        let number = if value.is_empty() { Ok(default) } else { value.parse() };
        let number = number.ok().filter(|number| (1..=86_400_000).contains(number));
        let number = number.unwrap_or_else(|| {
            self.wrong(name, &format!("{value:?} is not a number of milliseconds, up to a day"));
            default
        });
        Duration::from_millis(number.into())
    }

    fn wrong(&mut self, name: &str, allowed: &dyn ToString) {
        self.problems.wrong_variable(name, &allowed.to_string());
    }
}

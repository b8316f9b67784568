//! Options for Pub/Sub: the endpoint, and limits on connections and requests.

use std::fs;

use walrelay_pubsub::{Endpoint, PublisherConfig};
use walrelay_relay::settings::PubSubSettings;

use super::builder::ConfigBuilder;
use crate::options;

impl ConfigBuilder<'_> {
    pub(super) fn pubsub(&mut self) -> PubSubSettings {
        let endpoint = self.endpoint();
        let problems = &mut self.problems;
        let publisher = PublisherConfig {
            connections_max: problems.read(options::CONNECTIONS) as usize,
            request_timeout: problems.read(options::PUBLISH_TIMEOUT),
            ..PublisherConfig::new(endpoint)
        };
        let max_outstanding_requests = problems.read(options::MAX_OUTSTANDING_REQUESTS) as usize;
        PubSubSettings { publisher, max_outstanding_requests }
    }

    pub(super) fn endpoint(&mut self) -> Endpoint {
        let pinned = self.problems.read(options::ENDPOINT);
        let emulator = self.environment.get("PUBSUB_EMULATOR_HOST");
        let endpoint = match (pinned, emulator) {
            (Some(_), Some(_)) => {
                let allowed = "PUBSUB_EMULATOR_HOST is set too; unset one of them";
                self.problems.report_without_value("endpoint", allowed);
                None
            }
            (Some(url), None) => Endpoint::regional(&url)
                .map_err(|error| self.problems.report_without_value("endpoint", error.to_string()))
                .ok(),
            (None, Some(host)) => Endpoint::emulator(host)
                .map_err(|error| {
                    self.problems.wrong_variable("PUBSUB_EMULATOR_HOST", &error.to_string());
                })
                .ok(),
            (None, None) => None,
        };
        self.trusting(endpoint.unwrap_or_else(Endpoint::production))
    }

    fn trusting(&mut self, endpoint: Endpoint) -> Endpoint {
        let Some(path) = self.problems.read(options::PUBSUB_CA) else { return endpoint };
        if endpoint.is_emulator() {
            let allowed = "an emulator has no certificate; unset it, or PUBSUB_EMULATOR_HOST";
            self.problems.wrong("pubsub-ca", &path, allowed);
            return endpoint;
        }
        let trusting = fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|pem| endpoint.clone().trusting(&pem).map_err(|error| error.to_string()));
        trusting.unwrap_or_else(|problem| {
            self.problems.wrong("pubsub-ca", &path, problem);
            endpoint
        })
    }
}

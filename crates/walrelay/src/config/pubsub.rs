//! Options for Pub/Sub: the endpoint, and limits on connections and requests.

use std::fs;

use walrelay_pubsub::{Endpoint, PublisherConfig, TopicSettings};
use walrelay_relay::settings::PubSubSettings;

use super::checks::Checks;
use crate::options::{EndpointOptions, PubSubOptions, TopicOptions};

pub(crate) fn topic_settings(options: &TopicOptions) -> TopicSettings {
    TopicSettings { retention: options.message_retention.0, regions: options.regions.clone() }
}

impl Checks<'_> {
    pub(crate) fn pubsub(&mut self, options: &PubSubOptions) -> PubSubSettings {
        let publisher = PublisherConfig {
            connections_max: options.connections as usize,
            request_timeout: options.publish_timeout,
            ..PublisherConfig::new(self.endpoint(&options.endpoint))
        };
        let max_outstanding_requests = options.max_outstanding_requests as usize;
        PubSubSettings { publisher, max_outstanding_requests }
    }

    pub(crate) fn endpoint(&mut self, options: &EndpointOptions) -> Endpoint {
        let emulator = self.environment.get("PUBSUB_EMULATOR_HOST");
        let endpoint = match (&options.endpoint, emulator) {
            (Some(_), Some(_)) => {
                let allowed = "PUBSUB_EMULATOR_HOST is set too; unset one of them";
                self.wrong_or_missing("endpoint", allowed);
                None
            }
            (Some(regional), None) => Some(regional.clone()),
            (None, Some(host)) => Endpoint::emulator(host)
                .map_err(|error| self.wrong_variable("PUBSUB_EMULATOR_HOST", &error.to_string()))
                .ok(),
            (None, None) => None,
        };
        self.with_roots(options, endpoint.unwrap_or_else(Endpoint::production))
    }

    fn with_roots(&mut self, options: &EndpointOptions, endpoint: Endpoint) -> Endpoint {
        let path = options.pubsub_ca.as_deref().filter(|path| !path.as_os_str().is_empty());
        let Some(path) = path else { return endpoint };
        let shown = path.display().to_string();
        if endpoint.is_emulator() {
            let allowed = "an emulator has no certificate; unset it, or PUBSUB_EMULATOR_HOST";
            self.wrong("pubsub-ca", &shown, allowed);
            return endpoint;
        }
        let trusting = fs::read(path)
            .map_err(|error| error.to_string())
            .and_then(|pem| endpoint.clone().with_roots(&pem).map_err(|error| error.to_string()));
        trusting.unwrap_or_else(|problem| {
            self.wrong("pubsub-ca", &shown, problem);
            endpoint
        })
    }
}

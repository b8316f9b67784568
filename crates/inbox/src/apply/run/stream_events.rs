//! The loop's reactions to responses, and to the end of the stream.

use std::sync::Arc;

use tokio::time::Instant;
use walrelay_inbox_core::{Delivery, DeliveryKind};
use walrelay_pubsub::Delivered;

use super::Run;
use crate::apply::pull_stream::{StreamEnd, code_name, error_code, operator_fix};
use crate::event::Event;
use crate::metrics::ReasonLabel;

impl Run {
    pub(super) fn received(&mut self, response: &Delivered) {
        let now = Instant::now();
        self.link.worked();
        self.note_open_stream();
        if let Some(confirmation) = &response.acknowledge_confirmation {
            // Pub/Sub redelivers these messages, and the inbox has them, so no action is needed.
            let refused = confirmation.invalid_ack_ids.len();
            tracing::debug!(refused, "acknowledgements answered");
        }
        if let Some(confirmation) = &response.modify_ack_deadline_confirmation {
            self.intake.disowned(&confirmation.invalid_ack_ids);
        }
        for received in response.messages() {
            let Ok(received) = received else {
                self.observed.note_malformed();
                continue;
            };
            let Ok(message) = received.message() else {
                self.observed.note_malformed();
                continue;
            };
            let event = Arc::new(Event::of_message(message));
            let delivery = Delivery {
                message_id: &event.message_id,
                ack_id: received.ack_id,
                ordering_key: &event.ordering_key,
                bytes: event.bytes(),
            };
            self.observed.metrics.messages_received.inc();
            if self.intake.arrive(delivery, &event, now.into_std()) == DeliveryKind::Again {
                tracing::trace!("delivered again while it is held");
            }
        }
    }

    fn note_open_stream(&self) {
        if self.observed.health.set_stream_problem(None) {
            tracing::info!("the stream is open again");
        }
    }

    pub(super) fn stream_ended(&mut self, end: StreamEnd) {
        self.link.ended(&end, Instant::now(), &mut self.random);
        // A stream that does not answer has delivered nothing for a long time. Other streams end every
        // half hour, and only a stream that cannot be reopened is a problem.
        let is_problem = matches!(end, StreamEnd::Silent) || self.link.is_failing();
        let is_working = matches!(end, StreamEnd::AsAsked);
        let status = &end.status();
        let reason = code_name(status);
        self.observed.metrics.streams_ended.get_or_create(&ReasonLabel { reason }).inc();
        if is_working {
            return self.note_open_stream();
        }
        if let Some(fix) = operator_fix(status, &self.subscription) {
            if self.observed.health.set_stream_problem(Some(format!("{reason}: {fix}"))) {
                let error_code = error_code(status).name();
                tracing::error!(
                    error_code,
                    reason,
                    fix,
                    "nothing is delivered until somebody acts"
                );
            }
            return;
        }
        // A field named "message" would replace the text.
        let error = status.message();
        tracing::debug!(reason, error, "the stream has ended");
        let problem = format!("{reason}: {}", status.message());
        if is_problem && self.observed.health.set_stream_problem(Some(problem)) {
            tracing::warn!(reason, error, "no stream to Pub/Sub; connecting again");
        }
    }
}

//! Where the loop says how it is doing.

use std::sync::Arc;

use walrelay_inbox_core::Failure;

use crate::database::{Applied, Unapplied};
use crate::event::Event;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::trace::{TraceEnd, Tracer};

/// Everybody who is told.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
}

impl Observed {
    /// A transaction begins.
    pub(crate) fn begin(&self, subscription: &str, events: &[Arc<Event>]) -> Option<TraceEnd> {
        self.tracer.as_ref()?.begin(subscription, events)
    }

    /// Somebody has to end a pause, and may have forgotten it.
    pub(crate) fn note_pause(consumer: &str) {
        tracing::info!("paused: nothing is applied until `walrelay consumer resume {consumer}`");
    }

    /// Says of stored events what a person may be waiting for.
    pub(crate) fn note_redelivered(applied: &[Applied]) {
        for it in applied.iter().filter(|it| it.result == "dead") {
            tracing::warn!(
                event_id = it.event_id,
                result = it.result,
                code = it.error_code,
                "an event is dead: it has failed for the last time; `walrelay inbox show` tells more"
            );
        }
        let mut done = applied.iter().filter(|it| it.is_new());
        if let Some(first) = done.next() {
            let events = 1 + done.count();
            tracing::info!(
                events,
                first = first.event_id,
                "stored events are applied, and their keys go on"
            );
        }
    }

    /// Says what is wrong, once.
    pub(crate) fn complain(&self, failure: Failure, error: &Unapplied) {
        match failure {
            Failure::Conflict => tracing::debug!(%error, "a batch met others; it is tried again"),
            Failure::Paused | Failure::Rebuilt | Failure::Unregistered => {
                tracing::debug!(%error, "a batch was refused");
            }
            Failure::Outage => {
                if self.health.set_database_problem(Some(error.to_string())) {
                    tracing::warn!(%error, "the database cannot apply events; they are held");
                }
            }
            Failure::Operator => {
                if self.health.set_database_problem(Some(error.to_string())) {
                    tracing::error!(%error, "events cannot be applied until somebody acts; no attempts are counted");
                }
            }
        }
    }
}

//! The events that one transaction of a rebuild applies.

use walrelay_core::Routed;
use walrelay_inbox::Event;

/// Most events in one transaction.
const BATCH_EVENTS: usize = 500;
/// Most bytes of events in one transaction, which takes at least one event.
const BATCH_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct EventBatch {
    events: Vec<Event>,
    bytes: usize,
}

impl EventBatch {
    /// Adds a row, unless the row can never be published. Returns whether the batch is full.
    pub(crate) fn add(&mut self, routed: &Routed) -> bool {
        if routed.fault.is_none() {
            let event = Event::of_row(&routed.message);
            self.bytes += event.bytes();
            self.events.push(event);
        }
        self.events.len() >= BATCH_EVENTS || self.bytes >= BATCH_BYTES
    }

    pub(crate) fn take(&mut self) -> Vec<Event> {
        self.bytes = 0;
        std::mem::take(&mut self.events)
    }
}

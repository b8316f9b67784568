//! Progress of a snapshot: a moving line on a terminal, otherwise a log message now and then.

use tokio::time::Instant;

use super::step::Step;
use crate::output::live::{LiveLine, per_second};

pub(super) struct SnapshotProgress {
    /// Number of rows when the command began.
    rows: u64,
    events: u64,
    /// Rows that an earlier run or the first step has done.
    done_before: u64,
    began: Instant,
    line: LiveLine,
}

impl SnapshotProgress {
    /// Creates the display after the first step.
    pub(super) fn new(rows: u64, first: &Step) -> Self {
        let (done_before, line) = (first.events + first.skipped, LiveLine::of_progress(rows));
        Self { rows, events: first.events, done_before, began: Instant::now(), line }
    }

    pub(super) const fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn update(&mut self, step: &Step) {
        self.events = step.events;
        let done = step.events + step.skipped;
        let rate = per_second(done - self.done_before, self.began.elapsed());
        // Rows that were inserted meanwhile can make the share larger than the whole.
        if self.line.show(done.min(self.rows), format!("{done} rows  {rate}/s")) {
            let (events, last_id) = (self.events, step.last_id.as_deref());
            tracing::info!(rows = done, events, rows_per_second = rate, last_id, "snapshot");
        }
    }
}

//! Progress of a snapshot: a moving line on a terminal, otherwise a log message now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use super::step::Step;

/// Interval between redraws on a terminal.
const REDRAWN_EVERY: Duration = Duration::from_millis(200);

/// Interval between log messages.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

const BAR_CELLS: usize = 24;

/// Shows how many rows of a snapshot are done.
pub(super) struct SnapshotProgress {
    /// Number of rows when the command began.
    rows: u64,
    done: u64,
    events: u64,
    /// Rows that an earlier run or the first step has done.
    done_before: u64,
    began: Instant,
    next: Instant,
    is_terminal: bool,
}

impl SnapshotProgress {
    /// Creates the display after the first step.
    pub(super) fn new(rows: u64, first: &Step) -> Self {
        let (began, is_terminal) = (Instant::now(), io::stderr().is_terminal());
        let next = began + if is_terminal { REDRAWN_EVERY } else { LOGGED_EVERY };
        let done = first.events + first.skipped;
        let events = first.events;
        Self { rows, done, events, done_before: done, began, next, is_terminal }
    }

    /// Returns the number of events that are written.
    pub(super) const fn events(&self) -> u64 {
        self.events
    }

    /// Takes the numbers of a step, and shows them if a display is due.
    pub(super) fn update(&mut self, step: &Step) {
        self.events = step.events;
        self.done = step.events + step.skipped;
        let now = Instant::now();
        if now < self.next {
            return;
        }
        if self.is_terminal {
            self.next = now + REDRAWN_EVERY;
            // An error is ignored, because standard error may be closed.
            drop(write!(io::stderr(), "\r\x1b[K{}", self.bar()));
        } else {
            self.next = now + LOGGED_EVERY;
            let (rows, last_id) = (self.done, step.last_id.as_deref());
            tracing::info!(
                rows,
                events = self.events,
                rows_per_second = self.rate(),
                last_id,
                "snapshot"
            );
        }
    }

    /// Shows the final numbers, if a line was shown.
    pub(super) fn end(&self) {
        if self.is_terminal {
            drop(writeln!(io::stderr(), "\r\x1b[K{}", self.bar()));
        }
    }

    /// Returns the rows per second of this run.
    fn rate(&self) -> u64 {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        (self.done - self.done_before).saturating_mul(1_000) / millis
    }

    fn bar(&self) -> String {
        // Rows that were inserted meanwhile can make the share larger than the whole.
        let share =
            (self.done.saturating_mul(1_000)).checked_div(self.rows).unwrap_or(1_000).min(1_000);
        let filled = usize::try_from(share).unwrap_or(1_000) * BAR_CELLS / 1_000;
        let bar = "█".repeat(filled) + &"░".repeat(BAR_CELLS - filled);
        let left = self.rows.saturating_sub(self.done).checked_div(self.rate());
        let left = left.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds} s"));
        let (done, rate) = (self.done, self.rate());
        format!("{bar} {:3} %  {done} rows  {rate}/s  {left} left", share / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(events: u64, skipped: u64) -> Step {
        Step { events, written: 0, skipped, last_id: None, is_done: false }
    }

    #[tokio::test(start_paused = true)]
    async fn the_bar_shows_rows_rate_and_the_time_left() {
        let mut progress = SnapshotProgress::new(1_000, &step(0, 100));
        assert!(progress.bar().contains("– left"), "{}", progress.bar());
        tokio::time::advance(Duration::from_secs(4)).await;
        progress.update(&step(300, 200));
        let bar = progress.bar();
        for part in ["████████████░░░░░░░░░░░░ ", " 50 %", "500 rows", "100/s", "5 s left"]
        {
            assert!(bar.contains(part), "{part:?} is not in {bar:?}");
        }
        progress.update(&step(1_500, 200));
        assert!(progress.bar().contains("100 %"), "{}", progress.bar());
    }
}

//! Progress of a replay: a moving line on a terminal, otherwise a log message now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep_until};
use walrelay_outbox_admin::replay::Tally;

/// Interval between redraws on a terminal.
const REDRAWN_EVERY: Duration = Duration::from_millis(200);

/// Interval between log messages: an hour of replay fills one page of log.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

const BAR_CELLS: usize = 24;

/// Shows the progress of a tally until it is dropped.
pub(super) struct Progress {
    /// The verb of the messages, as in `replaying`.
    doing: &'static str,
    start: Lsn,
    goal: Lsn,
    tally: Tally,
    began: Instant,
    published_before: u64,
    next: Instant,
    is_seen: bool,
}

impl Progress {
    /// Creates the progress display for a verb.
    pub(super) fn new(doing: &'static str, (start, goal): (Lsn, Lsn), tally: Tally) -> Self {
        let began = Instant::now();
        let published_before = tally.published();
        let is_seen = io::stderr().is_terminal();
        let next = began + if is_seen { REDRAWN_EVERY } else { LOGGED_EVERY };
        Self { doing, start, goal, tally, began, published_before, next, is_seen }
    }

    /// Waits until the next display is due, and shows the progress.
    pub(super) async fn next(&mut self) {
        sleep_until(self.next).await;
        let standing = self.standing();
        if self.is_seen {
            self.next = Instant::now() + REDRAWN_EVERY;
            // An error is ignored, because standard error may be closed.
            drop(write!(io::stderr(), "\r\x1b[K{}", standing.bar()));
        } else {
            self.next = Instant::now() + LOGGED_EVERY;
            let Standing { rows, rate, position, left, .. } = standing;
            let seconds_left = left.map(|left| left.as_secs());
            let doing = self.doing;
            tracing::info!(rows, rows_per_second = rate, %position, seconds_left, "{doing}");
        }
    }

    /// Prints the final state, if a line was shown.
    pub(super) fn end(&self) {
        if self.is_seen {
            drop(writeln!(io::stderr(), "\r\x1b[K{}", self.standing().bar()));
        }
    }

    fn standing(&self) -> Standing {
        let position = self.tally.settled().max(self.start);
        let new_rows = self.tally.published() - self.published_before;
        let whole = self.goal.as_u64().saturating_sub(self.start.as_u64());
        let done = position.min(self.goal).as_u64() - self.start.as_u64().min(position.as_u64());
        Standing::new(
            (self.tally.published(), new_rows),
            position,
            (done, whole),
            self.began.elapsed(),
        )
    }
}

/// A snapshot of the progress.
struct Standing {
    rows: u64,
    /// Rows per second.
    rate: u64,
    position: Lsn,
    /// Share done, in thousandths.
    share: u64,
    /// Estimated remaining time. None until there is enough data.
    left: Option<Duration>,
}

impl Standing {
    fn new(
        (rows, new_rows): (u64, u64),
        position: Lsn,
        (done, whole): (u64, u64),
        elapsed: Duration,
    ) -> Self {
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        let share = (done.saturating_mul(1_000)).checked_div(whole).unwrap_or(1_000).min(1_000);
        // The first hundredth gives no useful estimate.
        let left = (share >= 10)
            .then(|| Duration::from_millis(millis.saturating_mul(1_000 - share) / share));
        Self { rows, rate: new_rows.saturating_mul(1_000) / millis, position, share, left }
    }

    fn bar(&self) -> String {
        let filled = usize::try_from(self.share).unwrap_or(1_000) * BAR_CELLS / 1_000;
        let bar = "█".repeat(filled) + &"░".repeat(BAR_CELLS - filled);
        let left = match self.left {
            None => "–".to_owned(),
            Some(left) if left >= Duration::from_mins(1) => format!("{} min", left.as_secs() / 60),
            Some(left) => format!("{} s", left.as_secs()),
        };
        let Self { rows, rate, position, share, .. } = self;
        format!("{bar} {:3} %  {rows} rows  {rate}/s  at {position}  {left} left", share / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_tells_rows_rate_position_and_the_time_left() {
        let at = Lsn::new(0x2000);
        let half = Standing::new((500, 400), at, (50, 100), Duration::from_secs(4));
        let bar = half.bar();
        for part in
            ["████████████░░░░░░░░░░░░ ", " 50 %", "500 rows", "100/s", "at 0/2000", "4 s left"]
        {
            assert!(bar.contains(part), "{part:?} is not in {bar:?}");
        }
        let begun = Standing::new((0, 0), at, (0, 100), Duration::ZERO);
        assert!(begun.bar().contains("– left"), "{}", begun.bar());
        let done = Standing::new((0, 0), at, (0, 0), Duration::ZERO);
        assert!(done.bar().contains("100 %"), "{}", done.bar());
    }
}

//! Progress of a replay: a moving line on a terminal, otherwise a log message now and then.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::Instant;
use walrelay_errors::BoxedError;
use walrelay_outbox_replay::operator::StepSink;
use walrelay_outbox_replay::replay::{
    ReadProgress, RelayWork, ReplaySource, ReplayStep, ReplayWait, Tally,
};

use crate::telemetry::for_this_shard;

/// Interval between log messages: an hour of replay fills one page of log.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

const BAR_CELLS: usize = 24;

/// Shows the steps of a replay on standard error and in the log.
#[derive(Debug, Default)]
pub(super) struct StepPrinter {
    /// The pass that is shown now.
    pass: Mutex<Option<Progress>>,
}

impl StepSink<ReplayStep<'_>> for StepPrinter {
    fn report(&self, step: &ReplayStep<'_>) -> Result<(), BoxedError> {
        match step {
            ReplayStep::Begins(job) => match &job.request.source {
                ReplaySource::Wal(wal) => {
                    let (anchor, from, to) = (&wal.anchor, wal.from, wal.to);
                    tracing::info!(id = job.id, anchor, %from, %to, "replay begins");
                }
                ReplaySource::Table(_) => tracing::info!(id = job.id, "replay begins"),
            },
            ReplayStep::Resumes(job) => {
                tracing::info!(id = job.id, from = %job.progress.settled, "replay resumes");
            }
            ReplayStep::Reads(progress) => {
                let mut pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
                pass.get_or_insert_with(|| Progress::new(progress)).next();
            }
            ReplayStep::ReadsNoMore(_) => {
                let mut pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(pass) = pass.take() {
                    pass.end();
                }
            }
            ReplayStep::RequestsPauses { job, keys } => {
                tracing::info!(id = job.id, keys, "replay in place begins");
            }
            ReplayStep::LiftsPauses(job) => tracing::info!(
                id = job.id,
                "the history is in dispatch state, and its keys continue"
            ),
            ReplayStep::Waits(wait) => log_wait(wait),
        }
        Ok(())
    }
}

/// Logs the reason for a wait, and warns if no relay is running.
fn log_wait(ReplayWait { id, slot, work, relay }: &ReplayWait<'_>) {
    let work = match work {
        RelayWork::PauseKeys(keys) => format!("{keys} key(s) to be paused"),
        RelayWork::ReadBytes(bytes) => format!("{bytes} byte(s) of WAL to be read"),
        RelayWork::PublishRows(rows) => format!("{rows} row(s) to be published"),
    };
    match relay {
        Some(_) => tracing::info!(id, "waiting for the relay: {work}"),
        None => {
            let next = format!(
                "start `walrelay run`, or press Ctrl-C and resume later with `walrelay replay resume {id}`"
            );
            let next = for_this_shard(&next);
            tracing::warn!(id, "no relay streams slot {slot:?}, and {work} wait for one: {next}");
        }
    }
}

/// The progress of one pass over the rows.
#[derive(Debug)]
struct Progress {
    start: Lsn,
    goal: Lsn,
    tally: Tally,
    began: Instant,
    published_before: u64,
    next_log: Instant,
    is_seen: bool,
}

impl Progress {
    fn new(ReadProgress { start, goal, tally }: &ReadProgress<'_>) -> Self {
        let began = Instant::now();
        let tally = Tally::clone(tally);
        let published_before = tally.published();
        let is_seen = io::stderr().is_terminal();
        let (start, goal, next_log) = (*start, *goal, began + LOGGED_EVERY);
        Self { start, goal, tally, began, published_before, next_log, is_seen }
    }

    /// Redraws the line, or logs a message if one is due.
    fn next(&mut self) {
        let progress_line = self.progress_line();
        if self.is_seen {
            // An error is ignored, because standard error may be closed.
            drop(write!(io::stderr(), "\r\x1b[K{}", progress_line.bar()));
        } else if Instant::now() >= self.next_log {
            self.next_log = Instant::now() + LOGGED_EVERY;
            let ProgressLine { rows, rate, position, left, .. } = progress_line;
            let seconds_left = left.map(|left| left.as_secs());
            tracing::info!(rows, rows_per_second = rate, %position, seconds_left, "replaying");
        }
    }

    /// Prints the final state, if a line was shown.
    fn end(&self) {
        if self.is_seen {
            drop(writeln!(io::stderr(), "\r\x1b[K{}", self.progress_line().bar()));
        }
    }

    fn progress_line(&self) -> ProgressLine {
        let position = self.tally.settled().max(self.start);
        let new_rows = self.tally.published() - self.published_before;
        let whole = self.goal.as_u64().saturating_sub(self.start.as_u64());
        let done = position.min(self.goal).as_u64().saturating_sub(self.start.as_u64());
        let (rows, elapsed) = (self.tally.published(), self.began.elapsed());
        ProgressLine::new(&Figures { rows, new_rows, position, done, whole, elapsed })
    }
}

/// A snapshot of the progress.
struct ProgressLine {
    rows: u64,
    /// Rows per second.
    rate: u64,
    position: Lsn,
    /// Share done, in thousandths.
    share: u64,
    /// Estimated remaining time. None until there is enough data.
    left: Option<Duration>,
}

/// The counts of a pass.
struct Figures {
    rows: u64,
    /// Rows of this process.
    new_rows: u64,
    position: Lsn,
    /// Bytes of WAL that are done.
    done: u64,
    /// All bytes of WAL of the pass.
    whole: u64,
    /// Since the start of the process.
    elapsed: Duration,
}

impl ProgressLine {
    fn new(figures: &Figures) -> Self {
        let Figures { rows, new_rows, position, done, whole, elapsed } = *figures;
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
        let elapsed = Duration::from_secs(4);
        let half =
            Figures { rows: 500, new_rows: 400, position: at, done: 50, whole: 100, elapsed };
        let begun = Figures { rows: 0, new_rows: 0, done: 0, elapsed: Duration::ZERO, ..half };
        let half = ProgressLine::new(&half);
        let bar = half.bar();
        for part in
            ["████████████░░░░░░░░░░░░ ", " 50 %", "500 rows", "100/s", "at 0/2000", "4 s left"]
        {
            assert!(bar.contains(part), "{part:?} is not in {bar:?}");
        }
        let done = ProgressLine::new(&Figures { whole: 0, ..begun });
        let begun = ProgressLine::new(&begun);
        assert!(begun.bar().contains("– left"), "{}", begun.bar());
        assert!(done.bar().contains("100 %"), "{}", done.bar());
    }

    #[test]
    fn a_pass_that_starts_behind_its_goal_is_shown_as_done() {
        let tally = Tally::resumed(1, Lsn::new(0x2000));
        let pass = ReadProgress { start: Lsn::new(0x2000), goal: Lsn::new(0x1000), tally: &tally };
        let bar = Progress::new(&pass).progress_line().bar();
        assert!(bar.contains("100 %"), "{bar}");
    }
}

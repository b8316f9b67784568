//! Progress of a replay: a moving line on a terminal, otherwise a log message now and then.

use pgoutput_parser::Lsn;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;
use walrelay_errors::BoxedError;
use walrelay_outbox_replay::operator::StepSink;
use walrelay_outbox_replay::replay::{
    ReadProgress, RelayWork, ReplaySource, ReplayStep, ReplayWait, Tally,
};

use crate::error::printed_commands::as_given;
use crate::output::live::{LiveLine, per_second};

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
                if let Some(mut pass) = pass.take() {
                    pass.next();
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
            let next = as_given(&next);
            tracing::warn!(id, "no relay streams slot {slot:?}, and {work} wait for one: {next}");
        }
    }
}

/// The progress of one pass over the rows.
#[derive(Debug)]
struct Progress {
    start: Lsn,
    /// Bytes of WAL of the pass.
    whole: u64,
    tally: Tally,
    began: Instant,
    published_before: u64,
    line: LiveLine,
}

impl Progress {
    fn new(ReadProgress { start, goal, tally }: &ReadProgress<'_>) -> Self {
        let tally = Tally::clone(tally);
        let whole = goal.as_u64().saturating_sub(start.as_u64());
        Self {
            start: *start,
            whole,
            published_before: tally.published(),
            tally,
            began: Instant::now(),
            line: LiveLine::of_progress(whole),
        }
    }

    /// Moves the line, or logs a message if one is due.
    fn next(&mut self) {
        let rows = self.tally.published();
        let rate = per_second(rows - self.published_before, self.began.elapsed());
        let position = self.tally.settled().max(self.start);
        let done = position.as_u64() - self.start.as_u64();
        let text = format!("{rows} rows  {rate}/s  at {position}");
        if self.line.show(done.min(self.whole), text) {
            let percent = (done.min(self.whole) * 100).checked_div(self.whole).unwrap_or(100);
            tracing::info!(rows, rows_per_second = rate, %position, percent, "replaying");
        }
    }
}

//! The line that moves at the end of a terminal, below the log. Without a terminal there is none.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::Instant;

/// Interval between messages where no line is seen: an hour of work fills one page of log.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The line that is shown now. The log is written above it. A `MultiProgress` would panic once its
/// terminal is gone.
static LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn line() -> MutexGuard<'static, Option<ProgressBar>> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error for the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AboveLines;

/// The lines of the log that were left out since the last one that was written.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// The longest wait for a reader of standard error. While nobody reads, there is no further wait.
const READER_WAIT: Duration = Duration::from_millis(200);

/// The bytes that a pipe with a free page takes without blocking.
const AT_ONCE: usize = 4096;

/// Returns whether standard error takes a line. A full pipe would stop the whole process. A terminal may
/// take less than a line, so one whose reader stopped can still do that.
fn is_read(wait: Duration) -> bool {
    let stderr = io::stderr();
    let mut events = [PollFd::new(&stderr, PollFlags::OUT)];
    let wait = Timespec::try_from(wait).ok();
    // An error is reported by the write.
    poll(&mut events, wait.as_ref()).map_or(true, |count| count > 0)
}

impl Write for AboveLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left_out = LEFT_OUT.load(Ordering::Relaxed);
        if !is_read(if left_out == 0 { READER_WAIT } else { Duration::ZERO }) {
            LEFT_OUT.store(left_out + 1, Ordering::Relaxed);
            return Ok(bytes.len());
        }
        if left_out > 0 {
            LEFT_OUT.store(0, Ordering::Relaxed);
            tracing::warn!(
                lines = left_out,
                "lines of the log were left out, because nobody read them"
            );
        }
        // More may block although standard error takes something.
        let bytes = &bytes[..bytes.len().min(AT_ONCE)];
        match &*line() {
            Some(bar) => bar.suspend(|| io::stderr().write(bytes)),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A line that moves. It is gone once it is dropped, because results follow.
#[derive(Debug)]
pub(crate) struct LiveLine {
    bar: ProgressBar,
    next_log: Instant,
}

impl LiveLine {
    pub(crate) fn of_text() -> Self {
        Self::new(ProgressBar::no_length(), "{wide_msg}")
    }

    /// Creates a line with the share that is done, and an estimate of the time left.
    pub(crate) fn of_progress(whole: u64) -> Self {
        let bar = ProgressBar::new(whole);
        Self::new(bar, "{bar:24} {percent:>3} %  {msg}  {eta} left")
    }

    fn new(bar: ProgressBar, template: &str) -> Self {
        let style = ProgressStyle::with_template(template).expect("a valid template");
        let bar = bar.with_style(style.progress_chars("█░░"));
        *line() = Some(bar.clone());
        Self { bar, next_log: Instant::now() + LOGGED_EVERY }
    }

    /// Shows what is done. Without a terminal, returns whether a log message is due instead.
    pub(crate) fn show(&mut self, done: u64, text: String) -> bool {
        if is_read(Duration::ZERO) {
            self.bar.set_position(done);
            self.bar.set_message(text);
        }
        let is_due = self.bar.is_hidden() && Instant::now() >= self.next_log;
        if is_due {
            self.next_log = Instant::now() + LOGGED_EVERY;
        }
        is_due
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if is_read(Duration::ZERO) {
            self.bar.finish_and_clear();
        }
        *line() = None;
    }
}

/// Returns the rate of so many rows in this time.
pub(crate) fn per_second(rows: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    rows.saturating_mul(1_000) / millis
}

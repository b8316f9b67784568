//! Decides, without I/O, when to record the settled position in the relay's own row.
//!
//! The slot is never confirmed beyond the relay's own row, so that a start can recognise another
//! slot of the same name. A killed relay restarts at the position in the row. The row therefore
//! bounds the duplicates after a kill, and it is written
//!
//! ```text
//! at once                         the first position of a session, and after megabytes of WAL
//! the last write + `busy`         while rows are in flight
//! when rows settled + `quiet`     once no row is in flight, if that is sooner
//! the last write + `idle`         while only the WAL of others grows: our write is such WAL itself
//! ```
//!
//! but never more often than a slow server can handle: see `PAUSE_PER_WRITE`.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_core::Watermark;

/// The amount of settled but unrecorded WAL that triggers a write before the interval ends. A busy
/// server may otherwise write more WAL within the interval than the WAL budget (I10).
const WAL_MAX: u64 = 4 << 20;

/// The length of a pause as a multiple of the write before it. A server with slow commits is busy,
/// and other dispatch commands wait during a write.
const PAUSE_PER_WRITE: u32 = 4;

/// The longest such pause, and the pause after a failed write.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The intervals between writes of the record.
#[derive(Debug, Clone, Copy)]
pub struct JournalIntervals {
    /// Between two writes while rows are in flight.
    pub busy: Duration,
    /// Between the last row's settling and the write.
    pub quiet: Duration,
    /// Between two writes while only the WAL of others grows.
    pub idle: Duration,
}

/// Whether rows are on their way to Pub/Sub or to dispatch state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// Some rows are.
    Rows,
    /// Every row that was read is settled.
    Nothing,
}

/// The settled position, and the recorded one.
#[derive(Debug)]
pub(crate) struct Record {
    intervals: JournalIntervals,
    settled: Watermark,
    noted: Watermark,
    rows: UnrecordedRows,
    write: LastWrite,
}

/// Rows that a start from the record would read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnrecordedRows {
    None,
    InFlight,
    /// All of these rows are before `through`.
    Settled {
        through: Watermark,
        since: Instant,
    },
}

/// The last write of the record.
#[derive(Debug)]
struct LastWrite {
    /// Set while the write runs.
    began_at: Option<Instant>,
    ended_at: Instant,
    /// The earliest start of the next write.
    not_before: Instant,
}

impl Record {
    /// Creates a record without any settled or written position.
    pub(crate) fn new(now: Instant, intervals: JournalIntervals) -> Self {
        Self {
            intervals,
            settled: Watermark::NONE,
            noted: Watermark::NONE,
            rows: UnrecordedRows::None,
            write: LastWrite { began_at: None, ended_at: now, not_before: now },
        }
    }

    /// Records the settled position, and whether rows are in flight beyond it.
    pub(crate) fn settled(&mut self, settled: Watermark, in_flight: InFlight, now: Instant) {
        self.settled = settled;
        self.rows = match (in_flight, self.rows) {
            (InFlight::Rows, _) => UnrecordedRows::InFlight,
            (InFlight::Nothing, UnrecordedRows::InFlight) => {
                UnrecordedRows::Settled { through: settled, since: now }
            }
            (InFlight::Nothing, rows) => rows,
        };
    }

    /// Records a completed write.
    pub(crate) fn written(&mut self, watermark: Watermark, now: Instant) {
        self.noted = watermark;
        if let UnrecordedRows::Settled { through, .. } = self.rows
            && through <= watermark
        {
            self.rows = UnrecordedRows::None;
        }
        let took = self.write.began_at.take().map_or(Duration::ZERO, |began_at| now - began_at);
        self.write.ended_at = now;
        self.write.not_before = now + (took * PAUSE_PER_WRITE).min(PAUSE_MAX);
    }

    /// Records a failed command. A write in progress has failed with it.
    pub(crate) fn failed(&mut self, now: Instant) {
        if self.write.began_at.take().is_some() {
            self.write.not_before = now + PAUSE_MAX;
        }
    }

    /// Returns the recorded position, which may be confirmed.
    pub(crate) const fn noted(&self) -> Watermark {
        self.noted
    }

    /// Returns the settled position if it is not on record yet.
    pub(crate) fn unwritten(&self) -> Option<Watermark> {
        (self.settled > self.noted).then_some(self.settled)
    }

    /// Returns the time of the next write, or `None` if the settled position is on record.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let settled = self.unwritten()?;
        Some(self.wanted_at(settled).max(self.write.not_before))
    }

    fn wanted_at(&self, settled: Watermark) -> Instant {
        let wal = settled.lsn().as_u64().saturating_sub(self.noted.lsn().as_u64());
        let last = self.write.ended_at;
        // The first write is immediate: if sessions are short and each waited, the slot would never
        // move.
        if self.noted == Watermark::NONE || wal >= WAL_MAX {
            return last;
        }
        let JournalIntervals { busy, quiet, idle } = self.intervals;
        match self.rows {
            UnrecordedRows::InFlight => last + busy,
            UnrecordedRows::Settled { since, .. } => (last + busy).min(since + quiet),
            UnrecordedRows::None => last + idle,
        }
    }

    /// Returns the position to write now, if a write is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Watermark> {
        self.due_at().filter(|at| *at <= now)?;
        self.write.began_at = Some(now);
        self.unwritten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgoutput_parser::{Lsn, encode};
    use walrelay_core::Tracker;

    const BUSY: Duration = Duration::from_millis(100);
    const QUIET: Duration = Duration::from_millis(25);
    const IDLE: Duration = Duration::from_secs(5);
    const INTERVALS: JournalIntervals = JournalIntervals { busy: BUSY, quiet: QUIET, idle: IDLE };
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn watermark(lsn: u64) -> Watermark {
        let mut tracker = Tracker::new();
        tracker.observe(encode::boundary(Lsn::new(lsn)));
        tracker.intact(Lsn::new(lsn));
        tracker.watermark()
    }

    /// Returns a record whose first position, 100, was written at the returned time.
    fn begun() -> (Record, Instant) {
        let start = Instant::now();
        let mut record = Record::new(start, INTERVALS);
        record.settled(watermark(100), InFlight::Nothing, start);
        assert_eq!(record.take_due(start), Some(watermark(100)));
        record.written(watermark(100), start);
        (record, start)
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_writes_down_at_once_what_it_learns_first() {
        let start = Instant::now();
        let mut record = Record::new(start, INTERVALS);
        assert_eq!(record.due_at(), None);
        record.settled(watermark(100), InFlight::Nothing, start);
        assert_eq!(record.take_due(start), Some(watermark(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn much_wal_is_written_down_at_once_and_little_in_its_time() {
        let (mut record, start) = begun();
        record.settled(watermark(101), InFlight::Nothing, start);
        assert_eq!(record.due_at(), Some(start + IDLE));
        record.settled(watermark(99 + WAL_MAX), InFlight::Nothing, start);
        assert_eq!(record.due_at(), Some(start + IDLE));
        record.settled(watermark(100 + WAL_MAX), InFlight::Nothing, start);
        assert_eq!(record.due_at(), Some(start));
    }

    #[tokio::test(start_paused = true)]
    async fn while_rows_flow_each_write_follows_the_one_before_after_the_busy_interval() {
        let (mut record, start) = begun();
        record.settled(watermark(101), InFlight::Rows, start + MILLISECOND);
        assert_eq!(record.due_at(), Some(start + BUSY));
        assert_eq!(record.take_due(start + BUSY), Some(watermark(101)));
        record.settled(watermark(102), InFlight::Rows, start + BUSY);
        record.written(watermark(101), start + BUSY + MILLISECOND);
        assert_eq!(record.due_at(), Some(start + BUSY * 2 + MILLISECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_settle_long_after_the_last_write_are_written_down_at_once() {
        let (mut record, start) = begun();
        let now = start + BUSY * 3;
        record.settled(watermark(100), InFlight::Rows, now - MILLISECOND);
        record.settled(watermark(101), InFlight::Nothing, now);
        assert_eq!(record.take_due(now), Some(watermark(101)));
    }

    #[tokio::test(start_paused = true)]
    async fn once_no_row_is_in_flight_the_busy_interval_is_not_waited_for() {
        let (mut record, start) = begun();
        let settled_at = start + MILLISECOND * 10;
        record.settled(watermark(100), InFlight::Rows, start);
        record.settled(watermark(101), InFlight::Nothing, settled_at);
        assert_eq!(record.due_at(), Some(settled_at + QUIET));
        // The quiet interval starts when the rows settle. Later keepalives do not change it.
        record.settled(watermark(109), InFlight::Nothing, settled_at + MILLISECOND);
        assert_eq!(record.due_at(), Some(settled_at + QUIET));
    }

    #[tokio::test(start_paused = true)]
    async fn wal_of_others_behind_recorded_rows_waits_for_the_idle_interval() {
        let (mut record, start) = begun();
        record.settled(watermark(100), InFlight::Rows, start);
        record.settled(watermark(101), InFlight::Nothing, start);
        assert_eq!(record.take_due(start + QUIET), Some(watermark(101)));
        // A keepalive arrives while the rows are being recorded.
        record.settled(watermark(102), InFlight::Nothing, start + QUIET);
        record.written(watermark(101), start + QUIET);
        assert_eq!(record.due_at(), Some(start + QUIET + IDLE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_writes_slowly_is_written_to_less_often() {
        let (mut record, start) = begun();
        record.settled(watermark(101), InFlight::Rows, start);
        let began_at = start + BUSY;
        for (took, pause) in [(10, 100), (25, 100), (50, 200), (200, 800), (10_000, 1_000)] {
            assert_eq!(record.take_due(began_at + IDLE), Some(watermark(101)));
            let ended_at = began_at + IDLE + MILLISECOND * took;
            record.noted = watermark(100);
            record.written(watermark(100), ended_at);
            assert_eq!(record.due_at(), Some(ended_at + MILLISECOND * pause), "{took}");
            record.write.not_before = start;
            record.write.ended_at = start;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_is_repeated_after_a_second() {
        let start = Instant::now();
        let mut record = Record::new(start, INTERVALS);
        record.settled(watermark(100), InFlight::Rows, start);
        assert_eq!(record.take_due(start), Some(watermark(100)));
        record.failed(start);
        assert_eq!(record.due_at(), Some(start + PAUSE_MAX));
        assert_eq!(record.take_due(start + PAUSE_MAX), Some(watermark(100)));
        record.written(watermark(100), start + PAUSE_MAX);
        // Another command failed while no write was running.
        record.settled(watermark(101), InFlight::Rows, start + PAUSE_MAX);
        record.failed(start + PAUSE_MAX);
        assert_eq!(record.due_at(), Some(start + PAUSE_MAX + BUSY));
    }
}

//! How far the slot is settled, and how far that is on record: a decision without I/O.
//!
//! The slot is confirmed no further than the relay's own row says, so that a start can tell this slot
//! from another of its name. Promises that the row is written as soon as a session knows something, soon
//! after rows are settled, and seldom while only the log of others grows.

use std::time::Duration;

use tokio::time::Instant;
use walrelay_core::Watermark;

/// With so much log settled and not on record nobody waits for the interval: a busy server writes more
/// in it than the WAL budget may be (I10).
const LOG_MAX: u64 = 4 << 20;

/// What is settled, and what of it is written down.
#[derive(Debug)]
pub(crate) struct Record {
    settled: Watermark,
    noted: Watermark,
    noted_at: Instant,
    news: News,
    /// Between two writes while rows are settled.
    busy: Duration,
    /// The same while only the log of others grows; each write makes the log longer itself.
    idle: Duration,
}

/// What has moved the watermark since it was last written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// At most the log of others.
    None,
    /// Rows of ours.
    Rows,
}

impl Record {
    /// Nothing is settled yet, and nothing written.
    pub(crate) fn new(now: Instant, busy: Duration, idle: Duration) -> Self {
        Self {
            settled: Watermark::NONE,
            noted: Watermark::NONE,
            noted_at: now,
            news: News::None,
            busy,
            idle,
        }
    }

    /// Learns how far the slot is settled.
    pub(crate) fn settled(&mut self, settled: Watermark) {
        self.settled = settled;
    }

    /// Learns that rows are on their way, so that the watermark will soon be worth writing down.
    pub(crate) fn rows_in_flight(&mut self) {
        self.news = News::Rows;
    }

    /// This much is on record now.
    pub(crate) fn written(&mut self, watermark: Watermark) {
        self.noted = watermark;
        if self.settled == self.noted {
            self.news = News::None;
        }
    }

    /// How far the slot is settled and that is on record: it may be confirmed.
    pub(crate) const fn noted(&self) -> Watermark {
        self.noted
    }

    /// What is not on record yet, if anything.
    pub(crate) fn unwritten(&self) -> Option<Watermark> {
        (self.settled > self.noted).then_some(self.settled)
    }

    /// When that is to be written down; never while everything is.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let settled = self.unwritten()?;
        let log = settled.lsn().as_u64().saturating_sub(self.noted.lsn().as_u64());
        // Sessions may be short, one after the other: if each waited first, the slot would never move.
        if self.noted == Watermark::NONE || log >= LOG_MAX {
            return Some(self.noted_at);
        }
        let interval = match self.news {
            News::Rows => self.busy,
            News::None => self.idle,
        };
        Some(self.noted_at + interval)
    }

    /// What to write now, if it is time.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Watermark> {
        self.due_at().filter(|at| *at <= now)?;
        self.noted_at = now;
        self.unwritten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgoutput_parser::{Lsn, encode};
    use walrelay_core::Tracker;

    fn watermark(lsn: u64) -> Watermark {
        let mut tracker = Tracker::new();
        tracker.observe(encode::boundary(Lsn::new(lsn)));
        tracker.intact(Lsn::new(lsn));
        tracker.watermark()
    }

    #[tokio::test(start_paused = true)]
    async fn much_log_is_written_down_at_once_and_little_in_its_time() {
        let (busy, idle) = (Duration::from_secs(1), Duration::from_secs(5));
        let start = Instant::now();
        let mut record = Record::new(start, busy, idle);
        record.settled(watermark(100));
        record.take_due(start);
        record.written(watermark(100));
        record.settled(watermark(101));
        assert!(record.take_due(start).is_none());
        assert_eq!(record.take_due(start + idle), Some(watermark(101)));
        record.written(watermark(101));
        record.settled(watermark(100 + LOG_MAX));
        assert!(record.take_due(start + idle).is_none());
        record.settled(watermark(101 + LOG_MAX));
        assert_eq!(record.take_due(start + idle), Some(watermark(101 + LOG_MAX)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_writes_down_at_once_what_it_learns_first() {
        let start = Instant::now();
        let mut record = Record::new(start, Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(record.due_at(), None);
        record.settled(watermark(100));
        assert_eq!(record.take_due(start), Some(watermark(100)));
    }
}

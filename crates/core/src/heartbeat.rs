//! The liveness of a loop: whether it still runs, and whether it makes progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The times of a loop's last heartbeat and last progress. The loop writes them without a lock, and
/// health probes read them.
#[derive(Debug)]
pub struct Heartbeat {
    began: Instant,
    /// Milliseconds since `began`.
    beat_at: AtomicU64,
    progress_at: AtomicU64,
}

impl Heartbeat {
    /// The silence after which a probe may restart the process. A loop beats at least every few
    /// seconds, so a minute of silence means a blocked loop, not a slow disk.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// Creates a heartbeat whose first heartbeat and progress are at `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { began: now, beat_at: AtomicU64::new(0), progress_at: AtomicU64::new(0) }
    }

    /// Notes a heartbeat.
    pub fn beat(&self, now: Instant) {
        self.beat_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// Notes that the loop made progress, or has no work left.
    pub fn progress(&self, now: Instant) {
        self.progress_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// The time since the last heartbeat.
    #[must_use]
    pub fn silence(&self, now: Instant) -> Duration {
        self.since(&self.beat_at, now)
    }

    /// The time since the last progress.
    #[must_use]
    pub fn since_progress(&self, now: Instant) -> Duration {
        self.since(&self.progress_at, now)
    }

    fn millis(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.began);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    fn since(&self, at: &AtomicU64, now: Instant) -> Duration {
        Duration::from_millis(self.millis(now).saturating_sub(at.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_ends_the_silence_and_is_no_progress() {
        let start = Instant::now();
        let heartbeat = Heartbeat::new(start);
        let later = start + Duration::from_secs(5);
        assert_eq!(heartbeat.silence(later), Duration::from_secs(5));
        heartbeat.beat(later);
        assert_eq!(heartbeat.silence(later), Duration::ZERO);
        assert_eq!(heartbeat.since_progress(later), Duration::from_secs(5));
        heartbeat.progress(later);
        assert_eq!(
            heartbeat.since_progress(later + Duration::from_millis(7)),
            Duration::from_millis(7)
        );
    }
}

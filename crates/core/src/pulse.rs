//! Whether a loop still turns, and whether it gets anywhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When a loop beat last, and when it made progress; written by the loop without a lock, read by
/// whoever judges it.
#[derive(Debug)]
pub struct Pulse {
    began: Instant,
    /// Milliseconds since `began`.
    beat_at: AtomicU64,
    progress_at: AtomicU64,
}

impl Pulse {
    /// Silence after which a probe may restart the process. A loop beats at least every few seconds,
    /// so a minute is a loop that no longer turns, and not a slow disk.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// Begins with a beat and with progress.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { began: now, beat_at: AtomicU64::new(0), progress_at: AtomicU64::new(0) }
    }

    /// The loop turns.
    pub fn beat(&self, now: Instant) {
        self.beat_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// The loop got further, or has nothing left to do.
    pub fn progress(&self, now: Instant) {
        self.progress_at.store(self.millis(now), Ordering::Relaxed);
    }

    /// How long ago the loop beat.
    #[must_use]
    pub fn silence(&self, now: Instant) -> Duration {
        self.since(&self.beat_at, now)
    }

    /// How long ago it made progress.
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
        let pulse = Pulse::new(start);
        let later = start + Duration::from_secs(5);
        assert_eq!(pulse.silence(later), Duration::from_secs(5));
        pulse.beat(later);
        assert_eq!(pulse.silence(later), Duration::ZERO);
        assert_eq!(pulse.since_progress(later), Duration::from_secs(5));
        pulse.progress(later);
        assert_eq!(
            pulse.since_progress(later + Duration::from_millis(7)),
            Duration::from_millis(7)
        );
    }
}

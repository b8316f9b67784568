//! Telling one sick lane from an outage.
//!
//! A lane may be parked only while *others* succeed: during an outage parking would move the whole
//! stream into a table. Wall time cannot tell the two apart, so lanes are judged by a stopwatch
//! that runs only while successes keep coming. An outage, however long, adds one gap to it.

use std::time::{Duration, Instant};

/// Fair weather so far: time during which something was being stored.
#[derive(Debug)]
pub struct Weather {
    fair: Duration,
    /// A gap between two successes counts up to this.
    gap: Duration,
    last_success: Option<Instant>,
    /// When the newest request that was stored had been sent.
    newest_stored: Option<Instant>,
    /// Failures since the last success; they tell a silence from an outage.
    failures: u32,
}

/// What a success ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Successes were coming anyway.
    Steady,
    /// Failures only, for longer than a gap, and now a success.
    OutageOver,
}

impl Weather {
    /// A stopwatch for lanes that are parked after `park_after` of fair weather.
    #[must_use]
    pub fn new(park_after: Duration) -> Self {
        Self {
            fair: Duration::ZERO,
            gap: park_after / 2,
            last_success: None,
            newest_stored: None,
            failures: 0,
        }
    }

    /// Something that was sent at `sent_at` was stored at `now`.
    pub fn success(&mut self, sent_at: Instant, now: Instant) -> Change {
        self.newest_stored = self.newest_stored.max(Some(sent_at));
        let since = self.last_success.map_or(self.gap, |last| now.saturating_duration_since(last));
        self.fair += since.min(self.gap);
        let change = if self.failures > 0 && since >= self.gap {
            Change::OutageOver
        } else {
            Change::Steady
        };
        self.last_success = Some(now);
        self.failures = 0;
        change
    }

    /// Something was refused.
    pub fn failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// The stopwatch's reading.
    #[must_use]
    pub const fn fair(&self) -> Duration {
        self.fair
    }

    /// Whether a request that went out after `moment` was stored: a lane refused at that moment is
    /// sick by itself, and not for an outage that began with it.
    #[must_use]
    pub fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.newest_stored.is_some_and(|newest| newest > moment)
    }

    /// Whether nothing at all has succeeded for a gap although it was tried.
    #[must_use]
    pub fn is_outage(&self, now: Instant) -> bool {
        self.failures > 0
            && self.last_success.is_none_or(|last| now.saturating_duration_since(last) >= self.gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARK_AFTER: Duration = Duration::from_secs(2);

    #[test]
    fn an_outage_adds_at_most_one_gap_of_fair_weather() {
        let start = Instant::now();
        let mut weather = Weather::new(PARK_AFTER);
        weather.success(start, start);
        let before = weather.fair();
        for _ in 0..100 {
            weather.failure();
        }
        assert!(weather.is_outage(start + Duration::from_secs(10)));
        assert_eq!(weather.success(start, start + Duration::from_secs(3_600)), Change::OutageOver);
        assert_eq!(weather.fair() - before, PARK_AFTER / 2);
    }

    #[test]
    fn steady_successes_run_the_stopwatch_in_real_time() {
        let start = Instant::now();
        let mut weather = Weather::new(PARK_AFTER);
        weather.success(start, start);
        let before = weather.fair();
        for tenth in 1..=50 {
            weather.failure();
            let now = start + Duration::from_millis(100 * tenth);
            assert_eq!(weather.success(now, now), Change::Steady);
        }
        assert_eq!(weather.fair() - before, Duration::from_secs(5));
    }
}

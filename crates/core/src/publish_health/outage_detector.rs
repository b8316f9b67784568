//! Distinguishes one failing lane from an outage.
//!
//! A lane may be parked only while *other* lanes succeed. Otherwise an outage would move the whole
//! stream into a table. Wall time cannot distinguish the two cases. Lanes are therefore judged by
//! healthy time: a stopwatch that runs only while successes keep coming. An outage of any length
//! adds at most one gap to the stopwatch.

use std::time::{Duration, Instant};

use crate::publish_health::success_intervals::{Pause, SuccessIntervals};

/// The stopwatch of healthy time, and the outcomes of recent publishes.
#[derive(Debug)]
pub struct OutageDetector {
    fair: Duration,
    /// The longest time between two successes that counts as healthy.
    gap: Duration,
    last_success: Option<Instant>,
    /// Failures since the last success. They distinguish an outage from an idle stream.
    failures: u32,
    last_failure: Option<Instant>,
    pauses: SuccessIntervals,
    /// The number of outstanding requests.
    out: usize,
    /// The time since which no reply has arrived although a request is outstanding.
    silent_since: Option<Instant>,
}

/// Whether Pub/Sub is storing rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Publishes succeed now and then, or nothing is being published.
    Flowing,
    /// No publish succeeds.
    Stalled,
}

/// The effect of a success on the outage state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There was no outage.
    Steady,
    /// The success ended an outage: for longer than a gap, every publish had failed.
    OutageOver,
}

impl OutageDetector {
    /// Creates a stopwatch for lanes that are parked after `park_after` of healthy time.
    #[must_use]
    pub fn new(park_after: Duration) -> Self {
        Self {
            fair: Duration::ZERO,
            gap: park_after / 2,
            last_success: None,
            failures: 0,
            last_failure: None,
            pauses: SuccessIntervals::new(0, Self::BAD_PAUSES_MAX),
            out: 0,
            silent_since: None,
        }
    }

    /// Notes that a request was sent.
    pub fn sent(&mut self, now: Instant) {
        self.out += 1;
        self.silent_since.get_or_insert(now);
    }

    /// Notes that a request was answered with any reply.
    pub fn answered(&mut self, now: Instant) {
        self.out = self.out.saturating_sub(1);
        self.silent_since = (self.out > 0).then_some(now);
    }

    /// Notes that a request sent at `sent_at` was stored at `now`.
    pub fn success(&mut self, sent_at: Instant, now: Instant) -> Change {
        self.fair = self.fair(now);
        let since = self.since_last_success(now);
        let change = if self.failures > 0 && since >= self.gap {
            Change::OutageOver
        } else {
            Change::Steady
        };
        self.last_success = Some(now);
        self.failures = 0;
        self.pauses.stored(sent_at);
        change
    }

    /// Notes that a publish was refused.
    pub fn failure(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(now);
    }

    /// The number of remembered success intervals with failures. This covers some minutes in which
    /// one key in a hundred fails once a second.
    const BAD_PAUSES_MAX: usize = 1_024;

    /// Notes that the refused key was healthy before. That suggests a failing service, not a
    /// failing key.
    pub fn note_healthy_key_failure(&mut self) {
        self.pauses.note_healthy_key_failure();
    }

    /// The current success interval.
    #[must_use]
    pub const fn pause(&self) -> Pause {
        self.pauses.current()
    }

    /// The number of previously healthy keys that were refused in this interval.
    #[must_use]
    pub fn refused_in(&self, pause: Pause) -> u32 {
        self.pauses.failed_keys_in(pause)
    }

    /// The healthy time up to now. The time since the last success counts up to one gap, as the
    /// next success will count it. Otherwise a row first sent during a silence would seem stuck
    /// since before that silence.
    #[must_use]
    pub fn fair(&self, now: Instant) -> Duration {
        self.fair + self.since_last_success(now).min(self.gap)
    }

    /// The time since the last success, or one gap before the first success.
    fn since_last_success(&self, now: Instant) -> Duration {
        self.last_success.map_or(self.gap, |last| now.saturating_duration_since(last))
    }

    /// Whether a request sent after `moment` was stored. If so, a lane refused at that moment fails
    /// on its own, and not because of an outage that began then.
    #[must_use]
    pub fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.pauses.has_stored_what_was_sent_after(moment)
    }

    /// The delivery is stalled after only refusals for this long.
    const REFUSED: Duration = Duration::from_secs(1);

    /// Refusals older than this are ignored, because nothing is being tried. Twice the longest
    /// back-off.
    const UNTRIED: Duration = Duration::from_secs(120);

    /// The delivery is stalled after no reply at all for this long.
    const SILENT: Duration = Duration::from_secs(5);

    /// Whether Pub/Sub is storing rows. This reacts sooner than [`is_outage`](Self::is_outage), for
    /// callers that cannot wait.
    #[must_use]
    pub fn delivery(&self, now: Instant) -> Delivery {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let is_tried = self.last_failure.is_some_and(|last| since(last) < Self::UNTRIED);
        let is_refused = self.failures > 0
            && is_tried
            && self.last_success.is_none_or(|last| since(last) >= Self::REFUSED);
        let is_silent = self.silent_since.is_some_and(|silent| since(silent) >= Self::SILENT);
        if is_refused || is_silent { Delivery::Stalled } else { Delivery::Flowing }
    }

    /// Whether publishes were tried and none has succeeded for one gap.
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
        let mut weather = OutageDetector::new(PARK_AFTER);
        weather.success(start, start);
        let before = weather.fair(start);
        for _ in 0..100 {
            weather.failure(start);
        }
        assert!(weather.is_outage(start + Duration::from_secs(10)));
        let over = start + Duration::from_secs(3_600);
        assert_eq!(weather.success(start, over), Change::OutageOver);
        assert_eq!(weather.fair(over) - before, PARK_AFTER / 2);
    }

    #[test]
    fn requests_that_nobody_answers_are_a_stall_until_one_is() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut weather = OutageDetector::new(PARK_AFTER);
        assert_eq!(weather.delivery(after(60_000)), Delivery::Flowing, "nothing is out");
        weather.sent(start);
        weather.sent(after(3_000));
        assert_eq!(weather.delivery(after(4_999)), Delivery::Flowing);
        assert_eq!(weather.delivery(after(5_000)), Delivery::Stalled);
        weather.answered(after(6_000));
        assert_eq!(weather.delivery(after(10_999)), Delivery::Flowing);
        assert_eq!(weather.delivery(after(11_000)), Delivery::Stalled);
        weather.answered(after(12_000));
        assert_eq!(weather.delivery(after(60_000)), Delivery::Flowing, "nothing is out any more");
    }

    #[test]
    fn refusals_are_a_stall_when_nothing_was_stored_for_a_second() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut weather = OutageDetector::new(PARK_AFTER);
        weather.success(start, start);
        weather.failure(start);
        assert_eq!(weather.delivery(after(999)), Delivery::Flowing);
        assert_eq!(weather.delivery(after(1_000)), Delivery::Stalled);
        weather.success(after(1_000), after(1_500));
        assert_eq!(weather.delivery(after(9_000)), Delivery::Flowing);
    }

    #[test]
    fn refusals_are_no_stall_any_more_once_nothing_has_been_tried_for_two_minutes() {
        let start = Instant::now();
        let mut weather = OutageDetector::new(PARK_AFTER);
        weather.failure(start);
        let later = start + Duration::from_secs(119);
        assert_eq!(weather.delivery(later), Delivery::Stalled);
        assert_eq!(weather.delivery(later + Duration::from_secs(1)), Delivery::Flowing);
    }

    #[test]
    fn steady_successes_run_the_stopwatch_in_real_time() {
        let start = Instant::now();
        let mut weather = OutageDetector::new(PARK_AFTER);
        weather.success(start, start);
        let before = weather.fair(start);
        for tenth in 1..=50 {
            weather.failure(start);
            let now = start + Duration::from_millis(100 * tenth);
            assert_eq!(weather.success(now, now), Change::Steady);
        }
        assert_eq!(weather.fair(start + Duration::from_secs(5)) - before, Duration::from_secs(5));
    }
}

//! Distinguishes one failing lane from an outage.
//!
//! A lane may be parked only while *other* lanes succeed. Otherwise an outage would move the whole
//! stream into a table. Wall time cannot distinguish the two cases. Lanes are therefore judged by
//! healthy time: a stopwatch that runs only while successes keep coming. An outage of any length
//! adds at most one gap to the stopwatch.

use std::time::{Duration, Instant};

use crate::publish_health::failed_delivery::FailedDelivery;
use crate::publish_health::success_intervals::{Interval, SuccessIntervals};

/// The stopwatch of healthy time, and the outcomes of recent publishes.
#[derive(Debug)]
pub(super) struct OutageDetector {
    healthy_time: Duration,
    /// The longest time between two successes that counts as healthy.
    gap: Duration,
    last_success: Option<Instant>,
    /// Failures since the last success. They distinguish an outage from an idle stream.
    failures: u32,
    last_failure: Option<Instant>,
    intervals: SuccessIntervals,
    outstanding: usize,
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

impl OutageDetector {
    /// Creates a stopwatch for lanes that are parked after `park_after` of healthy time.
    pub(super) fn new(park_after: Duration) -> Self {
        Self {
            healthy_time: Duration::ZERO,
            gap: park_after / 2,
            last_success: None,
            failures: 0,
            last_failure: None,
            intervals: SuccessIntervals::new(0, Self::BAD_INTERVALS_MAX),
            outstanding: 0,
            silent_since: None,
        }
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.outstanding += 1;
        self.silent_since.get_or_insert(now);
    }

    /// Notes that a request was answered with any reply.
    pub(super) fn answered(&mut self, now: Instant) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.silent_since = (self.outstanding > 0).then_some(now);
    }

    /// Notes that a request sent at `sent_at` was stored at `now`. Returns whether the service was
    /// down before, as far as is known.
    pub(super) fn stored(&mut self, sent_at: Instant, now: Instant) -> bool {
        self.healthy_time = self.healthy_time(now);
        let is_outage_over = self.seems_down(now);
        self.last_success = Some(now);
        self.failures = 0;
        self.intervals.stored(sent_at);
        is_outage_over
    }

    pub(super) fn refused(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(now);
    }

    /// The number of remembered success intervals with failures. This covers some minutes in which
    /// one key in a hundred fails once a second.
    const BAD_INTERVALS_MAX: usize = 1_024;

    /// Notes that the refused key was healthy before. That suggests a failing service, not a
    /// failing key.
    pub(super) fn note_healthy_key_failure(&mut self) {
        self.intervals.note_healthy_key_failure();
    }

    pub(super) const fn interval(&self) -> Interval {
        self.intervals.current()
    }

    /// Whether no other previously healthy key failed in the same interval.
    pub(super) fn has_only_own_failure(&self, failed: &FailedDelivery) -> bool {
        let everywhere = failed.everywhere;
        self.intervals.failed_keys_in(everywhere.interval) <= everywhere.own
    }

    /// The healthy time up to now. The time since the last success counts up to one gap, as the
    /// next success will count it. Otherwise a row first sent during a silence would seem stuck
    /// since before that silence.
    pub(super) fn healthy_time(&self, now: Instant) -> Duration {
        self.healthy_time + self.since_last_success(now).min(self.gap)
    }

    /// The time since the last success, or one gap before the first success.
    fn since_last_success(&self, now: Instant) -> Duration {
        self.last_success.map_or(self.gap, |last| now.saturating_duration_since(last))
    }

    /// Whether a request sent after `moment` was stored. If so, a lane refused at that moment fails
    /// on its own, and not because of an outage that began then.
    pub(super) fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.intervals.has_stored_what_was_sent_after(moment)
    }

    /// The delivery is stalled after only refusals for this long.
    const REFUSED: Duration = Duration::from_secs(1);

    /// Refusals older than this are ignored, because nothing is being tried. Twice the longest
    /// back-off.
    const UNTRIED: Duration = Duration::from_secs(120);

    /// The delivery is stalled after no reply at all for this long.
    const SILENT: Duration = Duration::from_secs(5);

    pub(super) fn delivery(&self, now: Instant) -> Delivery {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let is_tried = self.last_failure.is_some_and(|last| since(last) < Self::UNTRIED);
        let is_refused = self.failures > 0
            && is_tried
            && self.last_success.is_none_or(|last| since(last) >= Self::REFUSED);
        let is_silent = self.silent_since.is_some_and(|silent| since(silent) >= Self::SILENT);
        if is_refused || is_silent { Delivery::Stalled } else { Delivery::Flowing }
    }

    /// Whether the service is probably down: nothing is stored, and several keys failed since the
    /// last success that were healthy before. Keys that fail on their own have failed earlier.
    ///
    /// This decides about requests only. What is recorded waits for [`is_outage`](Self::is_outage).
    pub(super) fn seems_down(&self, now: Instant) -> bool {
        let do_several_fail = self.intervals.failed_keys_in(self.interval()) > 1;
        self.is_outage(now) || (do_several_fail && self.delivery(now) == Delivery::Stalled)
    }

    /// Whether publishes were tried and none has succeeded for one gap.
    pub(super) fn is_outage(&self, now: Instant) -> bool {
        self.failures > 0 && self.since_last_success(now) >= self.gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of `--park-after`.
    const GAP: Duration = Duration::from_secs(1);

    fn detector() -> OutageDetector {
        OutageDetector::new(GAP * 2)
    }

    /// Notes a request that was sent and stored at the same moment. Returns whether it ends an
    /// outage.
    fn stored(detector: &mut OutageDetector, now: Instant) -> bool {
        detector.stored(now, now)
    }

    #[test]
    fn an_outage_adds_at_most_one_gap_of_healthy_time() {
        let start = Instant::now();
        let mut detector = detector();
        stored(&mut detector, start);
        let before = detector.healthy_time(start);
        for _ in 0..100 {
            detector.refused(start);
        }
        assert!(detector.is_outage(start + Duration::from_secs(10)));
        let over = start + Duration::from_secs(3_600);
        assert!(detector.stored(start, over));
        assert_eq!(detector.healthy_time(over) - before, GAP);
    }

    #[test]
    fn requests_that_nobody_answers_are_a_stall_until_one_is() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut detector = detector();
        assert_eq!(detector.delivery(after(60_000)), Delivery::Flowing, "nothing is out");
        detector.sent(start);
        detector.sent(after(3_000));
        assert_eq!(detector.delivery(after(4_999)), Delivery::Flowing);
        assert_eq!(detector.delivery(after(5_000)), Delivery::Stalled);
        detector.answered(after(6_000));
        assert_eq!(detector.delivery(after(10_999)), Delivery::Flowing);
        assert_eq!(detector.delivery(after(11_000)), Delivery::Stalled);
        detector.answered(after(12_000));
        assert_eq!(detector.delivery(after(60_000)), Delivery::Flowing, "nothing is out any more");
    }

    #[test]
    fn refusals_are_a_stall_when_nothing_was_stored_for_a_second() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut detector = detector();
        stored(&mut detector, start);
        detector.refused(start);
        assert_eq!(detector.delivery(after(999)), Delivery::Flowing);
        assert_eq!(detector.delivery(after(1_000)), Delivery::Stalled);
        detector.stored(after(1_000), after(1_500));
        assert_eq!(detector.delivery(after(9_000)), Delivery::Flowing);
    }

    #[test]
    fn refusals_are_no_stall_any_more_once_nothing_has_been_tried_for_two_minutes() {
        let start = Instant::now();
        let mut detector = detector();
        detector.refused(start);
        let later = start + Duration::from_secs(119);
        assert_eq!(detector.delivery(later), Delivery::Stalled);
        assert_eq!(detector.delivery(later + Duration::from_secs(1)), Delivery::Flowing);
    }

    #[test]
    fn steady_successes_run_the_stopwatch_in_real_time() {
        let start = Instant::now();
        let mut detector = detector();
        stored(&mut detector, start);
        let before = detector.healthy_time(start);
        for tenth in 1..=50 {
            detector.refused(start);
            assert!(!stored(&mut detector, start + Duration::from_millis(100 * tenth)));
        }
        let end = start + Duration::from_secs(5);
        assert_eq!(detector.healthy_time(end) - before, Duration::from_secs(5));
    }

    #[test]
    fn a_row_sent_in_a_silence_is_stuck_since_then_and_not_since_the_last_success() {
        let start = Instant::now();
        let mut detector = detector();
        let first = detector.healthy_time(start);
        assert!(!stored(&mut detector, start));
        assert_eq!(detector.healthy_time(start), first, "before anything was stored");
        let sent = start + GAP / 2;
        let at = detector.healthy_time(sent);
        stored(&mut detector, sent + GAP / 4);
        assert_eq!(detector.healthy_time(sent + GAP / 4) - at, GAP / 4);
        let later = detector.healthy_time(sent + GAP * 100);
        assert_eq!(later - at, GAP / 4 + GAP, "a silence counts one gap");
    }

    #[test]
    fn a_silence_in_which_nothing_was_tried_is_no_outage() {
        let start = Instant::now();
        let mut detector = detector();
        assert!(!detector.is_outage(start), "nothing was tried yet");
        stored(&mut detector, start);
        assert!(!detector.is_outage(start + GAP * 100));
        assert!(!stored(&mut detector, start + GAP * 100));
        assert_eq!(detector.healthy_time(start + GAP * 100), GAP * 2);
    }

    #[test]
    fn failures_are_an_outage_once_nothing_succeeded_for_a_gap() {
        let start = Instant::now();
        let mut detector = detector();
        stored(&mut detector, start);
        detector.refused(start);
        let almost = start + GAP - Duration::from_millis(1);
        assert!(!detector.is_outage(almost));
        assert!(detector.is_outage(start + GAP));
        assert!(!stored(&mut detector, almost));
        assert!(!detector.is_outage(start + GAP * 100), "a success ends it");
    }

    #[test]
    fn an_outage_is_over_with_a_success_after_a_gap_of_failures() {
        let start = Instant::now();
        let mut detector = detector();
        detector.refused(start);
        assert!(detector.is_outage(start), "nothing has ever succeeded");
        assert!(stored(&mut detector, start));
        detector.refused(start);
        assert!(stored(&mut detector, start + GAP));
        assert!(!stored(&mut detector, start + GAP * 3));
    }

    #[test]
    fn a_lane_fails_by_itself_once_something_sent_later_was_stored() {
        let start = Instant::now();
        let mut detector = detector();
        let has_stored_later = |of: &OutageDetector| of.has_stored_what_was_sent_after(start);
        assert!(!has_stored_later(&detector), "nothing was stored yet");
        detector.stored(start, start + GAP);
        assert!(!has_stored_later(&detector), "sent at that moment, stored later");
        detector.stored(start + GAP, start + GAP);
        detector.stored(start, start + GAP * 2);
        assert!(has_stored_later(&detector), "the newest counts, not the last");
    }
}

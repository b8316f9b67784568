//! Counts, for each interval between two successes, the healthy keys that started to fail.
//!
//! A key with a problem of its own starts to fail alone. If the service is unavailable for a
//! moment, several healthy keys are refused in the same interval.

use std::collections::VecDeque;
use std::time::Instant;

/// The number of the interval between two consecutive stored requests, or before the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval(u64);

/// Success intervals, of which the current one is still open.
#[derive(Debug)]
pub(super) struct SuccessIntervals {
    current: Interval,
    /// The send time of the latest-sent request that was stored.
    newest_stored: Option<Instant>,
    /// The intervals in which healthy keys were refused, each with the number of keys.
    bad: VecDeque<(Interval, u32)>,
    bad_max: usize,
}

impl SuccessIntervals {
    /// Starts with interval number `first`, and remembers at most `bad_max` intervals with
    /// failures.
    pub(super) const fn new(first: u64, bad_max: usize) -> Self {
        Self { current: Interval(first), newest_stored: None, bad: VecDeque::new(), bad_max }
    }

    /// Notes that a request sent at `sent_at` was stored, which ends the current interval.
    pub(super) fn stored(&mut self, sent_at: Instant) {
        self.newest_stored = self.newest_stored.max(Some(sent_at));
        self.current.0 += 1;
    }

    /// Whether a request sent after `moment` was stored.
    pub(super) fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.newest_stored.is_some_and(|newest| newest > moment)
    }

    pub(super) const fn current(&self) -> Interval {
        self.current
    }

    pub(super) fn note_healthy_key_failure(&mut self) {
        match self.bad.back_mut() {
            Some((interval, keys)) if *interval == self.current => *keys = keys.saturating_add(1),
            Some(_) | None => {
                self.bad.push_back((self.current, 1));
                if self.bad.len() > self.bad_max {
                    self.bad.pop_front();
                }
            }
        }
    }

    /// The number of previously healthy keys that were refused in the interval.
    pub(super) fn failed_keys_in(&self, interval: Interval) -> u32 {
        let found = self.bad.binary_search_by_key(&interval, |(bad, _)| *bad);
        found.map_or(0, |index| self.bad[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_keys_that_are_refused_are_counted_by_the_interval_between_two_successes() {
        const BAD_MAX: usize = 100;
        let start = Instant::now();
        let mut intervals = SuccessIntervals::new(7, BAD_MAX);
        let mut seen = Vec::new();
        for refused in [0, 2, 0, 1] {
            (0..refused).for_each(|_| intervals.note_healthy_key_failure());
            seen.push(intervals.current());
            intervals.stored(start);
        }
        let counts: Vec<_> = seen.iter().map(|it| intervals.failed_keys_in(*it)).collect();
        assert_eq!(counts, [0, 2, 0, 1]);
        for _ in 0..BAD_MAX {
            intervals.note_healthy_key_failure();
            intervals.stored(start);
        }
        assert_eq!(intervals.failed_keys_in(seen[1]), 0, "it is forgotten");
        assert_eq!(intervals.bad.len(), BAD_MAX);
    }
}

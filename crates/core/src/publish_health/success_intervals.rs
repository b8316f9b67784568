//! Counts, for each interval between two successes, the healthy keys that started to fail.
//!
//! A key with a problem of its own starts to fail alone. If the service is unavailable for a
//! moment, several healthy keys are refused in the same interval.

use std::collections::VecDeque;
use std::time::Instant;

/// The interval between two consecutive stored requests, or before the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pause(u64);

/// Success intervals, of which the current one is still open.
#[derive(Debug)]
pub(crate) struct SuccessIntervals {
    current: Pause,
    /// The send time of the latest-sent request that was stored.
    newest_stored: Option<Instant>,
    /// The intervals in which healthy keys were refused, each with the number of keys.
    bad: VecDeque<(Pause, u32)>,
    bad_max: usize,
}

impl SuccessIntervals {
    /// Starts with interval number `first`, and remembers at most `bad_max` intervals with
    /// failures.
    pub(crate) const fn new(first: u64, bad_max: usize) -> Self {
        Self { current: Pause(first), newest_stored: None, bad: VecDeque::new(), bad_max }
    }

    /// Notes that a request sent at `sent_at` was stored, which ends the current interval.
    pub(crate) fn stored(&mut self, sent_at: Instant) {
        self.newest_stored = self.newest_stored.max(Some(sent_at));
        self.current.0 += 1;
    }

    /// Whether a request sent after `moment` was stored.
    pub(crate) fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.newest_stored.is_some_and(|newest| newest > moment)
    }

    /// The current interval.
    pub(crate) const fn current(&self) -> Pause {
        self.current
    }

    /// Notes the refusal of a key that was healthy as far as is known.
    pub(crate) fn note_healthy_key_failure(&mut self) {
        match self.bad.back_mut() {
            Some((pause, keys)) if *pause == self.current => *keys = keys.saturating_add(1),
            Some(_) | None => {
                self.bad.push_back((self.current, 1));
                if self.bad.len() > self.bad_max {
                    self.bad.pop_front();
                }
            }
        }
    }

    /// The number of previously healthy keys that were refused in the interval.
    pub(crate) fn failed_keys_in(&self, pause: Pause) -> u32 {
        let found = self.bad.binary_search_by_key(&pause, |(bad, _)| *bad);
        found.map_or(0, |index| self.bad[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_were_well_and_are_refused_are_counted_by_the_pause_between_two_successes() {
        const BAD_MAX: usize = 100;
        let start = Instant::now();
        let mut pauses = SuccessIntervals::new(7, BAD_MAX);
        let mut seen = Vec::new();
        for refused in [0, 2, 0, 1] {
            (0..refused).for_each(|_| pauses.note_healthy_key_failure());
            seen.push(pauses.current());
            pauses.stored(start);
        }
        let counts: Vec<_> = seen.iter().map(|pause| pauses.failed_keys_in(*pause)).collect();
        assert_eq!(counts, [0, 2, 0, 1]);
        for _ in 0..BAD_MAX {
            pauses.note_healthy_key_failure();
            pauses.stored(start);
        }
        assert_eq!(pauses.failed_keys_in(seen[1]), 0, "it is forgotten");
        assert_eq!(pauses.bad.len(), BAD_MAX);
    }
}

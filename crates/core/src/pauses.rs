//! What was stored, and the pauses in between: how many keys fell ill in each.
//!
//! A key that is sick by itself falls ill alone. Where the service is away for a moment, others that were well
//! are refused in the same pause.

use std::collections::VecDeque;
use std::time::Instant;

/// The time between two requests that were stored, one after the other; or before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pause(u64);

/// Pauses, the last of which has not ended.
#[derive(Debug)]
pub(crate) struct Pauses {
    current: Pause,
    /// When the newest request that was stored had been sent.
    newest_stored: Option<Instant>,
    /// Those in which keys that were well were refused, and how many of them.
    bad: VecDeque<(Pause, u32)>,
    bad_max: usize,
}

impl Pauses {
    /// The first has the number `first`; of those in which keys fall ill so many are remembered.
    pub(crate) const fn new(first: u64, bad_max: usize) -> Self {
        Self { current: Pause(first), newest_stored: None, bad: VecDeque::new(), bad_max }
    }

    /// Something that was sent at `sent_at` was stored, which ends the pause.
    pub(crate) fn stored(&mut self, sent_at: Instant) {
        self.newest_stored = self.newest_stored.max(Some(sent_at));
        self.current.0 += 1;
    }

    /// Whether a request that went out after `moment` was stored.
    pub(crate) fn has_stored_what_was_sent_after(&self, moment: Instant) -> bool {
        self.newest_stored.is_some_and(|newest| newest > moment)
    }

    /// The one in which we are.
    pub(crate) const fn current(&self) -> Pause {
        self.current
    }

    /// A key was refused that had been well, as far as is known.
    pub(crate) fn fell_ill(&mut self) {
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

    /// How many keys that had been well were refused in it.
    pub(crate) fn ill_in(&self, pause: Pause) -> u32 {
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
        let mut pauses = Pauses::new(7, BAD_MAX);
        let mut seen = Vec::new();
        for refused in [0, 2, 0, 1] {
            (0..refused).for_each(|_| pauses.fell_ill());
            seen.push(pauses.current());
            pauses.stored(start);
        }
        let counts: Vec<_> = seen.iter().map(|pause| pauses.ill_in(*pause)).collect();
        assert_eq!(counts, [0, 2, 0, 1]);
        for _ in 0..BAD_MAX {
            pauses.fell_ill();
            pauses.stored(start);
        }
        assert_eq!(pauses.ill_in(seen[1]), 0, "it is forgotten");
        assert_eq!(pauses.bad.len(), BAD_MAX);
    }
}

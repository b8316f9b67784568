//! The wait before the next attempt: exponential back-off with jitter.

use std::time::Duration;

use walrelay_core::Random;

/// Waits that double from the first to the longest. Jitter cuts each wait to between a half and the
/// whole, so that operations that failed together do not retry together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
}

impl Backoff {
    /// Creates a back-off without a failure so far.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, tries: 0 }
    }

    /// Counts a failure and returns the wait before the next attempt.
    pub fn failed(&mut self, random: &mut Random) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.tries.min(20));
        self.tries = self.tries.saturating_add(1);
        jittered(doubled.min(self.longest), random)
    }

    /// Resets the back-off after a success.
    pub fn worked(&mut self) {
        self.tries = 0;
    }

    /// Returns the number of failures since the last success.
    #[must_use]
    pub const fn tries(&self) -> u32 {
        self.tries
    }
}

/// Returns a random duration between a half and the whole.
pub(crate) fn jittered(whole: Duration, random: &mut Random) -> Duration {
    let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
    whole.mul_f64(0.5 + 0.5 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_bound_and_begin_anew_after_a_success() {
        let mut random = Random::new(7);
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut backoff = Backoff::new(first, longest);
        for whole in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.failed(&mut random).as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} of {whole}");
        }
        backoff.worked();
        assert!(backoff.failed(&mut random) <= first);
    }
}

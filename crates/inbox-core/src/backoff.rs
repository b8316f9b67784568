//! How long to wait before the next try: doubling, and cut by chance.

use std::time::Duration;

use walrelay_core::Random;

/// Waits that double from the first to the longest. Each is cut to between a half and the whole of
/// it, so that what failed together does not come back together.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
}

impl Backoff {
    /// Nothing has failed yet.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, tries: 0 }
    }

    /// Something failed: how long to wait.
    pub fn failed(&mut self, random: &mut Random) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.tries.min(20));
        self.tries = self.tries.saturating_add(1);
        jittered(doubled.min(self.longest), random)
    }

    /// Something worked.
    pub fn worked(&mut self) {
        self.tries = 0;
    }

    /// How often it has failed since it last worked.
    #[must_use]
    pub const fn tries(&self) -> u32 {
        self.tries
    }
}

/// Between a half and the whole of it.
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

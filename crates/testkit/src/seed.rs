//! Deterministic random numbers: the same seed gives the same run on every machine.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, 2014): a few lines, and good enough to choose faults.
#[derive(Debug, Clone)]
pub struct Seed(u64);

impl Seed {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate stream, so that the draws of one part do not shift those of another.
    pub fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    /// Returns the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Returns a uniform number from `low` to `high`, both included.
    ///
    /// # Panics
    ///
    /// `high` is below `low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "nothing lies between {low} and {high}");
        low + self.draw() % (high - low).saturating_add(1)
    }

    /// As [`between`](Self::between), for counts and indexes.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap_or(high)
    }

    /// Returns a duration between `low` and `high` in whole milliseconds, the resolution of tokio's
    /// paused time.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.between(millis(low), millis(high)))
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.between(0, 999) < per_mille
    }

    /// Returns one of the choices.
    ///
    /// # Panics
    ///
    /// `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.count(0, choices.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_its_forks_do_not_repeat_each_other() {
        let draws = |mut seed: Seed| [seed.draw(), seed.draw(), seed.fork().draw()];
        assert_eq!(draws(Seed::new(7)), draws(Seed::new(7)));
        assert_ne!(draws(Seed::new(7)), draws(Seed::new(8)));
        let mut seed = Seed::new(7);
        assert_ne!(draws(seed.fork()), draws(seed.fork()));
    }

    #[test]
    fn draws_keep_to_their_bounds_and_reach_them() {
        let mut seed = Seed::new(1);
        let drawn: Vec<_> = (0..1_000).map(|_| seed.between(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert!((0..1_000).all(|_| seed.chance(1_000) && !seed.chance(0)));
    }
}

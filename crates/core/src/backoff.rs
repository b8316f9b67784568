//! The delay before the next attempt: exponential, with full jitter.

use std::time::Duration;

/// Delays `base`, `2·base`, `4·base` … up to `cap`, each scaled by a random fraction between a tenth
/// and one. The relay and the consumer use the same delays.
///
/// Lanes, keys and processes often fail at the same moment. Full jitter spreads their retries over
/// the whole delay, so the service that recovers is not flooded. With half of the delay fixed,
/// the retries would meet in the other half. (AWS Architecture Blog, "Exponential Backoff And
/// Jitter".)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay before jitter.
    pub base: Duration,
    /// The longest delay.
    pub cap: Duration,
}

impl Backoff {
    /// The delay after `attempts` failures (from 1). `random` is uniform over all of `u32`.
    ///
    /// The delay is at least a tenth of the full delay, so that an unlucky draw does not hammer the
    /// service.
    #[must_use]
    pub fn delay(&self, attempts: u32, random: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.cap);
        full / 10 + full.mul_f64(0.9 * f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(60) };

    #[test]
    fn a_delay_doubles_until_the_cap() {
        let full = |attempts| BACKOFF.delay(attempts, u32::MAX).as_millis();
        assert_eq!((full(1), full(2), full(5)), (100, 200, 1_600));
        assert_eq!(full(40), 60_000);
        assert_eq!(full(u32::MAX), 60_000);
    }

    #[test]
    fn jitter_spreads_between_a_tenth_and_the_whole() {
        assert_eq!(BACKOFF.delay(1, 0), Duration::from_millis(10));
        let middle = BACKOFF.delay(1, u32::MAX / 2);
        assert!(middle > Duration::from_millis(50) && middle < Duration::from_millis(60));
    }
}

//! The limit on live publishing, `run --rate`: a token bucket, kept as the time of the next send.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// The unused allowance that is kept. A timer that fires late loses no throughput.
const BURST: Duration = Duration::from_millis(100);

/// Decides when rows may be sent, so that no more than `rate` rows per second are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    rate: NonZeroU32,
    /// Nothing may be sent before. `None` before the first row.
    opens_at: Option<Instant>,
}

impl RateLimit {
    /// Creates a limit of `rate` rows per second.
    #[must_use]
    pub const fn new(rate: NonZeroU32) -> Self {
        Self { rate, opens_at: None }
    }

    /// The largest batch under this limit: a tenth of a second's rows. Larger batches would arrive
    /// as bursts with long pauses between them.
    #[must_use]
    pub fn batch_messages(rate: NonZeroU32) -> usize {
        usize::try_from(rate.get() / 10).unwrap_or(usize::MAX).max(1)
    }

    /// Returns the time at which rows may be sent again, or `None` if they may be sent now.
    #[must_use]
    pub fn closed_until(&self, now: Instant) -> Option<Instant> {
        self.opens_at.filter(|at| *at > now)
    }

    /// Notes that rows were sent.
    pub fn sent(&mut self, rows: usize, now: Instant) {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let from = self.opens_at.map_or(now, |at| at.max(earliest));
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let seconds = f64::from(rows) / f64::from(self.rate.get());
        self.opens_at = Some(from + Duration::from_secs_f64(seconds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rows: u32) -> NonZeroU32 {
        NonZeroU32::new(rows).expect("not zero")
    }

    /// Sends whenever it is allowed, with timers that fire `late`. Returns the rows of `seconds`.
    fn rows_sent(per_second: u32, late: Duration, seconds: u64) -> u64 {
        let start = Instant::now();
        let mut limit = RateLimit::new(rate(per_second));
        let (mut now, mut rows) = (start, 0);
        while now < start + Duration::from_secs(seconds) {
            match limit.closed_until(now) {
                Some(at) => now = at + late,
                None => {
                    let batch = RateLimit::batch_messages(rate(per_second));
                    limit.sent(batch, now);
                    rows += batch as u64;
                }
            }
        }
        rows
    }

    #[test]
    fn no_more_rows_are_sent_than_the_rate_allows_and_late_timers_lose_none() {
        for per_second in [1, 7, 10, 500, 20_000] {
            for late in [Duration::ZERO, Duration::from_millis(3)] {
                let most = u64::from(per_second) * 10;
                let batch = RateLimit::batch_messages(rate(per_second)) as u64;
                let sent = rows_sent(per_second, late, 10);
                assert!(sent <= most + 2 * batch, "{sent} of {per_second}/s");
                assert!(sent + batch >= most * 97 / 100, "{sent} of {per_second}/s");
            }
        }
    }

    #[test]
    fn a_quiet_time_earns_no_burst_beyond_a_tenth_of_a_second() {
        let start = Instant::now();
        let mut limit = RateLimit::new(rate(100));
        limit.sent(10, start);
        let later = start + Duration::from_secs(3_600);
        let mut rows = 0;
        while limit.closed_until(later).is_none() {
            limit.sent(1, later);
            rows += 1;
        }
        assert!(rows <= 11, "{rows}");
    }
}

//! The number of Publish requests that may be outstanding at once.
//!
//! The window fills the round trip and no more. Each further request would only wait in a queue of
//! the service and make our batches smaller. The estimate is that of TCP Vegas (Brakmo and
//! Peterson, 1995): requests queued = outstanding × (1 − shortest round trip ÷ this round trip).

use std::time::{Duration, Instant};

/// Bounds of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// The smallest window. With fewer requests, one late reply stalls everything.
    pub min: usize,
    /// The largest window, `--max-outstanding-requests`.
    pub max: usize,
}

/// The adaptive limit on outstanding requests.
#[derive(Debug)]
pub struct ConcurrencyWindow {
    limits: ConcurrencyLimits,
    /// Fractional, so that growth below one request per reply adds up.
    size: f64,
    shortest: Option<Duration>,
    /// The time at which the shortest round trip expires, so that the window learns a longer route.
    shortest_expires: Option<Instant>,
    reduced_at: Option<Instant>,
}

impl ConcurrencyWindow {
    /// Round trips within this distance of the shortest are noise: schedulers cause as much.
    const NOISE: Duration = Duration::from_millis(1);
    /// The lifetime of the shortest round trip.
    const SHORTEST_KEPT: Duration = Duration::from_secs(30);
    /// The pause after a reduction. The replies behind the first one report the same congestion.
    const REDUCTION_PAUSE: Duration = Duration::from_millis(100);

    /// Creates a window of four times the minimum.
    #[must_use]
    pub fn new(limits: ConcurrencyLimits) -> Self {
        let size = (limits.min * 4).min(limits.max).max(1);
        Self {
            limits,
            size: f64::from(u32::try_from(size).unwrap_or(u32::MAX)),
            shortest: None,
            shortest_expires: None,
            reduced_at: None,
        }
    }

    /// The number of requests that may be outstanding at once.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 ≤ size ≤ max")]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Notes that a request was stored after `round_trip`, when `out` requests, including this one,
    /// were outstanding. A window that is not used does not grow.
    pub fn stored(&mut self, round_trip: Duration, out: usize, now: Instant) {
        let expired = self.shortest_expires.is_some_and(|at| now >= at);
        if expired || self.shortest.is_none_or(|shortest| round_trip < shortest) {
            self.shortest = Some(round_trip);
            self.shortest_expires = Some(now + Self::SHORTEST_KEPT);
        }
        let shortest = self.shortest.unwrap_or(round_trip) + Self::NOISE;
        let queued = self.size * (1.0 - shortest.as_secs_f64() / round_trip.as_secs_f64()).max(0.0);
        let tolerated = 4.0 + self.size / 4.0;
        if queued > 2.0 * tolerated {
            self.resize(-0.25);
        } else if queued <= tolerated && 2 * out >= self.size() {
            // Half the window counts as used, because replies that arrive together free several
            // places before the next requests are sent.
            self.resize(1.0);
        }
    }

    /// Notes that Pub/Sub reported overload or did not answer in time.
    pub fn congested(&mut self, now: Instant) {
        if self.reduced_at.is_none_or(|at| now >= at + Self::REDUCTION_PAUSE) {
            self.reduced_at = Some(now);
            self.resize(-self.size * 0.3);
        }
    }

    fn resize(&mut self, by: f64) {
        let bound = |limit: usize| f64::from(u32::try_from(limit.max(1)).unwrap_or(u32::MAX));
        self.size = (self.size + by).clamp(bound(self.limits.min), bound(self.limits.max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConcurrencyLimits = ConcurrencyLimits { min: 16, max: 1_600 };

    fn replies(window: &mut ConcurrencyWindow, count: u32, round_trip: Duration) {
        let start = Instant::now();
        for i in 0..count {
            window.stored(round_trip, window.size(), start + Duration::from_micros(u64::from(i)));
        }
    }

    #[test]
    fn a_long_round_trip_that_holds_opens_the_window_to_its_limit() {
        let mut window = ConcurrencyWindow::new(LIMITS);
        replies(&mut window, 2_000, Duration::from_millis(50));
        assert_eq!(window.size(), 1_600);
    }

    #[test]
    fn a_round_trip_that_grows_closes_the_window() {
        let mut window = ConcurrencyWindow::new(LIMITS);
        replies(&mut window, 1_000, Duration::from_millis(2));
        let opened = window.size();
        replies(&mut window, 20_000, Duration::from_millis(40));
        assert!(window.size() < opened / 4, "{} of {opened}", window.size());
    }

    #[test]
    fn an_idle_window_does_not_grow() {
        let mut window = ConcurrencyWindow::new(LIMITS);
        let before = window.size();
        for _ in 0..1_000 {
            window.stored(Duration::from_millis(1), 3, Instant::now());
        }
        assert_eq!(window.size(), before);
    }

    #[test]
    fn congestion_is_answered_once_for_replies_that_come_together() {
        let mut window = ConcurrencyWindow::new(LIMITS);
        replies(&mut window, 2_000, Duration::from_millis(50));
        let now = Instant::now();
        for _ in 0..100 {
            window.congested(now);
        }
        assert_eq!(window.size(), 1_120);
        for second in 1..60 {
            window.congested(now + Duration::from_secs(second));
        }
        assert_eq!(window.size(), LIMITS.min);
    }
}

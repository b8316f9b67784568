//! The number of rows that Pub/Sub stores per second, for `/status`.

use std::time::{Duration, Instant};

/// The length of one measurement. Long enough to smooth batches, short enough for an operator who
/// watches.
const WINDOW: Duration = Duration::from_secs(5);

/// Counts stored rows in windows of a few seconds.
#[derive(Debug, Default)]
pub(super) struct PublishRate {
    since: Option<Instant>,
    rows: u64,
}

impl PublishRate {
    pub(super) fn stored(&mut self, rows: usize) {
        self.rows = self.rows.saturating_add(rows as u64);
    }

    /// Returns the rate of the window that has just ended, if one has.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 16 digits")]
    pub(super) fn ended(&mut self, now: Instant) -> Option<f64> {
        let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if elapsed < WINDOW {
            return None;
        }
        self.since = Some(now);
        Some(std::mem::take(&mut self.rows) as f64 / elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_measured_in_windows_and_falls_to_zero() {
        let (mut rate, start) = (PublishRate::default(), Instant::now());
        assert_eq!(rate.ended(start), None);
        rate.stored(300);
        rate.stored(200);
        assert_eq!(rate.ended(start + Duration::from_secs(4)), None);
        assert_eq!(rate.ended(start + Duration::from_secs(10)), Some(50.0));
        assert_eq!(rate.ended(start + Duration::from_secs(15)), Some(0.0));
    }
}

//! Postgres timestamps: microseconds since 2000-01-01 00:00 UTC.

use std::time::{Duration, SystemTime};

/// 2000-01-01 00:00 UTC, counted from the Unix epoch.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// A time as Postgres writes it on the wire: microseconds since 2000-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// The time `micros` microseconds after 2000-01-01 00:00 UTC.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 2000-01-01 00:00 UTC.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Converts to the system's clock.
    ///
    /// On Unix, every value can be converted. If the system's clock has a smaller range than
    /// Postgres's, a time outside its range becomes the Unix epoch.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        let distance = Duration::from_micros(self.0.unsigned_abs());
        let epoch = SystemTime::UNIX_EPOCH.checked_add(POSTGRES_EPOCH);
        let moment = match self.0.is_negative() {
            true => epoch.and_then(|epoch| epoch.checked_sub(distance)),
            false => epoch.and_then(|epoch| epoch.checked_add(distance)),
        };
        moment.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Converts to Postgres's clock, rounded towards the Unix epoch. A time beyond its range
    /// becomes the last one within.
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        // Always in range: u64 seconds are below 2^84 microseconds.
        let micros = |distance: Duration| i128::try_from(distance.as_micros()).unwrap_or(i128::MAX);
        let since_unix_epoch = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => micros(after),
            Err(before) => micros(before.duration()).saturating_neg(),
        };
        let since_2000 = since_unix_epoch.saturating_sub(micros(POSTGRES_EPOCH));
        let limit = if since_2000.is_negative() { i64::MIN } else { i64::MAX };
        Self(i64::try_from(since_2000).unwrap_or(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_postgres_epoch_is_the_first_of_january_2000() {
        let epoch = SystemTime::UNIX_EPOCH + POSTGRES_EPOCH;
        assert_eq!(PgTimestamp::from_micros(0).to_system_time(), epoch);
        assert_eq!(PgTimestamp::from_system_time(epoch).as_micros(), 0);
    }

    #[test]
    fn moments_before_and_after_the_epochs_survive_a_round_trip() {
        let thirty_years_before = -946_684_800_000_000;
        for micros in [1, -1, 843_000_000_123_456, thirty_years_before, thirty_years_before - 1] {
            let timestamp = PgTimestamp::from_micros(micros);
            assert_eq!(PgTimestamp::from_system_time(timestamp.to_system_time()), timestamp);
        }
    }

    #[test]
    fn the_ends_of_the_range_saturate_instead_of_panicking() {
        for micros in [i64::MIN, i64::MAX] {
            let timestamp = PgTimestamp::from_micros(micros);
            assert_eq!(PgTimestamp::from_system_time(timestamp.to_system_time()), timestamp);
        }
        let too_late = PgTimestamp::from_micros(i64::MAX).to_system_time() + Duration::from_secs(1);
        assert_eq!(PgTimestamp::from_system_time(too_late).as_micros(), i64::MAX);
        let too_early =
            PgTimestamp::from_micros(i64::MIN).to_system_time() - Duration::from_secs(1);
        assert_eq!(PgTimestamp::from_system_time(too_early).as_micros(), i64::MIN);
    }
}

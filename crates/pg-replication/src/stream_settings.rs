//! The timers and limits of one stream, adapted to the server's timeout.

use std::time::Duration;

use pgoutput_parser::CondenseLimits;

/// Default maximum of a frame that is kept whole: two values of [`VALUE_BYTES_MAX_DEFAULT`] and the
/// rest of their row. A larger frame is condensed.
pub const FRAME_BYTES_MAX_DEFAULT: usize = 40 << 20;

/// Default maximum of a value that is kept of a larger frame. Pub/Sub accepts messages of
/// 10,000,000 bytes. The text form of `bytea` has two characters for each byte, and two before
/// them.
pub const VALUE_BYTES_MAX_DEFAULT: usize = 20_000_002;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSettings {
    /// Maximum bytes of a message that is kept whole. Memory grows to it only while such a message
    /// arrives. Values of a larger row are kept up to this many bytes together.
    pub frame_bytes_max: usize,
    /// Maximum bytes of a value that is kept of a larger row.
    pub value_bytes_max: usize,
    /// Time until a moved watermark is confirmed. A crash repeats the rows of this time.
    pub confirm_interval: Duration,
    /// Maximum time between two status updates, even if nothing moved.
    pub status_interval: Duration,
    /// Maximum time that the server may take to read an update.
    pub write_timeout: Duration,
    /// Maximum time without any bytes from the server. Every status update requests an answer, so
    /// this must be longer than `status_interval`.
    pub silence_limit: Duration,
    /// Maximum time of a clean end.
    pub finish_timeout: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self::for_sender_timeout(Some(Duration::from_secs(60)))
    }
}

impl StreamSettings {
    /// Returns the limits for rows that are not kept whole.
    pub(crate) const fn condense_limits(&self) -> CondenseLimits {
        CondenseLimits {
            value_bytes_max: self.value_bytes_max,
            values_bytes_max: self.frame_bytes_max,
        }
    }

    /// Returns timers that fit the session's `wal_sender_timeout`. `None` means that the server has
    /// no timeout.
    ///
    /// The server expects a message within the timeout and requests one after half of it. With
    /// three updates in that time, two may be late.
    #[must_use]
    pub fn for_sender_timeout(sender_timeout: Option<Duration>) -> Self {
        let third = sender_timeout.map_or(Duration::from_secs(10), |timeout| timeout / 3);
        let status_interval = third.min(Duration::from_secs(10));
        Self {
            frame_bytes_max: FRAME_BYTES_MAX_DEFAULT,
            value_bytes_max: VALUE_BYTES_MAX_DEFAULT,
            confirm_interval: Duration::from_secs(1).min(status_interval),
            status_interval,
            write_timeout: Duration::from_secs(10),
            silence_limit: (status_interval * 3).max(Duration::from_secs(5)),
            finish_timeout: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_updates_fit_three_times_into_the_servers_timeout() {
        let settings = StreamSettings::for_sender_timeout(Some(Duration::from_secs(3)));
        assert_eq!(settings.status_interval, Duration::from_secs(1));
        assert!(settings.silence_limit > settings.status_interval);
        let without = StreamSettings::for_sender_timeout(None);
        assert_eq!(without.status_interval, Duration::from_secs(10));
        assert_eq!(without.confirm_interval, Duration::from_secs(1));
    }
}

//! The timers and bounds of one stream, fitted to how patient the server is.

use std::time::Duration;

use pgoutput_parser::CondenseLimits;

/// The largest frame that is kept whole: two values of [`VALUE_BYTES_MAX_DEFAULT`] and the rest of their
/// row. A larger one is condensed.
pub const FRAME_BYTES_MAX_DEFAULT: usize = 40 << 20;

/// The largest value that is kept of a larger frame: Pub/Sub takes messages of 10,000,000 bytes, and the
/// text form of `bytea` takes two characters for each byte and two before them.
pub const VALUE_BYTES_MAX_DEFAULT: usize = 20_000_002;

/// The timers and bounds of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSettings {
    /// The largest message that is kept whole. Memory grows to it only while such a message arrives. Of
    /// a larger row, values are kept up to this many bytes together.
    pub frame_bytes_max: usize,
    /// The largest value that is kept of a row that is not kept whole.
    pub value_bytes_max: usize,
    /// How soon a watermark that moved is confirmed. A second of repeated rows after a crash.
    pub confirm_interval: Duration,
    /// How long at most between two status updates, whether anything moved or not.
    pub status_interval: Duration,
    /// How long the server may take to take an update in.
    pub write_timeout: Duration,
    /// How long nothing may arrive. Every status update asks for an answer, so this must be longer
    /// than `status_interval`.
    pub silence_limit: Duration,
    /// How long a clean end may take.
    pub finish_timeout: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self::for_sender_timeout(Some(Duration::from_secs(60)))
    }
}

impl StreamSettings {
    /// What is kept of a row that is not kept whole.
    pub(crate) const fn condense_limits(&self) -> CondenseLimits {
        CondenseLimits {
            value_bytes_max: self.value_bytes_max,
            values_bytes_max: self.frame_bytes_max,
        }
    }

    /// Timers that fit the session's `wal_sender_timeout`; `None` when the server has none.
    ///
    /// The server wants a sign of life within the timeout and asks after half of it; three within
    /// it leave room for two that are late.
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

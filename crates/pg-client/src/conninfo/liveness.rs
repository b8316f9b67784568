//! The keywords about peers that vanish: `keepalives…` and `tcp_user_timeout`.

use std::time::Duration;

use socket2::TcpKeepalive;

use super::Keywords;
use super::target::Liveness;

/// Defaults of the probes. They detect a peer that vanished without a FIN after 15 + 3 × 5 s. No timer
/// of ours watches the connection while a query waits for its answer.
const IDLE: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_secs(5);
const COUNT: u32 = 3;

/// The greatest values that Linux takes.
const IDLE_MAX: u32 = 32_767;
const COUNT_MAX: u32 = 127;
const MILLISECONDS_MAX: u32 = i32::MAX.cast_unsigned();

/// Default of `tcp_user_timeout`, equal to the time of the probes. While bytes are unacknowledged, Linux
/// sends no probes and gives up only after a quarter of an hour. A statement sent to an address that the
/// server has left would wait that long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

impl Default for Liveness {
    fn default() -> Self {
        let keepalive =
            TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL).with_retries(COUNT);
        Self { keepalive: Some(keepalive), unacknowledged: Some(UNACKNOWLEDGED_MAX) }
    }
}

impl Keywords<'_> {
    /// Reads how a peer that has vanished is found out. As in libpq, zero is the default.
    pub(super) fn liveness(&mut self) -> Liveness {
        let seconds = |number: u32| Duration::from_secs(number.into());
        let idle = self.number("keepalives_idle", IDLE_MAX).map_or(IDLE, seconds);
        let interval = self.number("keepalives_interval", IDLE_MAX).map_or(INTERVAL, seconds);
        let count = self.number("keepalives_count", COUNT_MAX).unwrap_or(COUNT);
        let is_off = self.take("keepalives").is_some_and(|value| value == "0");
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
        let wait = self
            .number("tcp_user_timeout", MILLISECONDS_MAX)
            .map(|number| Duration::from_millis(number.into()));
        Liveness {
            keepalive: (!is_off).then(|| keepalive.with_retries(count)),
            unacknowledged: wait.or(Some(UNACKNOWLEDGED_MAX)),
        }
    }

    /// Takes a keyword whose value is a whole number. None for zero, which means the default.
    fn number(&mut self, keyword: &str, max: u32) -> Option<u32> {
        match self.take(keyword)?.parse::<u32>() {
            Ok(number) if number <= max => Some(number).filter(|number| *number > 0),
            Ok(_) | Err(_) => {
                self.problem(format!("{keyword} must be a whole number up to {max}"));
                None
            }
        }
    }
}

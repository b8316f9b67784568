//! Pings on the stream, as the official clients send them: an empty request, which the service answers
//! with an empty response.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) struct PingTimes {
    /// The interval of pings, also on a busy stream.
    pub(crate) every: Duration,
    /// The time within which any response must follow a ping.
    pub(crate) answered_within: Duration,
    /// The time that the service has to end the stream after we have closed our half.
    pub(crate) ended_within: Duration,
}

impl PingTimes {
    /// The values of the official clients. A live service ends a stream within milliseconds.
    pub(crate) const DEFAULT: Self = Self {
        every: Duration::from_secs(30),
        answered_within: Duration::from_secs(15),
        ended_within: Duration::from_secs(2),
    };
}

/// The wait before a ping for which the stream had no capacity is sent again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Pings {
    times: PingTimes,
    next: Instant,
    /// The time since which a ping waits for a response while we read.
    unanswered_since: Option<Instant>,
    has_response: bool,
}

impl Pings {
    /// The first ping is due at once, because the service may send even its headers only with its
    /// first response.
    pub(crate) const fn new(times: PingTimes, now: Instant) -> Self {
        Self { times, next: now, unanswered_since: None, has_response: false }
    }

    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.next = now + self.times.every;
        self.unanswered_since.get_or_insert(now);
    }

    /// Notes that the stream has no capacity for a ping, because the service reads nothing. Its
    /// silence counts all the same.
    pub(crate) fn delayed(&mut self, now: Instant) {
        self.next = self.next.max(now + RETRY);
        self.unanswered_since.get_or_insert(now);
    }

    /// Notes a response of any kind.
    pub(crate) fn answered(&mut self) {
        self.unanswered_since = None;
        self.has_response = true;
    }

    pub(crate) const fn has_response(&self) -> bool {
        self.has_response
    }

    /// Notes that we do not read. An answer may wait in our buffers, so the clock starts again.
    pub(crate) fn not_reading(&mut self, now: Instant) {
        if let Some(since) = &mut self.unanswered_since {
            *since = now;
        }
    }

    /// Returns the time at which the silence is too long.
    pub(crate) fn silent_at(&self) -> Option<Instant> {
        self.unanswered_since.map(|since| since + self.times.answered_within)
    }

    /// Returns the time until which the service has to end the stream.
    pub(crate) fn end_at(&self, now: Instant) -> Instant {
        now + self.times.ended_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silence_after_a_ping_counts_only_while_we_read() {
        let (start, times) = (Instant::now(), PingTimes::DEFAULT);
        let second = |second: u64| start + Duration::from_secs(second);
        let mut pings = Pings::new(times, start);
        assert_eq!((pings.next(), pings.silent_at()), (start, None));
        pings.sent(start);
        assert_eq!((pings.next(), pings.silent_at()), (second(30), Some(second(15))));
        pings.not_reading(second(10));
        assert_eq!(pings.silent_at(), Some(second(25)));
        pings.answered();
        pings.not_reading(second(20));
        assert_eq!(pings.silent_at(), None, "no ping waits");
        pings.sent(second(30));
        pings.sent(second(60));
        assert_eq!(pings.silent_at(), Some(second(45)), "a second ping is no answer");
    }

    #[test]
    fn a_stream_without_capacity_for_a_ping_is_silent_too() {
        let start = Instant::now();
        let mut pings = Pings::new(PingTimes::DEFAULT, start);
        pings.delayed(start);
        assert_eq!(pings.next(), start + RETRY);
        assert_eq!(pings.silent_at(), Some(start + Duration::from_secs(15)));
    }
}

//! Detects an outage for readiness: rows are pending, but Pub/Sub stores nothing.

use std::time::{Duration, Instant};

use walrelay_core::{CallCode, FailureCode};

/// Rows that are pending this long while nothing is stored are an outage.
const PATIENCE: Duration = Duration::from_secs(10);

/// An outage ends when no row was pending for this long. It does not end at once, because a new
/// session has no rows in memory yet.
const IDLE: Duration = Duration::from_secs(2);

/// The same limit while every attempt fails. If all rows are spilled, no row is pending in memory
/// between two attempts. The outage then ends only after a time longer than the longest back-off.
const IDLE_WHILE_DOWN: Duration = Duration::from_mins(2);

/// The code of a call that timed out in the relay or in the service.
const NO_ANSWER: FailureCode = FailureCode::Call(CallCode::DeadlineExceeded);

/// Most characters of an error's text that a reason has.
const MESSAGE_CHARACTERS_MAX: usize = 200;

/// Whether Pub/Sub stores messages at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// Pub/Sub stores messages, as far as the relay knows.
    #[default]
    Up,
    /// Rows are pending, and nothing is stored.
    Down,
}

/// Detects outages from pending rows, stored messages and failed attempts.
#[derive(Debug, Default)]
pub struct PublishAvailability {
    rows: usize,
    /// The last time at which a message was stored or recorded, or no row was pending.
    moved_at: Option<Instant>,
    idle_since: Option<Instant>,
    /// The first failed attempt since a message was stored, or since no row was pending.
    failing_since: Option<Instant>,
    /// The last failure, and the text about it.
    last_answer: Option<(FailureCode, String)>,
    /// Whether an attempt failed since the last check. A refused row was pending even if no check
    /// saw it: a spilled row is in memory only during its attempt.
    was_refused: bool,
    service: Service,
}

impl PublishAvailability {
    /// Starts with the state in which the previous session left the service.
    #[must_use]
    pub fn after(service: Service) -> Self {
        Self { service, ..Self::default() }
    }

    /// Records that a message was stored.
    pub fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
        self.service = Service::Up;
        self.failing_since = None;
        self.last_answer = None;
        self.was_refused = false;
    }

    /// Records a failed attempt that will be retried, with the text of its error.
    pub fn failed(&mut self, code: FailureCode, message: &str, now: Instant) {
        self.failing_since.get_or_insert(now);
        self.last_answer = Some((code, message.chars().take(MESSAGE_CHARACTERS_MAX).collect()));
        self.was_refused = true;
    }

    /// Records the number of rows in flight, and of Publish calls without an answer. Without a call
    /// and without a failed attempt, the rows wait for dispatch state and not for Pub/Sub.
    pub fn look(&mut self, rows: usize, calls: usize, now: Instant) {
        let is_asked = calls > 0 || self.failing_since.is_some();
        let rows = if is_asked { rows } else { 0 };
        let waiting = rows.max(usize::from(std::mem::take(&mut self.was_refused)));
        if waiting < self.rows || waiting == 0 || self.moved_at.is_none() {
            self.moved_at = Some(now);
        }
        self.rows = waiting;
        match waiting {
            0 => drop(self.idle_since.get_or_insert(now)),
            _ => self.idle_since = None,
        }
    }

    /// Returns the outage for operators. `tries` is `Down` while every attempt fails for the
    /// pending rows in memory or in dispatch state.
    pub fn outage(&mut self, now: Instant, tries: Service) -> Option<String> {
        let idle = match tries {
            Service::Up => IDLE,
            Service::Down => IDLE_WHILE_DOWN,
        };
        if self.idle_since.is_some_and(|since| now.duration_since(since) >= idle) {
            self.service = Service::Up;
            self.failing_since = None;
        }
        // Pending rows may be recorded again and again, which is no success. The time since the
        // first failure then decides.
        let failing = self.failing_since.map_or(Duration::ZERO, |at| now.duration_since(at));
        let waited = self.moved_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        if self.rows > 0 && (waited.max(failing) >= PATIENCE || tries == Service::Down) {
            self.service = Service::Down;
        }
        let answer = self.last_answer.as_ref().map(|(code, message)| match *code == NO_ANSWER {
            true => format!(": calls get no answer ({code})"),
            false => format!(": {code} ({message})"),
        });
        match self.service {
            Service::Up => None,
            Service::Down => {
                let answer = answer.unwrap_or_else(|| " although rows wait".to_owned());
                Some(format!("Pub/Sub stores nothing{answer}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_wait_while_nothing_is_stored_are_an_outage_until_one_is_stored() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = PublishAvailability::default();
        supply.look(5, 1, start);
        assert_eq!(supply.outage(after(9), Service::Up), None);
        supply.failed(CallCode::Unavailable.into(), "Connection refused", start);
        let text = supply.outage(after(10), Service::Up).unwrap();
        assert!(text.ends_with("stores nothing: UNAVAILABLE (Connection refused)"), "{text}");
        supply.failed(CallCode::DeadlineExceeded.into(), "", after(10));
        let unanswered = supply.outage(after(10), Service::Up).unwrap();
        assert!(
            unanswered.ends_with("nothing: calls get no answer (DEADLINE_EXCEEDED)"),
            "{unanswered}"
        );
        supply.moved(after(11));
        assert_eq!(supply.outage(after(11), Service::Up), None);
    }

    #[test]
    fn rows_that_wait_for_dispatch_state_alone_are_no_outage_of_pubsub() {
        let start = Instant::now();
        let mut supply = PublishAvailability::default();
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            supply.look(20_000, 0, now);
            assert_eq!(supply.outage(now, Service::Up), None, "{second}");
        }
        supply.failed(
            CallCode::Unavailable.into(),
            "Connection refused",
            start + Duration::from_secs(60),
        );
        let now = start + Duration::from_secs(70);
        supply.look(20_000, 0, now);
        assert!(supply.outage(now, Service::Up).is_some(), "between two tries that fail");
    }

    #[test]
    fn a_session_that_holds_nothing_yet_does_not_end_an_outage() {
        let start = Instant::now();
        let mut supply = PublishAvailability::default();
        supply.look(1, 1, start);
        assert!(supply.outage(start, Service::Down).is_some());
        supply.look(0, 1, start);
        assert!(supply.outage(start, Service::Up).is_some());
        supply.look(0, 1, start + IDLE);
        assert_eq!(supply.outage(start + IDLE, Service::Up), None);
    }

    #[test]
    fn an_outage_goes_on_between_two_tries_though_everything_is_spilled() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = PublishAvailability::default();
        // Every ten seconds a row is attempted for a moment, and fails.
        for second in 0..100 {
            supply.look(usize::from(second % 10 == 0), 1, after(second));
            assert!(supply.outage(after(second), Service::Down).is_some(), "{second}");
        }
        supply.look(0, 1, after(209));
        assert!(supply.outage(after(209), Service::Down).is_some());
        supply.look(0, 1, after(211));
        assert_eq!(supply.outage(after(211), Service::Down), None, "nothing is tried any more");
    }

    #[test]
    fn a_row_that_is_refused_between_two_looks_did_wait() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = PublishAvailability::default();
        supply.look(0, 1, start);
        supply.failed(CallCode::Unavailable.into(), "Connection refused", start);
        supply.look(0, 1, after(2));
        assert!(supply.outage(after(2), Service::Down).is_some());
        supply.failed(CallCode::Unavailable.into(), "Connection refused", after(2));
        supply.moved(after(3));
        supply.look(0, 1, after(4));
        assert_eq!(supply.outage(after(4), Service::Up), None);
    }
    #[test]
    fn tries_that_fail_for_ten_seconds_are_an_outage_though_rows_are_recorded_all_the_while() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = PublishAvailability::default();
        // Each second rows are refused and recorded, so they are no longer pending in memory.
        for second in 0..10 {
            supply.failed(CallCode::Unavailable.into(), "Connection refused", after(second));
            supply.look(usize::from(second % 2 == 0), 1, after(second));
            assert_eq!(supply.outage(after(second), Service::Up), None, "{second}");
        }
        supply.failed(CallCode::Unavailable.into(), "Connection refused", after(10));
        supply.look(0, 1, after(10));
        assert!(supply.outage(after(10), Service::Up).is_some());
        supply.moved(after(11));
        supply.failed(CallCode::Unavailable.into(), "Connection refused", after(12));
        supply.look(1, 1, after(20));
        assert_eq!(supply.outage(after(20), Service::Up), None, "the ten seconds begin anew");
    }
}

//! Whether anything is being stored although rows wait: what readiness means by an outage.

use std::time::{Duration, Instant};

/// Rows that wait this long while nothing at all is stored are an outage.
const PATIENCE: Duration = Duration::from_secs(10);

/// An outage ends when nothing has waited for this long. Not at once: a session that has
/// just begun holds no rows yet.
const IDLE: Duration = Duration::from_secs(2);

/// The same while every try fails. Where everything is spilled nothing waits between two tries: that is no
/// end of it, unless none is made for longer than the longest back-off.
const IDLE_WHILE_DOWN: Duration = Duration::from_mins(2);

/// The code of a call that was given up, by us or by the service.
const NO_ANSWER: &str = "DEADLINE_EXCEEDED";

/// Whether Pub/Sub stores anything at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// It does, as far as is known.
    #[default]
    Up,
    /// Rows wait, and nothing is stored.
    Down,
}

/// What is known about rows that wait and rows that are stored.
#[derive(Debug, Default)]
pub struct Supply {
    rows: usize,
    /// When something was last stored or recorded, or nothing waited.
    moved_at: Option<Instant>,
    idle_since: Option<Instant>,
    /// The first try that failed since something was stored, or since nothing waited.
    failing_since: Option<Instant>,
    last_code: Option<&'static str>,
    /// Since the last look. What was refused did wait, although it may not have been seen: a spilled row
    /// that is tried is here for a moment only.
    was_refused: bool,
    service: Service,
}

impl Supply {
    /// Nothing is known yet but how the previous session left the service.
    #[must_use]
    pub fn after(service: Service) -> Self {
        Self { service, ..Self::default() }
    }

    /// Something was stored.
    pub fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
        self.service = Service::Up;
        self.failing_since = None;
        self.last_code = None;
        self.was_refused = false;
    }

    /// A publish failed that will be tried again.
    pub fn failed(&mut self, code: &'static str, now: Instant) {
        self.failing_since.get_or_insert(now);
        self.last_code = Some(code);
        self.was_refused = true;
    }

    /// Learns how many rows are in flight.
    pub fn look(&mut self, rows: usize, now: Instant) {
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

    /// What operators are told about an outage; `tries` is `Down` while every try fails of what waits, in
    /// memory or in dispatch state.
    pub fn outage(&mut self, now: Instant, tries: Service) -> Option<String> {
        let idle = match tries {
            Service::Up => IDLE,
            Service::Down => IDLE_WHILE_DOWN,
        };
        if self.idle_since.is_some_and(|since| now.duration_since(since) >= idle) {
            self.service = Service::Up;
            self.failing_since = None;
        }
        // What waits may be recorded again and again, which is no success: then the failures tell.
        let failing = self.failing_since.map_or(Duration::ZERO, |at| now.duration_since(at));
        let waited = self.moved_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        if self.rows > 0 && (waited.max(failing) >= PATIENCE || tries == Service::Down) {
            self.service = Service::Down;
        }
        let code = self.last_code.map(|code| match code {
            NO_ANSWER => format!(", and calls get no answer ({code})"),
            _ => format!(", the last answer was {code}"),
        });
        match self.service {
            Service::Up => None,
            Service::Down => {
                let code = code.unwrap_or_default();
                Some(format!("nothing is being stored by Pub/Sub although rows wait{code}"))
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
        let mut supply = Supply::default();
        supply.look(5, start);
        assert_eq!(supply.outage(after(9), Service::Up), None);
        supply.failed("UNAVAILABLE", start);
        let text = supply.outage(after(10), Service::Up).unwrap();
        assert!(text.ends_with("the last answer was UNAVAILABLE"), "{text}");
        supply.failed("DEADLINE_EXCEEDED", after(10));
        let unanswered = supply.outage(after(10), Service::Up).unwrap();
        assert!(
            unanswered.ends_with("and calls get no answer (DEADLINE_EXCEEDED)"),
            "{unanswered}"
        );
        supply.moved(after(11));
        assert_eq!(supply.outage(after(11), Service::Up), None);
    }

    #[test]
    fn a_session_that_holds_nothing_yet_does_not_end_an_outage() {
        let start = Instant::now();
        let mut supply = Supply::default();
        supply.look(1, start);
        assert!(supply.outage(start, Service::Down).is_some());
        supply.look(0, start);
        assert!(supply.outage(start, Service::Up).is_some());
        supply.look(0, start + IDLE);
        assert_eq!(supply.outage(start + IDLE, Service::Up), None);
    }

    #[test]
    fn an_outage_goes_on_between_two_tries_though_everything_is_spilled() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = Supply::default();
        // Every ten seconds a row is tried for a moment, and fails.
        for second in 0..100 {
            supply.look(usize::from(second % 10 == 0), after(second));
            assert!(supply.outage(after(second), Service::Down).is_some(), "{second}");
        }
        supply.look(0, after(209));
        assert!(supply.outage(after(209), Service::Down).is_some());
        supply.look(0, after(211));
        assert_eq!(supply.outage(after(211), Service::Down), None, "nothing is tried any more");
    }

    #[test]
    fn a_row_that_is_refused_between_two_looks_did_wait() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = Supply::default();
        supply.look(0, start);
        supply.failed("UNAVAILABLE", start);
        supply.look(0, after(2));
        assert!(supply.outage(after(2), Service::Down).is_some());
        supply.failed("UNAVAILABLE", after(2));
        supply.moved(after(3));
        supply.look(0, after(4));
        assert_eq!(supply.outage(after(4), Service::Up), None);
    }
    #[test]
    fn tries_that_fail_for_ten_seconds_are_an_outage_though_rows_are_recorded_all_the_while() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut supply = Supply::default();
        // Each second rows are refused, recorded, and so wait no longer in memory.
        for second in 0..10 {
            supply.failed("UNAVAILABLE", after(second));
            supply.look(usize::from(second % 2 == 0), after(second));
            assert_eq!(supply.outage(after(second), Service::Up), None, "{second}");
        }
        supply.failed("UNAVAILABLE", after(10));
        supply.look(0, after(10));
        assert!(supply.outage(after(10), Service::Up).is_some());
        supply.moved(after(11));
        supply.failed("UNAVAILABLE", after(12));
        supply.look(1, after(20));
        assert_eq!(supply.outage(after(20), Service::Up), None, "the ten seconds begin anew");
    }
}

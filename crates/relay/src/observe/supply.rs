//! Whether anything is being stored although rows wait: what readiness means by an outage.

use std::time::{Duration, Instant};

/// Rows that wait this long while nothing at all is stored are an outage.
const PATIENCE: Duration = Duration::from_secs(10);

/// So long must nothing have waited before that counts as the end of an outage: a session that has
/// just begun holds no rows yet.
const IDLE: Duration = Duration::from_secs(2);

/// What is known of it.
#[derive(Debug, Default)]
pub struct Supply {
    rows: usize,
    /// When something was last stored or recorded, or nothing waited.
    moved_at: Option<Instant>,
    idle_since: Option<Instant>,
    last_code: Option<&'static str>,
    is_outage: bool,
}

impl Supply {
    /// As a session before left it.
    #[must_use]
    #[expect(clippy::fn_params_excessive_bools, reason = "the level that was told last")]
    pub fn in_outage(is_outage: bool) -> Self {
        Self { is_outage, ..Self::default() }
    }

    /// Something was stored.
    pub fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
        self.is_outage = false;
        self.last_code = None;
    }

    /// A publish was refused.
    pub fn failed(&mut self, code: &'static str) {
        self.last_code = Some(code);
    }

    /// So many rows are in flight.
    pub fn look(&mut self, rows: usize, now: Instant) {
        if rows < self.rows || rows == 0 || self.moved_at.is_none() {
            self.moved_at = Some(now);
        }
        self.rows = rows;
        match rows {
            0 => drop(self.idle_since.get_or_insert(now)),
            _ => self.idle_since = None,
        }
        if self.idle_since.is_some_and(|since| now.duration_since(since) >= IDLE) {
            self.is_outage = false;
        }
    }

    /// What to tell of an outage; `is_refused` when every try fails.
    #[expect(clippy::fn_params_excessive_bools, reason = "what the lanes know, as they say it")]
    pub fn outage(&mut self, now: Instant, is_refused: bool) -> Option<String> {
        let waited = self.moved_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.is_outage |= self.rows > 0 && (waited >= PATIENCE || is_refused);
        let code = self.last_code.map(|code| format!(", the last answer was {code}"));
        self.is_outage.then(|| {
            let code = code.unwrap_or_default();
            format!("nothing is being stored by Pub/Sub although rows wait{code}")
        })
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
        assert_eq!(supply.outage(after(9), false), None);
        supply.failed("UNAVAILABLE");
        let text = supply.outage(after(10), false).unwrap();
        assert!(text.ends_with("the last answer was UNAVAILABLE"), "{text}");
        supply.moved(after(11));
        assert_eq!(supply.outage(after(11), false), None);
    }

    #[test]
    fn a_session_that_holds_nothing_yet_does_not_end_an_outage() {
        let start = Instant::now();
        let mut supply = Supply::default();
        supply.look(1, start);
        assert!(supply.outage(start, true).is_some());
        supply.look(0, start);
        assert!(supply.outage(start, false).is_some());
        supply.look(0, start + IDLE);
        assert_eq!(supply.outage(start + IDLE, false), None);
    }
}

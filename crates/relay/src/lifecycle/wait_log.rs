//! Limits how often a wait is logged and recorded: when it begins, when its cause changes, and once a
//! minute.

use std::time::Duration;

use tokio::time::Instant;

use walrelay_errors::Code;

/// Short enough for an operator who opens the log, and long enough for a wait of several days.
const INTERVAL: Duration = Duration::from_secs(60);

/// The wait that was logged last.
#[derive(Debug, Default)]
pub struct WaitLog {
    logged: Option<(Code, Instant)>,
    /// Whether the wait that was logged last is also on record.
    pub(super) is_recorded: bool,
}

impl WaitLog {
    /// Returns whether a wait with this cause should be logged now, and marks it as logged.
    pub fn is_due(&mut self, cause: Code, now: Instant) -> bool {
        let is_logged =
            self.logged.is_some_and(|(logged, at)| logged == cause && now < at + INTERVAL);
        if !is_logged {
            *self = Self { logged: Some((cause, now)), is_recorded: false };
        }
        !is_logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_logged_once_a_minute_and_when_its_cause_changes() {
        let (mut log, start) = (WaitLog::default(), Instant::now());
        for (seconds, cause, is_due) in [
            (0, Code::SlotReleased, true),
            (10, Code::SlotReleased, false),
            (20, Code::SlotLost, true),
            (79, Code::SlotLost, false),
            (80, Code::SlotLost, true),
            (90, Code::SlotLost, false),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(log.is_due(cause, now), is_due, "{seconds}");
        }
    }

    #[test]
    fn a_wait_is_recorded_again_only_when_it_is_logged_again() {
        let (mut log, start) = (WaitLog::default(), Instant::now());
        assert!(log.is_due(Code::SlotLost, start));
        assert!(!log.is_recorded, "a new wait is not on record yet");
        log.is_recorded = true;
        assert!(!log.is_due(Code::SlotLost, start));
        assert!(log.is_recorded);
        assert!(log.is_due(Code::SlotReleased, start));
        assert!(!log.is_recorded, "the record shows another cause");
    }
}

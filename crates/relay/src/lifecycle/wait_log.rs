//! Limits how often a wait is logged: when it begins, when its cause changes, and once a minute.

use std::time::Duration;

use tokio::time::Instant;

use walrelay_errors::Code;

/// Short enough for an operator who opens the log, and long enough for a wait of several days.
const INTERVAL: Duration = Duration::from_secs(60);

/// The wait that was logged last.
#[derive(Debug, Default)]
pub(super) struct WaitLog(Option<(Code, Instant)>);

impl WaitLog {
    /// Returns whether a wait with this cause should be logged now, and marks it as logged.
    pub(super) fn is_due(&mut self, cause: Code, now: Instant) -> bool {
        let is_logged = self.0.is_some_and(|(logged, at)| logged == cause && now < at + INTERVAL);
        if !is_logged {
            self.0 = Some((cause, now));
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
            (0, Code::UpgradePrepared, true),
            (10, Code::UpgradePrepared, false),
            (20, Code::SlotLost, true),
            (79, Code::SlotLost, false),
            (80, Code::SlotLost, true),
            (90, Code::SlotLost, false),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(log.is_due(cause, now), is_due, "{seconds}");
        }
    }
}

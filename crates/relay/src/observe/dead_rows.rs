//! Dead rows in the log: the first of a topic and code with all that is known, the rest as a number.
//!
//! Twenty thousand rows that die of one cause are one event for whoever acts on it. Which rows they are
//! is asked of dispatch state, which has every one.

use std::time::{Duration, Instant};

use walrelay_core::Topic;

/// How long a cause stays quiet after it was told.
const QUIET: Duration = Duration::from_mins(1);

/// Causes told apart; what comes beyond them shares the last one's line.
const CAUSES_MAX: usize = 64;

/// What has died of which cause since it was last told.
#[derive(Debug, Default)]
pub(super) struct DeadRows {
    causes: Vec<Cause>,
}

#[derive(Debug)]
struct Cause {
    topic: Topic,
    code: &'static str,
    untold: u64,
    told_at: Instant,
}

/// Rows of one cause of which nothing was said yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Untold {
    /// Full name of their topic.
    pub(super) topic: Topic,
    /// Why they died.
    pub(super) code: &'static str,
    /// How many.
    pub(super) rows: u64,
}

impl DeadRows {
    /// A row died. Whether it is the first of its cause, so that a line of its own is due.
    pub(super) fn died(&mut self, topic: &Topic, code: &'static str, now: Instant) -> bool {
        let known =
            self.causes.iter_mut().find(|cause| cause.topic == *topic && cause.code == code);
        if let Some(cause) = known {
            cause.untold += 1;
            return false;
        }
        let is_full = self.causes.len() == CAUSES_MAX;
        if let Some(last) = self.causes.last_mut().filter(|_| is_full) {
            last.untold += 1;
            return false;
        }
        self.causes.push(Cause { topic: Topic::clone(topic), code, untold: 0, told_at: now });
        true
    }

    /// What is to be told now. A cause of which nothing more died is forgotten: its next row gets a line
    /// of its own again.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Untold> {
        let mut told = Vec::new();
        self.causes.retain_mut(|cause| {
            if now.saturating_duration_since(cause.told_at) < QUIET {
                return true;
            }
            cause.told_at = now;
            let rows = std::mem::take(&mut cause.untold);
            if rows > 0 {
                told.push(Untold { topic: Topic::clone(&cause.topic), code: cause.code, rows });
            }
            rows > 0
        });
        told
    }

    /// Everything that is left, because nobody will ask again.
    fn rest(&mut self) -> Vec<Untold> {
        let untold =
            |cause: Cause| Untold { topic: cause.topic, code: cause.code, rows: cause.untold };
        self.causes.drain(..).map(untold).filter(|untold| untold.rows > 0).collect()
    }
}

impl Untold {
    /// One line.
    pub(super) fn log(&self) {
        tracing::error!(
            topic = &*self.topic,
            code = self.code,
            rows = self.rows,
            "more rows are dead of the same cause: `walrelay dispatch list` has them"
        );
    }
}

impl Drop for DeadRows {
    fn drop(&mut self) {
        self.rest().iter().for_each(Untold::log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_thousand_rows_of_one_cause_are_a_line_and_a_number() {
        let mut dead = DeadRows::default();
        let (topic, other): (Topic, Topic) =
            ("projects/p/topics/a".into(), "projects/p/topics/b".into());
        let began = Instant::now();
        let lines = (0..20_000).filter(|_| dead.died(&topic, "INVALID_ARGUMENT", began)).count();
        assert_eq!(lines, 1);
        assert!(dead.died(&topic, "LOCAL_LIMIT", began), "another cause has a line of its own");
        assert!(dead.died(&other, "INVALID_ARGUMENT", began), "another topic too");
        assert_eq!(dead.due(began), []);

        let later = began + QUIET;
        let untold = Untold { topic: Topic::clone(&topic), code: "INVALID_ARGUMENT", rows: 19_999 };
        assert_eq!(dead.due(later), [untold]);
        assert!(!dead.died(&topic, "INVALID_ARGUMENT", later), "it still goes on");
        assert!(dead.died(&other, "INVALID_ARGUMENT", later), "that one had ended");
    }

    #[test]
    fn causes_beyond_the_bound_share_a_line_and_none_is_lost() {
        let mut dead = DeadRows::default();
        let now = Instant::now();
        for number in 0..CAUSES_MAX + 10 {
            let topic: Topic = format!("projects/p/topics/t{number}").into();
            dead.died(&topic, "UNROUTABLE", now);
        }
        assert_eq!(dead.causes.len(), CAUSES_MAX);
        let rest = dead.rest();
        assert_eq!(rest.iter().map(|untold| untold.rows).sum::<u64>(), 10);
    }
}

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

/// A row that died is recorded within this, as a rule: what is counted sooner may leave it out.
const RECORDED: Duration = Duration::from_secs(10);

/// What has died of which cause since it was last told.
#[derive(Debug, Default)]
pub(super) struct DeadRows {
    causes: Vec<Cause>,
    counted: Option<Counted>,
}

/// How many rows are dead, and when that was.
#[derive(Debug, Clone, Copy)]
struct Counted {
    rows: u64,
    at: Instant,
}

#[derive(Debug)]
struct Cause {
    topic: Topic,
    code: &'static str,
    untold: u64,
    told_at: Instant,
    died_at: Instant,
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
    /// How many are dead by now, of all causes; none where nobody has counted since.
    pub(super) dead: Option<u64>,
}

impl DeadRows {
    /// A row died. Whether it is the first of its cause, so that a line of its own is due.
    pub(super) fn died(&mut self, topic: &Topic, code: &'static str, now: Instant) -> bool {
        let known =
            self.causes.iter_mut().find(|cause| cause.topic == *topic && cause.code == code);
        if let Some(cause) = known {
            cause.another(now);
            return false;
        }
        let is_full = self.causes.len() == CAUSES_MAX;
        if let Some(last) = self.causes.last_mut().filter(|_| is_full) {
            last.another(now);
            return false;
        }
        let topic = Topic::clone(topic);
        self.causes.push(Cause { topic, code, untold: 0, told_at: now, died_at: now });
        true
    }

    /// So many rows are dead: an operator may have settled some of those that died.
    pub(super) fn counted(&mut self, rows: u64, now: Instant) {
        self.counted = Some(Counted { rows, at: now });
    }

    /// What is to be told now. A cause of which nothing more died is forgotten: its next row gets a line
    /// of its own again.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Untold> {
        let (mut told, counted) = (Vec::new(), self.counted);
        self.causes.retain_mut(|cause| {
            if now.saturating_duration_since(cause.told_at) < QUIET {
                return true;
            }
            cause.told_at = now;
            let untold = cause.untold(counted);
            let goes_on = untold.is_some();
            cause.untold = 0;
            told.extend(untold);
            goes_on
        });
        told
    }

    /// Everything that is left, because nobody will ask again.
    fn rest(&mut self) -> Vec<Untold> {
        let counted = self.counted;
        self.causes.drain(..).filter_map(|cause| cause.untold(counted)).collect()
    }
}

impl Cause {
    fn another(&mut self, now: Instant) {
        self.untold += 1;
        self.died_at = now;
    }

    fn untold(&self, counted: Option<Counted>) -> Option<Untold> {
        let counted = counted.filter(|counted| counted.at >= self.died_at + RECORDED);
        (self.untold > 0).then(|| Untold {
            topic: Topic::clone(&self.topic),
            code: self.code,
            rows: self.untold,
            dead: counted.map(|counted| counted.rows),
        })
    }
}

impl Untold {
    /// One line. Nobody has to look where none of them is dead any more.
    pub(super) fn log(&self) {
        let Self { topic, code, rows, dead } = self;
        if *dead == Some(0) {
            tracing::info!(
                topic = &**topic,
                code,
                rows,
                "more rows died of the same cause, and are settled by now: no row is dead any more"
            );
            return;
        }
        tracing::error!(
            topic = &**topic,
            code,
            rows,
            dead,
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
        let untold = Untold {
            topic: Topic::clone(&topic),
            code: "INVALID_ARGUMENT",
            rows: 19_999,
            dead: None,
        };
        assert_eq!(dead.due(later), [untold]);
        assert!(!dead.died(&topic, "INVALID_ARGUMENT", later), "it still goes on");
        assert!(dead.died(&other, "INVALID_ARGUMENT", later), "that one had ended");
    }

    #[test]
    fn rows_that_were_settled_since_are_told_as_settled() {
        let began = Instant::now();
        let topic: Topic = "projects/p/topics/a".into();
        let told = |counted: &[(u64, Duration)]| {
            let mut dead = DeadRows::default();
            dead.died(&topic, "INVALID_ARGUMENT", began);
            dead.died(&topic, "INVALID_ARGUMENT", began);
            counted.iter().for_each(|(rows, after)| dead.counted(*rows, began + *after));
            dead.due(began + QUIET)[0].dead
        };
        assert_eq!(told(&[]), None, "nobody has counted");
        assert_eq!(told(&[(0, RECORDED / 2)]), None, "they may not have been recorded by then");
        assert_eq!(told(&[(2, RECORDED)]), Some(2));
        assert_eq!(told(&[(2, RECORDED), (0, RECORDED * 2)]), Some(0));
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
